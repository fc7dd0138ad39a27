"""``inputs`` and ``attributes``: what goes into a step, and where its values come from."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from stateful_pipeline.spec.base import FilePath, Number, SpecModel, problem
from stateful_pipeline.spec.dims import DType, InputShape
from stateful_pipeline.spec.faults import show

_INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}


class DataSpec(SpecModel):
    """Recorded values of an input: an array whose first axis is the step."""

    npz: FilePath
    """An .npz file, relative to this file."""
    key: str
    """The name of the array in it."""


def _constant(value: Any) -> Any:
    if isinstance(value, dict):
        raise problem("expected a number, a string, true, false, null or a list of them")
    if isinstance(value, list | tuple):
        for item in value:
            _constant(item)
    return value


Constant = Annotated[Any, AfterValidator(_constant)]


class InputSpec(SpecModel):
    """One input: shape, dtype and the values that verify and benchmark feed it; or a constant."""

    shape: InputShape | None = None
    """One entry per dimension: a number is fixed, a word is a dynamic axis."""
    dtype: DType = "float32"
    """The element type."""
    low: Number | None = None
    """Random values are drawn from [low, high)."""
    high: Number | None = None
    """Random values are drawn from [low, high)."""
    data: DataSpec | None = None
    """Recorded values in place of random ones."""
    value: Constant = None
    """Fixes the argument to this constant: it is then no input of the built model."""

    @property
    def is_fixed(self) -> bool:
        """Whether the argument is a constant, which may be None."""
        return "value" in self.model_fields_set

    @model_validator(mode="after")
    def _consistent(self) -> InputSpec:
        if self.is_fixed:
            others = sorted(self.model_fields_set - {"value"})
            if others:
                raise problem(f"`value` fixes the argument, so `{others[0]}` means nothing here")
            return self
        if self.shape is None:
            raise problem("missing key `shape`", "`shape: [batch, 40]`, or `value: ...` to fix it")
        if self.data is not None and (self.low is not None or self.high is not None):
            raise problem("`data` gives the values, so `low` and `high` mean nothing here")
        self._check_range()
        return self

    def _check_range(self) -> None:
        given = [bound for bound in (self.low, self.high) if bound is not None]
        if given and self.dtype == "bool":
            raise problem("a bool input takes no `low` and no `high`")
        if self.dtype in _INTEGERS and any(type(bound) is not int for bound in given):
            raise problem(f"the range of {self.dtype} is of whole numbers, found {given}")
        if len(given) == 2 and not given[0] < given[1]:
            raise problem(
                f"`low` must be less than `high`, found {show(self.low)} and {show(self.high)}",
                "values are drawn from [low, high)",
            )
        if self.dtype in _INTEGERS:
            self._check_limits()

    def _check_limits(self) -> None:
        bits = int(self.dtype.removeprefix("u").removeprefix("int"))
        unsigned = self.dtype.startswith("u")
        least = 0 if unsigned else -(1 << (bits - 1))
        most = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
        for name, bound, limit in (("low", self.low, most), ("high", self.high, most + 1)):
            if bound is not None and not least <= bound <= limit:
                raise problem(f"`{name}: {show(bound)}` does not fit {self.dtype}")

    @model_serializer(mode="wrap")
    def _without_unset_value(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `value` out where it is not given: a given null means something else."""
        content: dict[str, Any] = handler(self)
        if not self.is_fixed:
            content.pop("value", None)
            return content
        return {"value": content["value"]}


class AttributeSpec(SpecModel):
    """An attribute of the module, fixed to a constant, so that its branches fold away."""

    value: Constant
    """The constant."""
