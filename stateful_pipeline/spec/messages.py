"""Says in a spec's own words what pydantic found wrong.

pydantic reports a location (keys, indices, and tags of unions) and an error type.  The location is
followed through the tree to a line, and through the models to the keys that would have been right.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import keypath
from stateful_pipeline.spec.faults import did_you_mean, show
from stateful_pipeline.spec.tree import Node, Part, Parts

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "path_type": "a path",
    "string_type": "a string",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than": "be more than {gt:.10g}",
    "greater_than_equal": "be at least {ge:.10g}",
    "less_than": "be less than {lt:.10g}",
    "less_than_equal": "be at most {le:.10g}",
    "too_long": "have at most {max_length} entries",
    "too_short": "have entries: at least {min_length}",
}
_KEY = "[key]"
_MARKS = (_KEY, "<word>", "<value>", "<file>")


def faults_of(error: ValidationError) -> list[ErrorDetails]:
    """Return what pydantic found wrong, once each.

    A list of which it has left out faulty entries is too short for it, as well.
    """
    return [detail for detail in error.errors(include_url=False) if not _is_echo(detail)]


def _is_echo(detail: ErrorDetails) -> bool:
    if detail["type"] != "too_short":
        return False
    least: int = (detail.get("ctx") or {})["min_length"]
    return len(detail["input"]) >= least


def explain(error: ErrorDetails, root: Node, model: type[BaseModel]) -> SpecError:
    """Return the fault that pydantic's ``error`` is, with its place in the tree ``root``.

    Args:
        error: One of :func:`faults_of`.
        root: The tree of the data that was validated.
        model: The model that it was validated by.
    """
    error = _of_literal(error)
    loc = _keys_of(error)
    parts, node = _follow(loc, root)
    kind = error["type"]
    context: Mapping[str, Any] = error.get("ctx") or {}
    if kind == "missing":
        key: Part = loc[-1]
        hint = _field_help(model, loc)
        return SpecError(
            f"missing key `{key}`", place=node.where, hint=hint, key=keypath.render((*parts, key))
        )
    name = keypath.render(parts)
    if kind == "extra_forbidden":
        known = sorted(_keys_at(model, loc[:-1]))
        at_key = node.key_place or node.where
        hint = did_you_mean(loc[-1], known, "keys")
        return SpecError(f"unknown key `{name}`", place=at_key, key=name, hint=hint)
    message, hint = _wording(kind, context, error)
    place = node.key_place if error["loc"][-1:] == (_KEY,) else None
    return SpecError(
        f"{name}: {message}" if name else message, place=place or node.where, key=name, hint=hint
    )


def keys_there(error: ErrorDetails, root: Node) -> Parts:
    """Return the keys of the tree ``root`` that lead to what ``error`` is about."""
    return _follow(error["loc"], root)[0]


def _of_literal(error: ErrorDetails) -> ErrorDetails:
    """Return an error about the key that says which model of a union is meant, as of that key."""
    if not error["type"].startswith("union_tag"):
        return error
    context = error.get("ctx") or {}
    key = context["discriminator"].strip("'")
    there = error["type"] == "union_tag_invalid"
    return {
        **error,
        "type": "literal_error" if there else "missing",
        "loc": (*error["loc"], key),
        "input": error["input"][key] if there else error["input"],
        "ctx": {"expected": context.get("expected_tags", "")},
    }


def _keys_of(error: ErrorDetails) -> Parts:
    """Return the location without what is no key in it: tags of unions, and the mark of a key.

    The last part of an unknown or a missing key is a key, whatever it looks like.
    """
    *holders, last = error["loc"] or ("",)
    keys = tuple(part for part in holders if part not in _MARKS)
    is_key = error["type"] in ("extra_forbidden", "missing") or last not in (*_MARKS, "")
    return (*keys, last) if is_key else keys


def _wording(kind: str, context: Mapping[str, Any], error: ErrorDetails) -> tuple[str, str | None]:
    """Return what was expected and found, and what to try."""
    found = show(error["input"])
    if kind == "spec":
        return str(context["message"]), context.get("hint")
    if kind == "literal_error":
        return _one_of(error, str(context["expected"]))
    if kind in _EXPECTED:
        hint = "give it a value, or remove the key" if error["input"] is None else None
        return f"expected {_EXPECTED[kind]}, found {found}", hint
    if kind in _BOUNDS:
        return f"must {_BOUNDS[kind].format(**context)}, found {found}", None
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, found {found}", None


def _one_of(error: ErrorDetails, expected: str) -> tuple[str, str | None]:
    words = [word.strip(" '") for word in expected.replace(" or ", ", ").split(", ")]
    wanted = ", ".join(words) if len(words) == 1 else f"one of {', '.join(words)}"
    hint = did_you_mean(error["input"], words, "values") if isinstance(error["input"], str) else ""
    return f"expected {wanted}, found {show(error['input'])}", hint or None


def _follow(loc: Sequence[Part], root: Node) -> tuple[Parts, Node]:
    """Return the keys of ``loc`` that the tree has, and where they lead; tags are left out."""
    parts: list[Part] = []
    node = root
    for part in loc:
        inner = node.child(part)
        if inner is not None:
            parts.append(part)
            node = inner
    return tuple(parts), node


def _unwrap(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of ``annotation``, without Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _unwrap(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for option in get_args(annotation):
            yield from _unwrap(option)
    else:
        yield annotation


def _step(annotation: Any, part: Part) -> Any:
    """Return the annotation one ``part`` deeper, or None where there is no such key."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if part == (field.alias or name):
                return field.annotation
        return None
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1]
    return arguments[0] if get_origin(annotation) is tuple else None


def _options_at(model: type[BaseModel], loc: Sequence[Part]) -> list[Any]:
    options: list[Any] = [model]
    for part in loc:
        deeper = [_step(option, part) for option in options]
        found = [inner for option in deeper if option is not None for inner in _unwrap(option)]
        options = found or [o for o in options if _is_tagged(o, part)] or options
    return options


def _is_tagged(option: Any, tag: Part) -> bool:
    """Whether a model is the one of a union that ``tag`` names."""
    fields = getattr(option, "model_fields", {}).values()
    kinds = (field.annotation for field in fields)
    return any(get_origin(kind) is Literal and get_args(kind) == (tag,) for kind in kinds)


def _models_at(model: type[BaseModel], loc: Sequence[Part]) -> Iterator[type[BaseModel]]:
    for option in _options_at(model, loc):
        if isinstance(option, type) and issubclass(option, BaseModel):
            yield option


def _keys_at(model: type[BaseModel], loc: Sequence[Part]) -> set[str]:
    keys = {
        field.alias or name
        for option in _models_at(model, loc)
        for name, field in option.model_fields.items()
    }
    return keys | {"extends"} if not loc else keys


def _field_help(model: type[BaseModel], loc: Sequence[Part]) -> str | None:
    for option in _models_at(model, loc[:-1]):
        for name, field in option.model_fields.items():
            if loc[-1] == (field.alias or name) and field.description:
                return f"`{loc[-1]}`: {field.description}"
    return None
