"""Builds the spec's JSON Schema, by which editors complete and explain keys, from the models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stateful_pipeline.spec.model import Spec
from stateful_pipeline.spec.source import SOURCES
from stateful_pipeline.spec.tree import Parts
from stateful_pipeline.spec.unsupported import KEYS

_EXTENDS = {
    "type": "string",
    "description": "A spec to start from, relative to this file: deep merge, null deletes.",
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a spec.

    What the spec refuses as not supported yet, the schema refuses too.  A file that `extends`
    another may leave out what that one has, so nothing is required of it at the top.
    """
    schema = Spec.model_json_schema(by_alias=True)
    required = schema.pop("required")
    schema["properties"] = {"extends": _EXTENDS, **schema["properties"]}
    one_source = {"oneOf": [{"required": [name]} for name in SOURCES]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A spec of stateful-pipeline",
        "if": {"required": ["extends"]},
        "else": {"required": required, "properties": {"source": one_source}},
    }
    _refuse_unsupported(schema)
    _tidy(schema)
    return schema


def _refuse_unsupported(schema: dict[str, Any]) -> None:
    for pattern in KEYS:
        for properties, key in _properties(schema, pattern):
            text = properties[key].get("description", "")
            properties[key] = {"not": {}, "description": f"Not supported yet. {text}".strip()}


def _tidy(node: Any) -> None:
    """Drop titles that only repeat keys; refuse keys that match no pattern."""
    if isinstance(node, list):
        for item in node:
            _tidy(item)
    if not isinstance(node, dict):
        return
    if "patternProperties" in node:
        node["additionalProperties"] = False
    for key, inner in node.items():
        if isinstance(inner, dict) and key != "properties" and "description" in inner:
            inner.pop("title", None)
        if key == "properties":
            for entry in inner.values():
                entry.pop("title", None)
        _tidy(inner)


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node


def _properties(schema: dict[str, Any], pattern: Parts) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the ``properties`` that define the last key of ``pattern``, and that key."""
    nodes = [schema]
    for part in pattern[:-1]:
        inner = [found for node in nodes for found in _inner(node, str(part))]
        nodes = [_resolve(schema, one) for found in inner for one in found.get("oneOf", [found])]
    key = str(pattern[-1])
    for node in nodes:
        if key in node.get("properties", {}):
            yield node["properties"], key


def _inner(node: dict[str, Any], part: str) -> Iterator[dict[str, Any]]:
    if part == "*":
        yield from node.get("patternProperties", {}).values()
        if isinstance(node.get("additionalProperties"), dict):
            yield node["additionalProperties"]
    elif part in node.get("properties", {}):
        yield node["properties"][part]
