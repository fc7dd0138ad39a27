"""``source: {onnx: ...}``: a file whose states are explicit already, paired under ``states``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from stateful_pipeline.dimensions import Dim, Shape
from stateful_pipeline.errors import SourceError, SpecError
from stateful_pipeline.model.explicit_onnx import ExplicitOnnx, OnnxFile, Pair, Slot
from stateful_pipeline.spec import InputSpec, Spec, StateSpec
from stateful_pipeline.spec.faults import did_you_mean


def load_explicit(spec: Spec, path: Path) -> ExplicitOnnx:
    """Return the ONNX file of ``spec`` as a stateful module, its states zeros.

    Raises:
        SourceError: ONNX Runtime cannot load it.
        SpecError: Inputs or states of the spec do not fit it.
    """
    try:
        file = OnnxFile(path)
    except Exception as error:  # ONNX Runtime's exceptions share no base
        place = spec.place(spec.source.key)
        first = str(error).partition("\n")[0]
        message = f"{spec.source.key}: {path}: ONNX Runtime cannot load it: {first}"
        raise SourceError(message, place=place, key=spec.source.key) from error
    pairs, initial = [], {}
    for name, state in spec.states.items():
        pair = Pair(name, str(state.input), str(state.output))
        _check_state(spec, file, pair)
        shape = _shape(spec, file, pair, state)
        sizes = [d if isinstance(d, int) else 1 if d in spec.dynamic_axes else 0 for d in shape]
        dtype = getattr(torch, str(file.inputs[pair.input].dtype))
        pairs.append(pair)
        initial[name] = torch.zeros(sizes, dtype=dtype)
    _check_inputs(spec, file, {pair.input for pair in pairs})
    return _module(spec, file, pairs, initial)


def _module(
    spec: Spec, file: OnnxFile, pairs: list[Pair], initial: dict[str, torch.Tensor]
) -> ExplicitOnnx:
    try:
        return ExplicitOnnx(file, pairs, initial).eval()
    except (KeyError, AttributeError) as error:
        message = f"one of the names cannot be that of a state: {error}"
        raise _error(spec, ("states",), message, "choose another name for it") from error


def state_shape(spec: Spec, module: ExplicitOnnx, name: str) -> Shape:
    """Return the shape of a state of the file: as declared, else as the file has it."""
    pair = next(pair for pair in module.onnx_pairs if pair.name == name)
    return _shape(spec, module.onnx_file, pair, spec.states[name])


def _error(spec: Spec, parts: tuple[str, ...], message: str, hint: str | None = None) -> SpecError:
    key = ".".join(parts)
    return SpecError(f"{key}: {message}", place=spec.place(parts), key=key, hint=hint)


def _check_state(spec: Spec, file: OnnxFile, pair: Pair) -> None:
    for key, name, known in (
        ("input", pair.input, file.inputs),
        ("output", pair.output, file.outputs),
    ):
        if name not in known:
            message = f"{file.path.name} has no {key} '{name}'"
            hint = did_you_mean(name, known, f"{key}s")
            raise _error(spec, ("states", pair.name, key), message, hint)
    before, after = file.inputs[pair.input], file.outputs[pair.output]
    declared = spec.states[pair.name].dtype
    if before.dtype is None or before.dtype != after.dtype:
        message = f"'{pair.input}' and '{pair.output}' have no element type in common"
        raise _error(spec, ("states", pair.name), message)
    if declared is not None and declared != before.dtype:
        message = f"is declared as {declared}, the file has {before.dtype}"
        raise _error(spec, ("states", pair.name, "dtype"), message)
    others = [s for n, s in spec.states.items() if n != pair.name]
    for key, name in (("input", pair.input), ("output", pair.output)):
        if any(getattr(other, key) == name for other in others):
            raise _error(spec, ("states", pair.name, key), f"'{name}' is another state's too")


def _shape(spec: Spec, file: OnnxFile, pair: Pair, state: StateSpec) -> Shape:
    slot = file.inputs[pair.input]
    if state.shape is not None:
        _check_shape(spec, ("states", pair.name, "shape"), state.shape, slot)
        return tuple(state.shape)
    dims: list[Dim] = []
    for index, dim in enumerate(slot.shape):
        if dim is None or (isinstance(dim, str) and dim not in spec.dynamic_axes):
            called = "has no name" if dim is None else f"is called '{dim}'"
            raise _error(
                spec,
                ("states", pair.name),
                f"dimension {index} of '{pair.input}' {called} in the file, which is none of the "
                "spec's dynamic axes",
                "declare its shape: `shape: [2, batch, 128]`",
            )
        dims.append(dim)
    return tuple(dims)


def _check_shape(spec: Spec, parts: tuple[str, ...], shape: Iterable[Dim], slot: Slot) -> None:
    dims = list(shape)
    fits = len(dims) == len(slot.shape) and all(
        not isinstance(there, int) or dim == there
        for dim, there in zip(dims, slot.shape, strict=True)
    )
    if not fits:
        text = ", ".join("?" if dim is None else str(dim) for dim in slot.shape)
        raise _error(spec, parts, f"the file has [{text}] there")


def _check_inputs(spec: Spec, file: OnnxFile, states: set[str]) -> None:
    free = [name for name in file.inputs if name not in states]
    for name, value in spec.inputs.items():
        if name not in free:
            hint = did_you_mean(name, free, "inputs")
            raise _error(spec, ("inputs", name), f"{file.path.name} takes no '{name}'", hint)
        _check_input(spec, name, value, file.inputs[name])
    for name in free:
        if name not in spec.inputs:
            raise _error(
                spec,
                ("inputs",),
                f"{file.path.name} needs '{name}' too",
                f"add `{name}: {{shape: [...]}}`, or pair it with an output under `states`",
            )


def _check_input(spec: Spec, name: str, value: InputSpec, slot: Slot) -> None:
    if slot.dtype is None:
        raise _error(spec, ("inputs", name), "it has an element type that is not supported")
    if value.is_fixed:
        return
    if value.dtype != slot.dtype:
        raise _error(
            spec, ("inputs", name, "dtype"), f"is {value.dtype}, the file takes {slot.dtype}"
        )
    _check_shape(spec, ("inputs", name, "shape"), value.shape or (), slot)
