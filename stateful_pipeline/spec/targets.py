"""``targets``: the runtimes to build for, one model per runtime."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stateful_pipeline.spec.base import SpecModel

Tolerance = Annotated[float, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=1024)]


Inexact = Literal["int16", "uint16", "uint32", "int64", "uint64", "float64"]


class TargetVerify(SpecModel):
    """Tolerances of one target, where they differ from those of `verify`."""

    atol: Tolerance | None = None
    """Largest absolute error; what `verify` says if not given."""
    rtol: Tolerance | None = None
    """Largest error relative to the reference; what `verify` says if not given."""
    reason: str | None = None
    """Why this target has tolerances of its own."""


class OnnxRuntimeTarget(SpecModel):
    """ONNX Runtime."""

    needs: ClassVar[str] = "onnx"
    """The artifact that it is built from."""

    runtime: Literal["onnxruntime"]
    """Which runtime: onnxruntime."""
    provider: Literal["cpu", "cuda", "tensorrt"] = "cpu"
    """The execution provider."""
    threads: Threads | None = None
    """Threads within an operator; ONNX Runtime's own choice if not given."""
    optional: bool = False
    """Lets the run go on where this target cannot be built or run here."""
    verify: TargetVerify = TargetVerify()
    """Tolerances of this target."""


class OpenVinoTarget(SpecModel):
    """OpenVINO on the CPU; its states lie inside the engine."""

    needs: ClassVar[str] = "onnx"
    """The artifact that it is built from."""

    runtime: Literal["openvino"]
    """Which runtime: openvino."""
    threads: Threads | None = None
    """Threads of a step; OpenVINO's own choice if not given."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What floats are computed in; OpenVINO's own choice is bf16 where the processor has it."""
    inexact: Annotated[tuple[Inexact, ...], Field(strict=False)] = ()
    """Dtypes of states to take although OpenVINO has them in 32 bits; refused if not given."""
    optional: bool = False
    """Lets the run go on where this target cannot be built or run here."""
    verify: TargetVerify = TargetVerify()
    """Tolerances of this target."""


class LibtorchTarget(SpecModel):
    """TorchScript in a C++ process without Python; its states stay inside the module."""

    needs: ClassVar[str] = "scripted"
    """The artifact that it is built from."""

    runtime: Literal["libtorch"]
    """Which runtime: libtorch."""
    threads: Threads | None = None
    """Threads within an operator; PyTorch's own choice if not given."""
    optional: bool = False
    """Lets the run go on where this target cannot be built or run here."""
    verify: TargetVerify = TargetVerify()
    """Tolerances of this target."""


Target = Annotated[
    OnnxRuntimeTarget | OpenVinoTarget | LibtorchTarget, Field(discriminator="runtime")
]
"""One target: a model per runtime."""
