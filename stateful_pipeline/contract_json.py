"""Reads a state contract from JSON, and checks each of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stateful_pipeline.contract import DTYPES, SCHEMA, Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.json_fields import (
    FLAG,
    LIST,
    MAPPING,
    NAME,
    SIZE,
    TEXT,
    checked,
    list_of,
    one_of,
    optional,
    other_schema,
)

_Item = TypeVar("_Item")

_DTYPE = one_of(DTYPES)
_SHAPE = list_of(SIZE, NAME)

_CONTRACT = {"schema": SIZE, "inputs": LIST, "outputs": LIST, "states": LIST, "axes": LIST}
_AXIS = {
    "name": NAME, "min": SIZE, "opt": optional(SIZE), "max": optional(SIZE), "grows": FLAG,
}  # fmt: skip
_VALUE = {"name": NAME, "dtype": _DTYPE, "shape": _SHAPE}
_STATE = {
    **_VALUE, "input": NAME, "output": NAME, "out_shape": optional(_SHAPE), "init": MAPPING,
    "attribute": TEXT, "in_place": FLAG, "exercised": FLAG,
}  # fmt: skip
_INITIAL = {
    "kind": one_of(("zeros", "inline", "file")), "shape": list_of(SIZE), "data": optional(TEXT),
    "file": optional(NAME), "key": optional(NAME),
}  # fmt: skip


def contract_of(data: Any) -> Contract:
    """Return the contract that ``Contract.to_json`` writes as ``data``.

    Raises:
        ContractError: It is none, or one of a newer schema; the message says where.
    """
    schema = other_schema(data, SCHEMA)
    if schema is not None:
        raise ContractError(
            f"the contract has schema {schema}, this version reads {SCHEMA}",
            hint="upgrade stateful-pipeline, or export the model again",
        )
    try:
        found = checked(data, _CONTRACT)
        return Contract(
            inputs=_each(found, "inputs", _value),
            outputs=_each(found, "outputs", _value),
            states=_each(found, "states", _state),
            axes=_each(found, "axes", lambda item, where: Axis(**checked(item, _AXIS, where))),
        )
    except ContractError as error:
        raise ContractError(f"not a state contract: {error.message}") from error


def _each(
    found: Mapping[str, Any], key: str, read: Callable[[Any, str], _Item]
) -> tuple[_Item, ...]:
    return tuple(read(item, f"{key}.{index}") for index, item in enumerate(found[key]))


def _value(item: Any, where: str) -> Value:
    return Value(**_with_tuples(checked(item, _VALUE, where)))


def _state(item: Any, where: str) -> State:
    found = _with_tuples(checked(item, _STATE, where))
    init = _with_tuples(checked(found["init"], _INITIAL, f"{where}.init"))
    return State(**{**found, "init": Initial(**init)})


def _with_tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()}
