"""``targets``: the runtimes to build for, one model per runtime."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stateful_pipeline.spec.base import SpecModel

Tolerance = Annotated[float, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=1024)]


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


Target = Annotated[OnnxRuntimeTarget | LibtorchTarget, Field(discriminator="runtime")]
"""One target: a model per runtime."""
