"""``states``: what the user says about states; what is not listed is discovered."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from stateful_pipeline.spec.base import FilePath, SpecModel, problem
from stateful_pipeline.spec.dims import DType, OutShape, StateShape
from stateful_pipeline.spec.inputs import Constant

GraphName = Annotated[str, Field(min_length=1)]


class InitValue(SpecModel):
    """An initial value that is written here."""

    value: Constant
    """A number that fills the state, or nested lists of its shape (size 1 along named axes)."""


class InitFile(SpecModel):
    """An initial value that lies in a file."""

    file: FilePath
    """An .npz file, relative to this file."""
    key: str
    """The name of the array in it."""


def _form(value: Any) -> str | None:
    """Return the tag of a form; its brackets tell it from a key in the location of an error."""
    if isinstance(value, str):
        return "<word>"
    if isinstance(value, InitFile) or (isinstance(value, dict) and {"file", "key"} & value.keys()):
        return "<file>"
    return "<value>" if isinstance(value, InitValue | dict) else None


Init = Annotated[
    Annotated[Literal["buffer", "zeros"], Tag("<word>")]
    | Annotated[InitValue, Tag("<value>")]
    | Annotated[InitFile, Tag("<file>")],
    Discriminator(
        _form,
        custom_error_type="spec",
        custom_error_message="{message}",
        custom_error_context={
            "message": "expected `buffer`, `zeros`, `{value: ...}` or `{file: ..., key: ...}`"
        },
    ),
]


class StateSpec(SpecModel):
    """One state: a tensor that survives between calls."""

    shape: StateShape | None = None
    """Its shape before a step, with named axes where it follows an input's."""
    out_shape: OutShape | None = None
    """Its shape after a step, for a state that grows: `[1, 2, past + time, 4]`."""
    dtype: DType | None = None
    """Its element type; what the model holds if not given."""
    init: Init = "buffer"
    """The initial value: what the model holds (buffer), zeros, a value, or an array of a file."""
    ignore: bool = False
    """Leaves the state out of the model: it keeps its initial value. Needs a reason."""
    reason: str | None = None
    """Why it may be left out."""
    input: GraphName | None = None
    """The graph input that carries it, for a source of `onnx`."""
    output: GraphName | None = None
    """The graph output that carries it, for a source of `onnx`."""

    @model_validator(mode="after")
    def _consistent(self) -> StateSpec:
        if self.ignore:
            if not (self.reason or "").strip():
                raise problem(
                    "`ignore: true` needs a `reason`", '`reason: "statistics nobody reads"`'
                )
            said = self.model_dump(exclude_defaults=True).keys() - {"ignore", "reason"}
            if said:
                raise problem(f"the state is ignored, so `{min(said)}` means nothing here")
        elif self.reason is not None:
            raise problem("`reason` goes with `ignore: true`")
        self._check_growth()
        return self

    def _check_growth(self) -> None:
        if self.out_shape is None:
            return
        if self.shape is None:
            raise problem("`out_shape` needs a `shape`", "`shape: [1, 2, past, 4]`")
        if len(self.shape) != len(self.out_shape):
            raise problem(
                f"`shape` has {len(self.shape)} dimensions, `out_shape` {len(self.out_shape)}"
            )
