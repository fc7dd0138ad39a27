"""``export_onnx``: a module in Python to an explicit-state ONNX file, without a spec."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from stateful_pipeline.contract import Axis, Contract
from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import Place, SpecError, TargetError
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.discover import Discovery
from stateful_pipeline.model.frontends import (
    FRONTENDS,
    capture_with,
    first_that_takes,
)
from stateful_pipeline.model.holders import leaves
from stateful_pipeline.model.inputs import Input, InputPlan, Resampled
from stateful_pipeline.model.reference import torch_threads
from stateful_pipeline.model.schedule import schedules
from stateful_pipeline.model.scripted import signature
from stateful_pipeline.model.settings import settings_kept
from stateful_pipeline.model.settle import Wish
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.model.subject import Argument, PositionalCall, Subject
from stateful_pipeline.spec import MAX_OPSET, MIN_OPSET, is_axis, parse_states
from stateful_pipeline.stages.export.export import export_program
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.rewrite import rewrite
from stateful_pipeline.stages.script.wishes import wish
from stateful_pipeline.stages.verify.draft import check_draft

DEFAULT_OPSET = 20
CHECKED_STEPS = 4
CHECKED_CORNERS = 3


def export_onnx(
    module: nn.Module | ExportedProgram,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    states: Mapping[str, Mapping[str, Any]] | None = None,
    frontend: str = "auto",
    opset: int | None = None,
    runtime: str | None = "onnxruntime",
) -> Contract:
    """Write ``module`` as an ONNX model whose states are inputs and outputs.

    State ``h`` becomes graph input ``h_in`` and graph output ``h_out``; the contract inside the
    file says so, and :class:`~stateful_pipeline.runtime.StatefulRunner` needs nothing else.

    Before anything is put in place, the rewritten program and then the ONNX model, in a
    ``StatefulRunner``, are compared with eager PyTorch over free-running steps, at several sizes of
    the dynamic axes and with chunks of changing size.  A dimension of an output whose size depends
    on values (``nonzero``, ``unique``) gets an axis of its own in the contract, as ``output_0``.

    Args:
        module: The module, in eval mode; it is left exactly as it was.  Or a ``ScriptModule``, or
            an ``ExportedProgram``.
        args: Example arguments.  Tensors become inputs; other values are fixed as constants.
        path: The file to write.  Replaced only when everything has been checked.
        kwargs: Example arguments by keyword.
        input_names: Names of the inputs; the parameter names of ``forward`` if not given.
        output_names: Names of the outputs; ``output``, ``output_0`` .. or a dict's keys if not
            given.
        dynamic_axes: Input name to dimension to axis name, ``{"x": {0: "batch"}}``.  A state
            may be named too; the axes of states that are not named are found.
        states: What is known of states, by name, in the spec's form:
            ``{"h": {"shape": [2, "batch", 128], "init": "zeros"}}``.
        frontend: ``export`` (``torch.export``), ``torchscript`` (``torch.jit.script``, which keeps
            branches and loops on data), or ``auto``: the first of them that takes the module.
        opset: The ONNX opset; 20 if not given.
        runtime: The runtime to lower the file for; None keeps it portable.

    Returns:
        The contract that the file carries.

    Raises:
        StateError: A state would be lost; with attribute, file and line where they are known.
        StageError: A stage failed: the module cannot be captured, has no ONNX form, or what the
            exporter wrote is not equal to eager PyTorch.
        SpecError: The arguments do not fit together.
    """
    _check_options(frontend, opset, runtime)
    if isinstance(module, ExportedProgram):
        module = module.module()
    examples = (*args, *(kwargs or {}).values())
    plan, call = _plan(module, tuple(args), kwargs or {}, input_names, dynamic_axes or {})
    axes = _axes(plan, examples)
    wishes = _wishes(states or {}, dynamic_axes or {}, module, plan)
    subject = Subject(module, plan, axes, call, wishes)
    # A few steps at small sizes: with more threads, small operators mostly wait for each other.
    with settings_kept(), torch_threads(1):
        discovery = subject.discover()

        def attempt(name: str) -> tuple[Contract, tuple[Place, ...]]:
            return _export(
                name, subject, discovery, Path(path), output_names, opset or DEFAULT_OPSET, runtime
            )

        contract, raises = first_that_takes(frontend, module, attempt)[1]
        graphs = subject.carried_graphs()
    for place in raises:
        warnings.warn(f"{place} may raise; an engine goes on there", stacklevel=2)
    for graph in graphs:
        warnings.warn(str(graph), stacklevel=2)
    return contract


def _export(
    frontend: str,
    subject: Subject,
    discovery: Discovery,
    path: Path,
    output_names: Sequence[str] | None,
    opset: int,
    runtime: str | None,
) -> tuple[Contract, tuple[Place, ...]]:
    """Export ``subject`` with one front end; return the lines that may raise, too."""
    plan, axes = subject.plan, subject.axes
    fixed = [d for value in plan.inputs for d in value.shape if isinstance(d, int)]
    hints = probe_sizes(axes, fixed)
    captured = capture_with(frontend, discovery.reference, plan, hints)
    names = captured.outputs
    if output_names is not None:
        names = _checked_outputs(output_names, names)
    program, discovery = rewrite(captured, subject, discovery, hints)
    reference = discovery.reference
    sizes = corner_sizes(axes)[:CHECKED_CORNERS]
    check_equal(program, reference, plan, sizes[:2], CHECKED_STEPS)
    program = program.with_outputs(names)
    rollouts = schedules(axes, reference.states, CHECKED_CORNERS)
    exported = export_program(
        program,
        reference,
        plan,
        path,
        opset=opset,
        sizes=sizes,
        runtime=runtime,
        check=lambda draft: check_draft(draft, program, reference, plan, rollouts),
    )
    return exported.contract, program.raises


def _check_options(frontend: str, opset: int | None, runtime: str | None) -> None:
    if frontend not in ("auto", *FRONTENDS):
        raise SpecError(f"unknown frontend '{frontend}'", hint="'auto', 'export' or 'torchscript'")
    if opset is not None and not MIN_OPSET <= opset <= MAX_OPSET:
        raise SpecError(f"opset {opset} is out of range", hint=f"{MIN_OPSET} to {MAX_OPSET}")
    if runtime not in ("onnxruntime", None):
        raise TargetError(f"runtime '{runtime}' is not supported yet", hint="'onnxruntime' or None")


def _plan(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    input_names: Sequence[str] | None,
    dynamic_axes: Mapping[str, Mapping[int, str]],
) -> tuple[InputPlan, PositionalCall]:
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs.items())
    for key, value in given.items():
        if isinstance(value, list | tuple | dict):
            raise SpecError(
                f"argument {key} is a {type(value).__name__}: nested arguments are "
                "not supported yet",
                hint="wrap the module so that forward takes tensors one by one; arguments by "
                "keyword go into `kwargs`",
            )
    tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor)}
    names = dict(zip(tensors, _names(module, args, kwargs, tensors, input_names), strict=True))
    inputs = [
        Input(
            name, tensors[key].dtype, _named(name, tensors[key].shape, dynamic_axes),
            Resampled(tensors[key]),
        )
        for key, name in names.items()
    ]  # fmt: skip
    constants = {i: value for i, value in enumerate(args) if i not in names}
    keywords = {key: Argument(names.get(key), value) for key, value in kwargs.items()}
    by_position = tuple(name for key, name in names.items() if isinstance(key, int))
    return InputPlan(inputs), PositionalCall(by_position, constants, keywords)


def _names(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tensors: Mapping[int | str, torch.Tensor],
    input_names: Sequence[str] | None,
) -> tuple[str, ...]:
    if input_names is not None:
        if len(input_names) != len(tensors) or len(set(input_names)) != len(input_names):
            raise SpecError(
                f"input_names has {len(input_names)} names for {len(tensors)} tensors",
                hint="one distinct name for each tensor in args and kwargs",
            )
        return tuple(input_names)
    parameters = signature(module)
    try:
        bound = parameters.bind(*args, **kwargs)
    except TypeError as error:
        raise SpecError(f"args do not fit forward{parameters}: {error}") from error
    names: list[str] = []
    for name, value in bound.arguments.items():
        if parameters.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{name}_{index}" for index in range(len(value))]
        elif name not in kwargs:
            names.append(name)
    return tuple(key if isinstance(key, str) else names[key] for key in tensors)


def _named(name: str, sizes: Sequence[int], dynamic_axes: Mapping[str, Mapping[int, str]]) -> Shape:
    shape: list[Dim] = list(sizes)
    for index, axis in dynamic_axes.get(name, {}).items():
        if not isinstance(index, int) or not -len(shape) <= index < len(shape):
            raise SpecError(f"dynamic_axes['{name}']: it has no dimension {index}")
        if not isinstance(axis, str) or not is_axis(axis):
            raise SpecError(
                f"dynamic_axes['{name}'][{index}]: {axis!r} cannot name an axis",
                hint="a word such as 'batch'",
            )
        shape[index] = axis
    return tuple(shape)


def _axes(plan: InputPlan, args: tuple[Any, ...]) -> tuple[Axis, ...]:
    """Return the axes of the inputs; the example's size is the usual one."""
    examples = [value for value in args if isinstance(value, torch.Tensor)]
    usual: dict[str, int] = {}
    for value, example in zip(plan.inputs, examples, strict=True):
        for dim, size in zip(value.shape, example.shape, strict=True):
            if isinstance(dim, str) and usual.setdefault(dim, size) != size:
                raise SpecError(
                    f"axis '{dim}' is {usual[dim]} in one example argument and {size} in "
                    f"'{value.name}'"
                )
    return tuple(Axis(name, min=1, opt=max(size, 1)) for name, size in usual.items())


