"""Builds one engine of TensorRT, in a process of its own.

TensorRT ends the process where it meets something that it did not expect, and keeps memory and
logs of its own.  So it never runs in the process of the pipeline: that writes a request, as JSON,
starts this module with its path, and reads the answer.  Nothing here needs PyTorch.

``tensorrt`` (10 and 11) and ``tensorrt_rtx`` have the same Python API.  TensorRT for RTX builds for
GPUs that are listed, on any machine; TensorRT measures kernels on the GPU that it builds for.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import PipelineError, SpecError, StageError
from stateful_pipeline.runtime.cuda_device import CudaDevice
from stateful_pipeline.runtime.tensorrt_library import import_library

_TYPES = {
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "int32": "INT32", "int64": "INT64",
    "bool": "BOOL",
}  # fmt: skip
"""Element types of graph inputs and outputs, and TensorRT's names for them."""

_IN_PART = ("7.5",)
"""GPUs for which TensorRT for RTX lacks operators (products of float32): only where asked for."""

_SAID_OF_EVERY_INT64 = "has Int64 binding"


def main(request_path: str) -> None:
    """Build what the request says, and write the answer to the file that it names.

    The process ends at once when its stdin closes, that is, with the pipeline that waits for it.
    """
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    try:
        answer = build(request)
    except PipelineError as error:
        kind = type(error).__name__
        key = error.key if isinstance(error, SpecError) else None
        answer = {"error": {"kind": kind, "message": str(error.message), "hint": error.hint}}
        answer["error"]["key"] = key
    except OSError as error:
        told = {"path": error.filename, "reason": error.strerror or str(error)}
        answer = {"error": {"kind": OSError.__name__, **told}}
    try:
        _write(Path(request["answer"]), json.dumps(answer).encode())
    except OSError as error:
        print(f"{error.filename}: {error.strerror}")
        sys.exit(os.EX_IOERR)


def _end_with_stdin() -> None:
    os.read(0, 1)  # not by `sys.stdin`, whose lock would be held when Python ends
    os._exit(1)


