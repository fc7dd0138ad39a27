"""``targets``: the runtimes to build for, one model per runtime."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from stateful_pipeline.spec.base import (
    LIMIT,
    FileName,
    FilePath,
    SpecModel,
    StateName,
    problem,
    text_like,
)
from stateful_pipeline.spec.dims import AxisPattern

Tolerance = Annotated[float, Field(ge=0)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Size = Annotated[int, Field(ge=0, lt=LIMIT)]

Inexact = Literal["int16", "uint16", "uint32", "int64", "uint64", "float64"]
Precision = Literal["fp32", "bf16", "fp16"]
GpuNumber = Annotated[int, Field(ge=0, le=1023)]


def _ordered(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if len(sizes) != 3:
        raise problem(f"expected [min, opt, max], found {list(sizes)}", "such as `[1, 20, 200]`")
    if list(sizes) != sorted(sizes):
        raise problem(
            f"expected min <= opt <= max, found {list(sizes)}",
            f"such as `{sorted(sizes)}`",
        )
    return sizes


Range = Annotated[
    tuple[Size, ...],
    Field(strict=False, json_schema_extra={"minItems": 3, "maxItems": 3}),
    AfterValidator(_ordered),
]
"""The least, the usual and the largest size of an axis."""

Profiles = Annotated[dict[FileName, dict[AxisPattern, Range]], Field(min_length=1)]
"""Profiles by name: the axes that are narrower there than `dynamic_axes` says."""

States = Annotated[tuple[StateName, ...], Field(strict=False)]

BuilderFlag = Annotated[
    str, *text_like(r"[A-Z][A-Z0-9_]*", "a builder flag of TensorRT", "such as `STRIP_PLAN`")
]

ComputeCapability = Annotated[
    str, *text_like(r"[0-9]{1,2}\.[0-9]", "a compute capability", 'quoted, such as `"8.9"`')
]


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
    graph_optimization: Literal["none", "basic", "extended", "all"] = "all"
    """How far ONNX Runtime rewrites the graph when it loads it."""
    arena: bool = True
    """Whether ONNX Runtime keeps freed memory for later steps."""
    precision: Precision = "fp32"
    """What floats are computed in."""
    half_states: States = ()
    """States that are held in `precision` too, by name or pattern; the others stay as they are."""
    gpu: GpuNumber = 0
    """The number of the GPU, for the providers cuda and tensorrt."""
    tf32: bool = False
    """Lets the GPU multiply float32 in TF32, which keeps 10 bits of the fraction."""
    profiles: Profiles | None = None
    """Ranges of sizes that engines are built for; one from `dynamic_axes` if not given."""
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
    precision: Precision = "fp32"
    """What floats are computed in; OpenVINO's own choice is bf16 where the processor has it."""
    inexact: Annotated[tuple[Inexact, ...], Field(strict=False)] = ()
    """Dtypes of states to take although OpenVINO has them in 32 bits; refused if not given."""
    optional: bool = False
    """Lets the run go on where this target cannot be built or run here."""
    verify: TargetVerify = TargetVerify()
    """Tolerances of this target."""


class EngineTarget(SpecModel):
    """What the two TensorRTs share: an engine that is built for ranges of sizes."""

    needs: ClassVar[str] = "onnx"
    """The artifact that it is built from."""

    precision: Precision = "fp32"
    """What floats are computed in; written into the network, which is strongly typed."""
    half_states: States = ()
    """States that are held in `precision` too, by name or pattern; the others stay as they are."""
    tf32: bool = False
    """Lets float32 be multiplied in TF32, which keeps 10 bits of the fraction."""
    profiles: Profiles | None = None
    """Ranges of sizes that the engine is built for; one from `dynamic_axes` if not given."""
    workspace: Annotated[int, Field(ge=1, lt=LIMIT)] | None = None
    """Scratch memory that layers may use, in MiB; all there is if not given."""
    optimization_level: Annotated[int, Field(ge=0, le=5)] | None = None
    """How long to search for fast kernels, from 0 to 5; TensorRT's own choice if not given."""
    flags: Annotated[tuple[BuilderFlag, ...], Field(strict=False)] = ()
    """More of TensorRT's builder flags, by their names."""
    optional: bool = False
    """Lets the run go on where this target cannot be built or run here."""
    verify: TargetVerify = TargetVerify()
    """Tolerances of this target."""

    @property
    def threads(self) -> int | None:
        """Threads of a step: a GPU takes it."""
        return None


class TensorRtTarget(EngineTarget):
    """TensorRT: an engine for the GPU on which it is built."""

    runtime: Literal["tensorrt"]
    """Which runtime: tensorrt."""
    gpu: GpuNumber = 0
    """The number of the GPU."""
    timing_cache: FilePath | None = None
    """A file, relative to the spec, that keeps what is measured while an engine is built."""


class TensorRtRtxTarget(EngineTarget):
    """TensorRT for RTX: an engine for the GPUs listed, built on any machine."""

    runtime: Literal["tensorrt_rtx"]
    """Which runtime: tensorrt_rtx."""
    gpu: GpuNumber = 0
    """The number of the GPU."""
    compute_capabilities: Annotated[tuple[ComputeCapability, ...], Field(strict=False)] = ()
    """The GPUs to build for, such as "8.9"; all that it knows from 8.0 if not given."""


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
    OnnxRuntimeTarget | OpenVinoTarget | TensorRtTarget | TensorRtRtxTarget | LibtorchTarget,
    Field(discriminator="runtime"),
]
"""One target: a model per runtime."""