def _wishes(
    states: Mapping[str, Mapping[str, Any]],
    dynamic_axes: Mapping[str, Mapping[int, str]],
    module: nn.Module,
    plan: InputPlan,
) -> dict[str, Wish]:
    wishes = {n: wish(n, declared, _nowhere) for n, declared in parse_states(states).items()}
    inputs = {value.name for value in plan.inputs}
    tensors = {
        leaf.path: leaf.value for leaf in leaves(module) if isinstance(leaf.value, torch.Tensor)
    }
    for key in dynamic_axes:
        if key in inputs or key.startswith("output"):
            continue
        name = key if key in tensors else key.removesuffix("_in").removesuffix("_out")
        if name not in tensors:
            known = ", ".join([*inputs, *tensors][:8])
            raise SpecError(
                f"dynamic_axes['{key}'] is neither an input nor a state", hint=f"known: {known}"
            )
        if name not in wishes:
            wishes[name] = Wish(_named(key, tensors[name].shape, dynamic_axes))
    return wishes


def _nowhere(key: str) -> None:
    """Return no place: there is no file."""
    del key


def _checked_outputs(names: Sequence[str], outputs: Sequence[str]) -> tuple[str, ...]:
    if len(names) != len(outputs) or len(set(names)) != len(names):
        raise SpecError(
            f"output_names has {len(names)} names; forward returns {len(outputs)} tensors",
            hint=f"their names would be {', '.join(outputs)}",
        )
    return tuple(names)