def build(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build an engine in this process; return what is to be known of it.

    Raises:
        TargetError: The library is not installed, or needs a GPU.
        SpecError: The library lacks a flag, or a kind of GPU.
        StageError: The library cannot take the model.
    """
    return _Build(request).run()


class _Build:
    """One engine."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._name: str = request["library"]
        self._trt = import_library(self._name)
        self._log = _logger(self._trt)
        self._is_rtx = self._name == "tensorrt_rtx"

    def run(self) -> dict[str, Any]:
        """Build it; return what is to be known of it."""
        started = time.monotonic()
        capabilities: list[str]
        place: AbstractContextManager[None] = nullcontext()
        if not self._is_rtx:
            device = CudaDevice(self._request["gpu"])
            place, capabilities = device.current(), [device.capability]
        with place:
            builder = self._trt.Builder(self._log)
            network = builder.create_network(self._network_flags())
            self._parse(network)
            self._check_types(network)
            config = builder.create_builder_config()
            if self._is_rtx:
                capabilities = self._set_capabilities(config)
            self._set_options(config)
            self._add_profiles(builder, config)
            cache = self._timing_cache(config)
            engine = builder.build_serialized_network(network, config)
        if engine is None:
            raise StageError(
                f"{self._name} builds no engine: {self._said()}",
                stage="build",
                hint=self._advice(capabilities),
            )
        _write(Path(self._request["engine"]), memoryview(engine))
        if cache is not None:
            _replace(cache, memoryview(config.get_timing_cache().serialize()))
        return {
            "version": str(self._trt.__version__),
            "compute_capabilities": capabilities,
            "warnings": self._warnings(),
            "seconds": time.monotonic() - started,
        }

    def _network_flags(self) -> int:
        flag = getattr(self._trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return 0 if flag is None else 1 << int(flag)  # later versions know no other networks

    def _parse(self, network: Any) -> None:
        """Read the ONNX file into the network.

        Raises:
            StageError: TensorRT has no form of an operator.
        """
        self._parser = self._trt.OnnxParser(network, self._log)  # it owns the weights
        if self._parser.parse_from_file(self._request["model"]):
            return
        errors = [self._parser.get_error(index) for index in range(self._parser.num_errors)]
        operators = dict.fromkeys(_node(error) for error in errors if error.node_operator())
        said = errors[0].desc().partition("\n")[0] if errors else self._said()
        unsupported = self._trt.ErrorCode.UNSUPPORTED_NODE
        if operators and all(error.code() == unsupported for error in errors):
            raise StageError(
                f"{self._name} has no operator {', '.join(operators)}",
                stage="build",
                hint="write the model with other operators, or let a target of ONNX Runtime run it",
            )
        where = f" at {', '.join(operators)}" if operators else ""
        raise StageError(f"{self._name} cannot take the model{where}: {said}", stage="build")

    def _check_types(self, network: Any) -> None:
        """Check that no input or output was given another element type on the way.

        Raises:
            StageError: One was: float64 becomes float32 without a word.  Or the values of one
                decide shapes.
        """
        tensors = [network.get_input(index) for index in range(network.num_inputs)]
        tensors += [network.get_output(index) for index in range(network.num_outputs)]
        found = {tensor.name: tensor.dtype for tensor in tensors}
        for tensor in tensors[: network.num_inputs]:
            if tensor.is_shape_tensor:
                raise StageError(
                    f"the values of '{tensor.name}' decide the shapes of others, and "
                    f"{self._name} builds an engine for ranges of shapes alone",
                    stage="build",
                    hint="give the sizes by the shape of an input, or let ONNX Runtime run it",
                )
        for name, dtype in self._request["dtypes"].items():
            if name not in found:
                raise StageError(f"{self._name} has lost '{name}' of the model", stage="build")
            if found[name] != getattr(self._trt.DataType, _TYPES[dtype]):
                raise StageError(
                    f"{self._name} takes '{name}' as {found[name]}, which is {dtype}",
                    stage="build",
                )

    def _set_capabilities(self, config: Any) -> list[str]:
        """Say which GPUs to build for; return their compute capabilities.

        Raises:
            SpecError: TensorRT for RTX does not build for one.
        """
        members = self._trt.ComputeCapability.__members__
        known = {
            f"{name[2:-1]}.{name[-1]}": member
            for name, member in members.items()
            if name.startswith("SM")
        }
        wanted = list(dict.fromkeys(self._request["compute_capabilities"])) or [
            c for c in known if c not in _IN_PART
        ]
        for capability in wanted:
            if capability not in known:
                raise SpecError(
                    f"{self._name} {self._trt.__version__} does not build for compute capability "
                    f"{capability}",
                    hint=f"one of {', '.join(known)}",
                    key="compute_capabilities",
                )
        config.num_compute_capabilities = len(wanted)
        for index, capability in enumerate(wanted):
            config.set_compute_capability(known[capability], index)
        return list(wanted)

    def _set_options(self, config: Any) -> None:
        """Set what the spec says of the builder.

        Raises:
            SpecError: There is no such flag.
        """
        request, flags = self._request, self._trt.BuilderFlag
        if request["tf32"]:
            config.set_flag(flags.TF32)
        else:
            config.clear_flag(flags.TF32)  # it is on by default
        if request["workspace"] is not None:
            pool = self._trt.MemoryPoolType.WORKSPACE
            config.set_memory_pool_limit(pool, request["workspace"] << 20)
        if request["optimization_level"] is not None:
            config.builder_optimization_level = request["optimization_level"]
        for name in request["flags"]:
            if name not in flags.__members__:
                raise SpecError(
                    f"{self._name} {self._trt.__version__} has no builder flag {name}",
                    hint=f"one of {', '.join(sorted(flags.__members__))}",
                    key="flags",
                )
            config.set_flag(flags.__members__[name])

    def _add_profiles(self, builder: Any, config: Any) -> None:
        """Add the optimization profiles, in order.

        Raises:
            StageError: TensorRT refuses one.
        """
        for planned in self._request["profiles"]:
            profile = builder.create_optimization_profile()
            for name, (least, usual, largest) in planned["ranges"].items():
                profile.set_shape(name, least, usual, largest)
            if config.add_optimization_profile(profile) < 0:
                raise StageError(
                    f"{self._name} refuses the profile '{planned['name']}': {self._said()}",
                    stage="build",
                )

    def _timing_cache(self, config: Any) -> Path | None:
        """Let the builder start from what is kept of earlier builds; return where it is kept."""
        if self._request["timing_cache"] is None:
            return None
        path = Path(self._request["timing_cache"])
        held = path.read_bytes() if path.is_file() else b""
        cache = config.create_timing_cache(held)
        if not config.set_timing_cache(cache, ignore_mismatch=False):
            # Of another GPU or version: there is nothing in it for this one.
            config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
        return path

    def _advice(self, capabilities: Sequence[str]) -> str:
        """Return what to try where no engine is built, although the model was taken."""
        if self._is_rtx and not set(capabilities).isdisjoint(_IN_PART):
            return (
                f"GPUs of {', '.join(_IN_PART)} lack products of float32: leave them out of "
                "`compute_capabilities`, or compute in half, `precision: fp16`"
            )
        set_here = [key for key in ("flags", "workspace") if self._request[key]]
        if set_here:
            return f"leave out {' and '.join(f'`{key}`' for key in set_here)} of the target"
        return (
            "an operator cannot be compiled, most often in a branch or a loop: leave parts of the "
            "model out to find it, or let a target of ONNX Runtime run it"
        )

    def _said(self) -> str:
        """Return the first error that the library logged."""
        severity = self._trt.ILogger
        bad = (severity.ERROR, severity.INTERNAL_ERROR)
        errors = [text for level, text in self._log.lines if level in bad]
        return errors[0].partition("\n")[0] if errors else "it does not say why"

    def _warnings(self) -> list[str]:
        warned = [text for level, text in self._log.lines if level == self._trt.ILogger.WARNING]
        return list(dict.fromkeys(text for text in warned if _SAID_OF_EVERY_INT64 not in text))


def _logger(trt: Any) -> Any:
    class Kept(trt.ILogger):  # type: ignore[misc]  # the library has no types
        """Keeps what the library logs."""

        def __init__(self) -> None:
            super().__init__()
            self.lines: list[tuple[Any, str]] = []

        def log(self, severity: Any, text: str) -> None:
            self.lines.append((severity, text))

    return Kept()


def _node(error: Any) -> str:
    name = error.node_name()
    return f"{error.node_operator()} (node '{name}')" if name else str(error.node_operator())


def _replace(path: Path, content: memoryview) -> None:
    """Replace a file in one piece."""
    partial = path.with_name(f".{path.name}.partial")
    _write(partial, content)
    partial.replace(path)


def _write(path: Path, content: bytes | memoryview) -> None:
    """Write a file, or none.

    Raises:
        OSError: It cannot be written; its path is told also where it was opened.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        path.unlink(missing_ok=True)  # so that there is room for the answer
        error.filename = str(path)
        raise


if __name__ == "__main__":
    main(sys.argv[1])
