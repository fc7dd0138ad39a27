"""A stand-in for TensorRT whose engines are ONNX files, run by ONNX Runtime on a fake device.

It has the part of the Python interface that the runner uses, and enforces what the documentation
demands of its user.  Each rule has its source: "Python" is the Python API reference (the docstrings
of ``tensorrt`` 11 and ``tensorrt_rtx`` 1.7), "C++" the comments of ``NvInferRuntime.h`` of TensorRT
11.1.  Where the documentation says that the behaviour is undefined, or that a call fails, the
stand-in raises ``BrokenRule``; so it is stricter than TensorRT, never more lenient.
"""

from __future__ import annotations

import base64
import enum
import json
import types
import weakref
from dataclasses import asdict, dataclass, field

import numpy as np
import onnxruntime as ort
from fake_context import IExecutionContext, IOutputAllocator, TensorLocation
from fake_device import current_device

TensorIOMode = enum.Enum("TensorIOMode", "NONE INPUT OUTPUT")
TensorFormat = enum.Enum("TensorFormat", "LINEAR CHW32")
DataType = enum.Enum("DataType", "FLOAT HALF BF16 INT8 INT32 INT64 UINT8 BOOL")
ExecutionContextAllocationStrategy = enum.Enum(
    "ExecutionContextAllocationStrategy", "STATIC ON_PROFILE_CHANGE USER_MANAGED"
)

_TYPES = {
    "tensor(float)": (DataType.FLOAT, np.float32), "tensor(float16)": (DataType.HALF, np.float16),
    "tensor(int8)": (DataType.INT8, np.int8), "tensor(int32)": (DataType.INT32, np.int32),
    "tensor(int64)": (DataType.INT64, np.int64), "tensor(uint8)": (DataType.UINT8, np.uint8),
    "tensor(bool)": (DataType.BOOL, np.bool_),
}  # fmt: skip
_MAGIC = b"stand-in for a TensorRT engine\n"


class ILogger:
    """Python, ILogger: 'explicitly instantiate the base class in __init__'."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = range(5)

    def __init__(self):
        self.ready = True


@dataclass
class Plan:
    """What a serialized engine holds.

    Attributes:
        onnx: The model, in base64.
        version: Of the library that built it.
        profiles: Each a map of graph inputs to their least, usual and largest shape.
        aliases: Output to the input whose memory it shares.
        on_host: Inputs and outputs that shapes depend on.
        late: Outputs whose shape only the run can tell.
        vectorized: Inputs and outputs that are not laid out as arrays are.
    """

    onnx: str
    version: str
    profiles: list
    aliases: dict = field(default_factory=dict)
    on_host: list = field(default_factory=list)
    late: list = field(default_factory=list)
    vectorized: list = field(default_factory=list)


def serialize(model, version, profiles, **more):
    """Return the bytes of an engine for the ONNX file ``model``."""
    plan = Plan(base64.b64encode(model.read_bytes()).decode(), version, profiles, **more)
    return _MAGIC + json.dumps(asdict(plan)).encode()


class Registry:
    """The plugin registry: what was registered, by name, version and namespace."""

    def __init__(self):
        self.creators = {}

    def get_creator(self, type, version, plugin_namespace=""):  # noqa: A002
        return self.creators.get((type, version, plugin_namespace))


class Runtime:
    """Loads engines, for one version of the library."""

    version = "11.1.0"

    def __init__(self, logger):
        self.device = current_device()
        if self.device is None:
            raise RuntimeError("the process would end here: there is no CUDA device")
        # Python, ILogger: the base class must be instantiated explicitly.
        self.device.require(getattr(logger, "ready", False), "ILogger.__init__ was not called")
        self.logger = logger
        self.engines = weakref.WeakSet()

    def deserialize_cuda_engine(self, serialized_engine):
        """Python: 'The ICudaEngine, or None if it could not be deserialized'."""
        data = bytes(serialized_engine)
        if not data.startswith(_MAGIC):
            return self._refuse("the engine does not conform to the expected format")
        try:
            plan = Plan(**json.loads(data[len(_MAGIC) :]))
        except ValueError:
            return self._refuse("the engine ends too early")
        if plan.version != self.version:
            return self._refuse(f"version mismatch: {plan.version} and {self.version}")
        engine = ICudaEngine(plan, self.device, self.logger)
        self.engines.add(engine)
        return engine

    def _refuse(self, message):
        self.logger.log(ILogger.ERROR, message)

    def __del__(self):
        # C++, IRuntime::deserializeCudaEngine: 'Destroying the IRuntime before destroying all
        # associated ICudaEngine instances results in undefined behavior.'
        if getattr(self, "engines", ()):
            self.device.note("a runtime was destroyed before its engine")


class ICudaEngine:
    def __init__(self, plan, device, logger):
        self.plan, self.device, self.logger = plan, device, logger
        self.error_level = ILogger.ERROR
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(
            base64.b64decode(plan.onnx), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.outputs = {node.name: node for node in self.session.get_outputs()}
        self.nodes = {**self.inputs, **self.outputs}
        self.contexts = weakref.WeakSet()
        self.num_optimization_profiles = len(plan.profiles)
        self.num_io_tensors = len(self.nodes)

    def get_tensor_name(self, index):
        return list(self.nodes)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return _TYPES[self.nodes[name].type][0]

    def get_tensor_shape(self, name):
        return tuple(d if isinstance(d, int) else -1 for d in self.nodes[name].shape)

    def get_tensor_location(self, name):
        return TensorLocation.HOST if name in self.plan.on_host else TensorLocation.DEVICE

    def get_tensor_format(self, name):
        return TensorFormat.CHW32 if name in self.plan.vectorized else TensorFormat.LINEAR

    def is_shape_inference_io(self, name):
        return name in self.plan.on_host

    def get_aliased_input_tensor(self, name):
        return self.plan.aliases.get(name)

    def get_tensor_profile_shape(self, name, profile_index):
        return [tuple(shape) for shape in self.plan.profiles[profile_index][name]]

    def create_execution_context(self, strategy=ExecutionContextAllocationStrategy.STATIC):
        context = IExecutionContext(self)
        self.contexts.add(context)
        return context

    def numpy_type(self, name):
        return np.dtype(_TYPES[self.nodes[name].type][1])

    def __del__(self):
        # "How TensorRT Works", Object Lifetimes: the lifetime of factory objects must span the
        # lifetime of the objects that they created.
        if getattr(self, "contexts", ()):
            self.device.note("an engine was destroyed before its contexts")


def library(name="tensorrt", version="11.1.0"):
    """Return a module that stands in for ``tensorrt`` or ``tensorrt_rtx`` of a version."""
    module = types.ModuleType(name)
    module.__version__ = version
    module.Runtime = type("Runtime", (Runtime,), {"version": version})
    for part in (
        ILogger, IOutputAllocator, ICudaEngine, IExecutionContext, TensorIOMode, TensorLocation,
        TensorFormat, DataType, ExecutionContextAllocationStrategy,
    ):  # fmt: skip
        setattr(module, part.__name__, part)
    registry = Registry()
    module.get_plugin_registry = lambda: registry
    module.init_libnvinfer_plugins = lambda logger, namespace: True
    return module
