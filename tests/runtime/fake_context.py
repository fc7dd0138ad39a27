"""An execution context of the stand-in for TensorRT; ``fake_tensorrt`` says how it cites rules."""

from __future__ import annotations

import enum
import weakref
from dataclasses import dataclass

import numpy as np
from fake_device import ALIGNMENT

from stateful_pipeline.errors import PipelineError, TargetError

TensorLocation = enum.Enum("TensorLocation", "DEVICE HOST")


class IOutputAllocator:
    """Python, IOutputAllocator: 'explicitly instantiate the base class in __init__'."""

    def __init__(self):
        self.ready = True


@dataclass(eq=False)
class Bound:
    """The shapes and addresses of a context at one moment, which an enqueued step keeps."""

    engine: object
    shapes: dict
    addresses: dict
    owner: object = None
    profile: int = 0

    def shape_of_input(self, name):
        declared = self.engine.get_tensor_shape(name)
        return self.shapes.get(name, None if -1 in declared else declared)

    def size(self, name, shape):
        return int(np.prod(shape, dtype=np.int64)) * self.engine.numpy_type(name).itemsize

    def span(self, name, shape):
        # C++, setTensorAddress: 'The pointer must point to a device buffer of sufficient size and
        # alignment', or to a host buffer if the location is kHOST.
        on_host = self.engine.get_tensor_location(name) == TensorLocation.HOST
        return self.engine.device.span(self.addresses[name], self.size(name, shape), on_host)

    def read(self, name):
        shape, dtype = self.shape_of_input(name), self.engine.numpy_type(name)
        return self.span(name, shape).view(dtype).reshape(shape).copy()

    def write(self, name, value):
        self.span(name, value.shape)[...] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def computed(self):
        """Return what the model gives for what is in memory now."""
        return self._outputs({name: self.read(name) for name in self.engine.inputs})

    def imagined(self):
        """Return outputs whose shapes are right: only shapes, and what lies on the host, count."""
        feeds = {}
        for name in self.engine.inputs:
            if self.engine.is_shape_inference_io(name):
                feeds[name] = self.read(name)
            else:
                feeds[name] = np.zeros(self.shape_of_input(name), self.engine.numpy_type(name))
        return self._outputs(feeds)

    def run(self, shapes):
        """Do the step: outputs are written here, when the stream comes to it."""
        device, values = self.engine.device, self.computed()
        failure = device.take_failure()
        for name, value in values.items():
            device.require(value.shape == shapes[name], f"'{name}' has another shape")
            self.write(name, value if failure is None else _half(value))
        if failure is not None:
            raise TargetError(f"CUDA: cudaStreamSynchronize failed: {failure}")

    def _outputs(self, feeds):
        names = list(self.engine.outputs)
        return dict(zip(names, self.engine.session.run(names, feeds), strict=True))


