"""Prepares what a spec is about: the module, its inputs and axes, what is declared about states."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import replace
from typing import Any

import torch

from stateful_pipeline.contract import Axis
from stateful_pipeline.errors import ContractError, SpecError
from stateful_pipeline.model.explicit_onnx import ExplicitOnnx
from stateful_pipeline.model.fixed import fix_attribute
from stateful_pipeline.model.inputs import Input, InputPlan, Recorded, Sampler, Uniform
from stateful_pipeline.model.scripted import class_name, is_scripted, signature
from stateful_pipeline.model.scripted_types import fitted_argument
from stateful_pipeline.model.subject import KeywordCall, Subject
from stateful_pipeline.model.torch_internals import positional_names
from stateful_pipeline.spec import InputSpec, Spec
from stateful_pipeline.spec.faults import show
from stateful_pipeline.stages.script.explicit_source import state_shape
from stateful_pipeline.stages.script.source import construct
from stateful_pipeline.stages.script.wishes import read_array, wish


def prepare(spec: Spec) -> Subject:
    """Construct the module of ``spec`` and return it with its inputs.

    Raises:
        SourceError: The module cannot be imported, constructed or loaded.
        SpecError: The inputs do not fit its entry point, an attribute that is fixed is not there
            or holds something else, or a data file cannot be read.
    """
    module = construct(spec)
    fixed = _fix_attributes(spec, module)
    axes = tuple(
        Axis(name, axis.min, axis.opt, axis.max) for name, axis in spec.dynamic_axes.items()
    )
    _check_parameters(spec, module)
    constants = {
        name: _constant(spec, module, name) for name, value in spec.inputs.items() if value.is_fixed
    }
    inputs = [
        _input(spec, name, value) for name, value in spec.inputs.items() if not value.is_fixed
    ]
    wishes = {name: wish(name, state, spec.place) for name, state in spec.states.items()}
    if isinstance(module, ExplicitOnnx):  # what the file declares need not be found
        wishes = {
            name: replace(known, shape=state_shape(spec, module, name))
            for name, known in wishes.items()
        }
    call = KeywordCall(constants, spec.source.method, fixed, _positional(spec, module))
    return Subject(module, InputPlan(inputs), axes, call, wishes)


def _fix_attributes(spec: Spec, module: torch.nn.Module) -> dict[str, Any]:
    """Set the attributes that are fixed, which comes after weights and ``reset``."""
    fixed = {}
    for path, attribute in spec.attributes.items():
        try:
            fixed[path] = fix_attribute(module, path, attribute.value)
        except SpecError as error:
            error.place = spec.place(("attributes", path))
            raise
    return fixed


def _check_parameters(spec: Spec, module: torch.nn.Module) -> None:
    """Check the names of inputs against the entry point's parameters."""
    parameters = signature(module, spec.source.method).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    names = [n for n, p in parameters.items() if p.kind is not p.VAR_POSITIONAL]
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


def _positional(spec: Spec, module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the arguments that the entry point takes by position alone."""
    if isinstance(module, torch.fx.GraphModule) and spec.source.exported_program is not None:
        return positional_names(module)
    parameters = signature(module, spec.source.method).parameters
    return tuple(
        n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY and n in spec.inputs
    )


def _constant(spec: Spec, module: torch.nn.Module, name: str) -> Any:
    """Return what the argument ``name`` is fixed to, of the type that compiled code takes."""
    value, method = spec.inputs[name].value, spec.source.method
    if not is_scripted(module):
        return value
    try:
        return fitted_argument(module, method, name, value)
    except TypeError as error:
        key = f"inputs.{name}"
        raise SpecError(
            f"{key}: {method} of {class_name(module)} takes a {error} there, "
            f"which {show(value)} is not",
            place=spec.place(key),
            key=key,
            hint=f"`{name}: {{shape: [...], dtype: ...}}` for a tensor"
            if str(error) == "Tensor"
            else None,
        ) from error


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
