"""The options of the stages: script, export, verify, benchmark, log."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from stateful_pipeline.spec.base import LIMIT, SpecModel, problem
from stateful_pipeline.spec.faults import show
from stateful_pipeline.spec.targets import Tolerance

MIN_OPSET, MAX_OPSET = 18, 24
"""The opsets that can be asked for: the exporter's lowest, and the runtimes' highest."""


class ScriptOptions(SpecModel):
    """How the module is captured."""

    frontend: Literal["auto", "export", "torchscript"] = "auto"
    """torch.export, torch.jit.script, or whichever keeps every state."""


class ExportOptions(SpecModel):
    """How the ONNX model is written."""

    opset: Annotated[int, Field(ge=MIN_OPSET, le=MAX_OPSET)] = 20
    """The opset of the portable model."""
    external_data_threshold: Annotated[int, Field(ge=0)] = 1 << 30
    """Weights that exceed this many bytes together are stored beside the model; a protobuf file
    ends at 2 GiB."""


def _distinct(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) != len(seeds):
        raise problem(f"each seed once, found {list(seeds)}")
    return seeds


class VerifyOptions(SpecModel):
    """How a built target is compared with eager PyTorch."""

    steps: Annotated[int, Field(ge=1, lt=LIMIT)] = 64
    """Steps of a rollout."""
    seeds: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...],
        Field(strict=False, min_length=1),
        AfterValidator(_distinct),
    ] = (0,)
    """One rollout for each seed of the random inputs."""
    atol: Tolerance = 1e-5
    """Largest absolute error of an output or a state."""
    rtol: Tolerance = 1e-4
    """Largest error relative to the reference."""
    reset_every: Annotated[int, Field(ge=1, lt=LIMIT)] | None = None
    """Resets both sides after this many steps, again and again."""


class BenchmarkOptions(SpecModel):
    """How steps are timed."""

    steps: Annotated[int, Field(ge=0, lt=LIMIT)] = 200
    """Timed steps; 0 leaves the benchmark out."""
    warmup: Annotated[int, Field(ge=0, lt=LIMIT)] = 20
    """Steps before the clock starts."""


def _tracking_uri(value: Any) -> Any:
    if isinstance(value, str) and "://" not in value and value != "databricks":
        raise problem(
            f"expected the URI of a tracking store, found {show(value)}",
            "such as `sqlite:///mlflow.db` (relative to this file) or `http://host:5000`",
        )
    return value


class MlflowOptions(SpecModel):
    """What is logged to MLflow, and where."""

    enabled: bool = True
    """Whether anything is logged."""
    experiment: str = ""
    """The experiment; the spec's name if not given."""
    tracking_uri: Annotated[str | None, AfterValidator(_tracking_uri)] = None
    """The tracking store; one SQLite file on this machine if not given."""
    required: bool = False
    """Makes a run fail whose results cannot be logged."""
    register_as: str | None = Field(default=None, alias="register")
    """The name under which the model is registered."""
    alias: str | None = None
    """The alias that the registered version gets."""