def _half(value):
    """Return what a step leaves that broke off in the middle."""
    flat = value.copy().reshape(-1)
    flat[flat.size // 2 :] = 99
    return flat.reshape(value.shape)


class IExecutionContext:
    def __init__(self, engine):
        self.engine_of = weakref.ref(engine)
        self.device = engine.device
        self.shapes, self.addresses, self.allocators = {}, {}, {}
        self.active_optimization_profile = 0
        self.switching = None
        self.token = object()

    @property
    def engine(self):
        return self.engine_of()

    @property
    def bound(self):
        profile = self.active_optimization_profile
        return Bound(self.engine, {**self.shapes}, {**self.addresses}, self.token, profile)

    def set_optimization_profile_async(self, profile_index, stream_handle):
        if not 0 <= profile_index < self.engine.num_optimization_profiles:
            return False
        self._be_idle("a profile is switched")
        # Python, active_optimization_profile: 'Changing this value will invalidate all dynamic
        # bindings for the current execution context'.
        self.shapes.clear()
        self.active_optimization_profile = profile_index
        self.switching = stream_handle

        def done():
            self.switching = None

        self.device.add(stream_handle, done)
        return True

    def set_input_shape(self, name, shape):
        """C++: 'Each dimension must agree with the network dimension unless the latter was -1.'"""
        declared = self.engine.get_tensor_shape(name)
        agrees = len(shape) == len(declared) and all(
            d in (-1, s) for d, s in zip(declared, shape, strict=True)
        )
        self.device.require(agrees, f"'{name}' is {declared} in the network, not {shape}")
        if -1 in declared:
            profile = self.active_optimization_profile
            low, _, high = self.engine.get_tensor_profile_shape(name, profile)
            inside = all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True))
            # Python, IOptimizationProfile: 'A runtime error will be raised if the input tensor
            # dimensions fall outside the valid range for this profile.'
            self.device.require(
                inside, f"'{name}' {shape} is outside profile {profile}: {low} to {high}"
            )
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name, memory):
        # C++, setTensorAddress: 'The pointer must have at least 256-byte alignment.'
        self.device.require(memory % ALIGNMENT == 0, f"'{name}': {memory:#x} is not aligned")
        if name not in self.engine.nodes:
            return False
        self.addresses[name] = memory
        return True

    def set_output_allocator(self, name, output_allocator):
        if name not in self.engine.outputs:
            return False
        if output_allocator is None:
            self.allocators.pop(name, None)
            return True
        # Python, IOutputAllocator: the base class must be instantiated explicitly.
        ready = getattr(output_allocator, "ready", False)
        self.device.require(ready, "IOutputAllocator.__init__ was not called")
        self.allocators[name] = output_allocator
        return True

    def infer_shapes(self):
        """Python: return 'the names of any tensors that are insufficiently specified'."""
        missing = [
            name
            for name in self.engine.inputs
            if self.bound.shape_of_input(name) is None
            or (self.engine.is_shape_inference_io(name) and not self.addresses.get(name))
        ]
        if not missing:
            values = self.bound.imagined()
            for name in self.engine.outputs:
                # C++, inferShapes: 'If an output tensor has isShapeInferenceIO(t)=true and its
                # address has been specified, then its value is written.'
                if self.engine.is_shape_inference_io(name) and self.addresses.get(name):
                    self.bound.write(name, values[name])
        return missing

    def get_tensor_shape(self, name):
        if name in self.engine.inputs:
            return self.bound.shape_of_input(name) or self.engine.get_tensor_shape(name)
        if name in self.engine.plan.late:
            return tuple(-1 for _ in self.engine.get_tensor_shape(name))
        return self.bound.imagined()[name].shape

    def execute_async_v3(self, stream_handle):
        engine, device = self.engine, self.device
        # C++, enqueueV3: 'Please use non-default stream instead.'
        device.require(stream_handle != 0, "execute_async_v3 on the default stream")
        device.stream(stream_handle)
        self._check_inputs()
        self._check_concurrency(stream_handle)
        late = [name for name in engine.outputs if name in self.allocators]
        if late and not self._allocate(late, stream_handle):
            engine.logger.log(engine.error_level, f"no memory for an output of {late}")
            return False
        bound = self.bound
        values = bound.computed() if late else bound.imagined()
        shapes = {name: value.shape for name, value in values.items()}
        self._check_memory(bound, shapes)
        device.add(
            stream_handle,
            lambda: bound.run(shapes),
            [device.block(self.addresses[name]) for name in engine.inputs],
            [device.block(self.addresses[name]) for name in engine.outputs],
            context=bound,
        )
        return True

    def _check_inputs(self):
        device, engine = self.device, self.engine
        for name in engine.inputs:
            # C++, setOptimizationProfileAsync: setInputShape 'must be called before
            # executeV2()/enqueueV3()' for all dynamic input tensors.
            device.require(self.bound.shape_of_input(name) is not None, f"'{name}' has no shape")
            # C++, setTensorAddress: 'Before calling enqueueV3(), each input must have a non-null
            # address'.
            device.require(self.addresses.get(name), f"input '{name}' has no address")
        for name in engine.outputs:
            # '... and each output must have a non-null address or an IOutputAllocator to set it
            # later.'
            known = self.addresses.get(name) or name in self.allocators
            device.require(known, f"output '{name}' has neither address nor allocator")

    def _check_concurrency(self, stream):
        # C++, setOptimizationProfileAsync: 'Not synchronizing the stream used at enqueue with the
        # stream used to set optimization profile asynchronously using this API will result in
        # undefined behavior.'
        self.device.require(
            self.switching in (None, stream), "the switch of the profile was not awaited"
        )
        for other, work in self.device.work():
            if work.context is None or other == stream:
                continue
            # "How TensorRT Works", Threading: 'use one execution context per stream'.
            self.device.require(
                work.context.owner is not self.token, "a context runs on two streams"
            )
            same_engine = work.context.engine is self.engine
            profiles = work.context.profile, self.active_optimization_profile
            # C++, IExecutionContext: 'each execution context in concurrent use must use a separate
            # optimization profile'.
            self.device.require(
                not same_engine or len(set(profiles)) == 2,
                f"two contexts run in profile {profiles[0]}",
            )

    def _check_memory(self, bound, shapes):
        engine, device = self.engine, self.device
        spans = {}
        for name in engine.nodes:
            shape = bound.shape_of_input(name) if name in engine.inputs else shapes[name]
            bound.span(name, shape)
            spans[name] = (bound.addresses[name], bound.addresses[name] + bound.size(name, shape))
        for output in engine.outputs:
            shared = engine.plan.aliases.get(output)
            if shared is not None:
                # C++, getAliasedInputTensor: 'certain output tensors share memory with input
                # tensors'.
                device.require(
                    bound.addresses[output] == bound.addresses[shared],
                    f"'{output}' must share the memory of '{shared}'",
                )
            for other, (first, last) in spans.items():
                apart = spans[output][1] <= first or last <= spans[output][0]
                device.require(
                    apart or other in (output, shared), f"'{output}' lies over '{other}'"
                )

    def _allocate(self, names, stream):
        """Call the output allocators, as C++ ``IOutputAllocator`` says, and set the addresses.

        TensorRT waits here for what the shapes depend on; so this does too.
        """
        self.device.synchronize(stream)
        values = self.bound.computed()
        for name in names:
            # C++, reallocateOutputAsync: the size is 'always positive, even for an empty tensor'.
            size, before = max(values[name].nbytes, 1), self.addresses.get(name, 0)
            try:
                address = self.allocators[name].reallocate_output_async(
                    name, before, size, ALIGNMENT, stream
                )
            except PipelineError as error:
                # The bindings print what a callback raises, and go on without memory.
                self.device.note(f"an output allocator raised {error!r}")
                return False
            if not address:
                return False
            self.addresses[name] = address
            # C++, notifyShape: 'between when it calls reallocateOutput and enqueueV3 returns'.
            self.allocators[name].notify_shape(name, values[name].shape)
        return True

    def _be_idle(self, what):
        busy = self._runs()
        self.device.require(not busy, f"{what} while the context runs")

    def _runs(self):
        contexts = [work.context for _, work in self.device.work() if work.context is not None]
        return any(bound.owner is self.token for bound in contexts)

    def __del__(self):
        # Python, execute_async_v3: what was registered is in use until the stream is synchronized.
        if self._runs():
            self.device.note("a context was destroyed while it ran")
