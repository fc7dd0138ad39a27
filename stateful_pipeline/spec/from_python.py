"""The ``states`` of a spec, given as a Python mapping instead of in a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stateful_pipeline.errors import Place
from stateful_pipeline.spec.base import SpecModel, StateName
from stateful_pipeline.spec.faults import raise_together
from stateful_pipeline.spec.messages import explain, faults_of
from stateful_pipeline.spec.states import StateSpec
from stateful_pipeline.spec.tree import Node


class _Holder(SpecModel):
    states: dict[StateName, StateSpec]


def parse_states(states: Mapping[str, Any]) -> dict[str, StateSpec]:
    """Return ``states``, in the form of the spec's key of that name, as models.

    Args:
        states: State name to ``{shape, out_shape, dtype, init}`` or ``{ignore, reason}``, or to a
            :class:`StateSpec`.  Relative paths are relative to the working directory.

    Raises:
        SpecError: Anything is wrong with them; there is no place, since no file holds them.
    """
    data = {"states": {name: _plain(state) for name, state in states.items()}}
    try:
        return _Holder.model_validate(data).states
    except ValidationError as error:
        tree = _node(data)
        faults = [explain(detail, tree, _Holder) for detail in faults_of(error)]
        for fault in faults:
            fault.place = None
        raise_together(faults, "")


def _plain(value: Any) -> Any:
    if isinstance(value, StateSpec):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _node(value: Any) -> Node:
    place = Place("states")
    if isinstance(value, dict):
        return Node({key: _node(item) for key, item in value.items()}, place, Path())
    if isinstance(value, list):
        return Node([_node(item) for item in value], place, Path())
    return Node(value, place, Path())
