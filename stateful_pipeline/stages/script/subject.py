"""Prepares what a spec is about: the module, its inputs and axes, what is declared about states."""

from __future__ import annotations

import difflib
import inspect

import torch

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import ContractError, SpecError
from stateful_pipeline.model.inputs import Input, InputPlan, Recorded, Sampler, Uniform
from stateful_pipeline.model.scripted import class_name, signature
from stateful_pipeline.model.subject import KeywordCall, Subject
from stateful_pipeline.spec import InputSpec, Spec
from stateful_pipeline.stages.script.source import construct
from stateful_pipeline.stages.script.wishes import read_array, wish


def prepare(spec: Spec) -> Subject:
    """Construct the module of ``spec`` and return it with its inputs.

    Raises:
        SourceError: The module cannot be imported, constructed or loaded.
        SpecError: The inputs do not fit its entry point, or a data file cannot be read.
    """
    module = construct(spec)
    axes = tuple(
        Axis(name, axis.min, axis.opt, axis.max) for name, axis in spec.dynamic_axes.items()
    )
    constants = {name: value.value for name, value in spec.inputs.items() if value.is_fixed}
    _check_parameters(spec, module)
    inputs = [
        _input(spec, name, value) for name, value in spec.inputs.items() if not value.is_fixed
    ]
    wishes = {name: wish(name, state, spec.place) for name, state in spec.states.items()}
    call = KeywordCall(constants, spec.source.method)
    return Subject(module, InputPlan(inputs), axes, call, wishes)


def _check_parameters(spec: Spec, module: torch.nn.Module) -> None:
    """Check the names of inputs against the entry point's parameters."""
    parameters = signature(module, spec.source.method).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    names = [
        n for n, p in parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)
    ]
    for name in spec.inputs:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            raise SpecError(
                f"inputs.{name}: {spec.source.method} of {class_name(module)} takes no '{name}'",
                place=spec.place(f"inputs.{name}"),
                key=f"inputs.{name}",
                hint=f"did you mean '{close[0]}'?" if close else f"it takes: {', '.join(names)}",
            )
    for name in names:
        if name not in spec.inputs and parameters[name].default is inspect.Parameter.empty:
            raise SpecError(
                f"inputs: {spec.source.method} of {class_name(module)} needs '{name}' too",
                place=spec.place("inputs"),
                key="inputs",
                hint=f"add `{name}: {{shape: [...]}}`, or `{name}: {{value: ...}}` to fix it",
            )


def _input(spec: Spec, name: str, value: InputSpec) -> Input:
    shape = tuple(value.shape or ())
    dtype = getattr(torch, value.dtype)
    sampler: Sampler = Uniform(value.low, value.high)
    if value.data is not None:
        key = f"inputs.{name}.data"
        array = read_array(str(value.data.npz), value.data.key, key, spec.place(key))
        try:
            sampler = Recorded(array, shape)
        except ContractError as error:
            raise SpecError(f"{key}: {error.message}", place=spec.place(key), key=key) from error
    return Input(name, dtype, shape, sampler)
