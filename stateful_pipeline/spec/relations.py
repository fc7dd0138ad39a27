"""Rules that tie one key of a spec to another: one source, and every axis declared.

They read plain data, as far as it makes sense, so that they can speak in the same report as faults
of single values; a value of a wrong type is somebody else's to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stateful_pipeline.spec.dims import axes_in, is_axis
from stateful_pipeline.spec.faults import did_you_mean
from stateful_pipeline.spec.source import CONSTRUCTED, SOURCES
from stateful_pipeline.spec.tree import Parts

_CONSTRUCTION: dict[str, Any] = {
    "args": [], "kwargs": {}, "weights": None, "method": "forward", "reset": None, "seed": 0,
}  # fmt: skip
"""Keys of ``source`` that are about constructing a model, and what says nothing there."""

_LOADED = {"torchscript": ("weights", "method", "reset")}
"""Those that make sense for what is loaded from a file, by the kind of source."""


_OF_PROVIDERS = (
    ("gpu", 0, ("cuda", "tensorrt")),
    ("tf32", False, ("cuda", "tensorrt")),
    ("profiles", None, ("tensorrt",)),
)
"""Keys of a target of ONNX Runtime, what says nothing there, and the providers they are for."""


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold: where, what, and what to try."""

    parts: Parts
    message: str
    hint: str | None = None


def broken_relations(data: Any) -> list[Broken]:
    """Return the rules that ``data``, a spec in plain form, breaks."""
    if not isinstance(data, dict):
        return []
    return [
        *_source(data),
        *_classes(data),
        *_sizes(data),
        *_input_axes(data),
        *_state_axes(data),
        *_attributes(data),
        *_pairs(data),
        *_targets(data),
    ]


def _mapping(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _source(data: Mapping[str, Any]) -> Iterator[Broken]:
    source = data.get("source")
    if not isinstance(source, dict):
        return
    given = [key for key in source if key in SOURCES and source[key] is not None]
    if not given:
        yield Broken(
            ("source",),
            f"names no model: exactly one of {', '.join(SOURCES)} is needed",
            "`python: package.module:Class` or `file: path.py:Class`",
        )
    for second in given[1:]:
        yield Broken(
            ("source", second),
            f"a second source, beside `{given[0]}`; a spec has exactly one",
            f"remove `{given[0]}` or `{second}`",
        )
    if len(given) == 1 and given[0] not in CONSTRUCTED:
        for key, default in _CONSTRUCTION.items():
            if key in _LOADED.get(given[0], ()):
                continue
            if source.get(key, default) not in (default, ()):
                yield Broken(
                    ("source", key),
                    f"`{key}` means nothing for a source of `{given[0]}`",
                    _who_takes(key),
                )


def _classes(data: Mapping[str, Any]) -> Iterator[Broken]:
    for name, form in _mapping(data, "classes").items():
        if isinstance(form, dict) and sum(form.get(key) is not None for key in CONSTRUCTED) != 1:
            yield Broken(
                ("classes", name),
                "names no explicit form: exactly one of python, file is needed",
                "`python: package.module:Class` or `file: path.py:Class`",
            )


def _who_takes(key: str) -> str:
    loaded = [kind for kind, keys in _LOADED.items() if key in keys]
    constructed = "it is for a model that is constructed: `python` or `file`"
    return f"{constructed}; or for `{loaded[0]}`" if loaded else constructed


def _sizes(data: Mapping[str, Any]) -> Iterator[Broken]:
    for name, axis in _mapping(data, "dynamic_axes").items():
        if not isinstance(axis, dict):
            continue
        sizes = {key: axis.get(key) for key in ("min", "opt", "max")}
        if sizes["min"] is None:
            sizes["min"] = 1
        for low, high in (("min", "opt"), ("opt", "max")):
            small, large = sizes[low], sizes[high]
            if type(small) is int and type(large) is int and small > large:
                key = low if low in axis else high
                yield Broken(
                    ("dynamic_axes", name, key),
                    f"`{low}: {small}` is more than `{high}: {large}`",
                    "min <= opt <= max",
                )


def _dims(shape: Any) -> Iterator[tuple[int, str]]:
    if isinstance(shape, list | tuple):
        yield from ((i, dim) for i, dim in enumerate(shape) if isinstance(dim, str))


def _undeclared(parts: Parts, axis: str, declared: Mapping[str, Any]) -> Broken:
    advice = f"add `{axis}: {{min: 1, opt: 4, max: 16}}` under `dynamic_axes`"
    if declared:
        near = did_you_mean(axis, declared, "declared axes")
        advice = f"{near.rstrip('?')}? Or {advice}" if near.startswith("did") else advice
    return Broken(parts, f"axis '{axis}' is not declared in `dynamic_axes`", advice)


def _input_axes(data: Mapping[str, Any]) -> Iterator[Broken]:
    declared = _mapping(data, "dynamic_axes")
    for name, spec in _mapping(data, "inputs").items():
        shape = spec.get("shape") if isinstance(spec, dict) else None
        for index, dim in _dims(shape):
            if is_axis(dim) and dim not in declared:
                yield _undeclared(("inputs", name, "shape", index), dim, declared)


def _state_axes(data: Mapping[str, Any]) -> Iterator[Broken]:
    declared = _mapping(data, "dynamic_axes")
    states = _states(data)
    known = declared.keys() | _growing(data)
    for name, state in states.items():
        for key in ("shape", "out_shape"):
            for index, dim in _dims(state.get(key)):
                for axis in sorted(axes_in(dim) - known):
                    yield _undeclared(("states", name, key, index), axis, declared)


def _states(data: Mapping[str, Any]) -> dict[str, Any]:
    states = _mapping(data, "states")
    return {name: state for name, state in states.items() if isinstance(state, dict)}


def _growing(data: Mapping[str, Any]) -> set[str]:
    """Return the axes that states which grow bring along."""
    return {
        dim
        for state in _states(data).values()
        if state.get("out_shape") is not None
        for _, dim in _dims(state.get("shape"))
    }


def _attributes(data: Mapping[str, Any]) -> Iterator[Broken]:
    states, source = _mapping(data, "states"), _mapping(data, "source")
    for name in _mapping(data, "attributes"):
        if name in states:
            yield Broken(
                ("attributes", name),
                f"'{name}' is fixed here and declared under `states` too",
                "a fixed attribute is no state: remove one of the two",
            )
        for kind in ("exported_program", "onnx"):
            if source.get(kind) is not None:
                yield Broken(
                    ("attributes", name),
                    f"a source of `{kind}` has no attributes but tensors",
                    "set it in the module before that is exported: branches on it have folded",
                )


def _pairs(data: Mapping[str, Any]) -> Iterator[Broken]:
    explicit = _mapping(data, "source").get("onnx") is not None
    if explicit and _mapping(data, "script").get("frontend", "auto") != "auto":
        yield Broken(
            ("script", "frontend"), "a source of `onnx` is captured already", "leave it out"
        )
    for name, state in _mapping(data, "states").items():
        if not isinstance(state, dict):
            continue
        for key in ("input", "output"):
            if explicit and state.get(key) is None:
                yield Broken(
                    ("states", name),
                    f"missing key `{key}`: a source of `onnx` has states in pairs",
                    "`{input: h_in, output: h_out}`, the names in the file",
                )
            if not explicit and state.get(key) is not None:
                yield Broken(
                    ("states", name, key),
                    f"`{key}` is for a source of `onnx`: other models get their names here",
                )


def _targets(data: Mapping[str, Any]) -> Iterator[Broken]:
    if data.get("targets") == {}:
        yield Broken(
            ("targets",),
            "names no target",
            "remove `targets` for ONNX Runtime on the CPU, or add one",
        )
    for name, target in _mapping(data, "targets").items():
        if isinstance(target, dict):
            yield from _gpu_keys(("targets", name), target)
            yield from _half_states(("targets", name), target)
            yield from _profile_axes(("targets", name), target, data)


def _gpu_keys(parts: Parts, target: Mapping[str, Any]) -> Iterator[Broken]:
    """Refuse what says something of a GPU, or of engines, for a provider that has none."""
    if target.get("runtime") != "onnxruntime":
        return
    provider = target.get("provider", "cpu")
    for key, default, takers in _OF_PROVIDERS:
        if target.get(key, default) != default and provider not in takers:
            yield Broken(
                (*parts, key),
                f"`{key}` means nothing for the provider {provider}",
                f"it is for {' and '.join(takers)}",
            )


def _half_states(parts: Parts, target: Mapping[str, Any]) -> Iterator[Broken]:
    has_it = target.get("runtime") in ("onnxruntime", "tensorrt", "tensorrt_rtx")
    if has_it and target.get("half_states") and target.get("precision", "fp32") == "fp32":
        yield Broken(
            (*parts, "half_states"),
            "`half_states` means nothing where `precision` is fp32",
            "`precision: fp16` or `bf16`",
        )


def _profile_axes(
    parts: Parts, target: Mapping[str, Any], data: Mapping[str, Any]
) -> Iterator[Broken]:
    """Refuse a slip in the name of an axis; others may be of states that are found to grow."""
    declared = _mapping(data, "dynamic_axes")
    known = declared.keys() | _growing(data)
    for name, profile in _mapping(target, "profiles").items():
        for axis in profile if isinstance(profile, dict) else ():
            near = did_you_mean(axis, declared, "declared axes").startswith("did")
            if axis not in known and near:
                yield _undeclared((*parts, "profiles", name, axis), axis, declared)
