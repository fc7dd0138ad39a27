"""What decides whether an operator can be run: its name, its version and the dtypes it meets.

ONNX describes the dtypes of an operator by *parameters*: ``Where(bool, T, T) -> T`` has one,
``Cast(T1) -> T2`` two.  A signature says which dtype each of them has at one node.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_ir as ir

ATTRIBUTES = {
    "ConstantOfShape": "value",
    **dict.fromkeys(("Bernoulli", "EyeLike", "Multinomial", "RandomNormalLike"), "dtype"),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "RandomUniformLike"), "dtype"),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), "output_datatype"),
}
"""Operators whose results have a dtype that no input has, to the attribute that says which."""


@dataclass(frozen=True)
class Signature:
    """An operator at one node.

    Attributes:
        domain: The operator's domain.
        operator: Its name.
        version: The opset that defined this form of it.
        reduction: What a scatter does with elements that are there: ``none``, ``add`` and so on.
        dtypes: The dtype of each parameter that can be chosen, by the parameter's name.
    """

    domain: str
    operator: str
    version: int
    reduction: str
    dtypes: tuple[tuple[str, ir.DataType], ...]

    def with_dtypes(self, dtypes: Mapping[str, ir.DataType]) -> Signature:
        """Return the same operator at other dtypes."""
        return replace(self, dtypes=tuple((name, dtypes[name]) for name, _ in self.dtypes))


def signature_of(node: ir.Node, opsets: Mapping[str, int]) -> Signature | None:
    """Return the signature of ``node``.

    None for what ONNX does not define, for control flow, and where values of one parameter have
    two dtypes or the dtype of one is not known.

    Args:
        node: The node.
        opsets: The opset of each domain.
    """
    schema = schema_of(node.domain, node.op_type, opsets.get(node.domain, 0))
    if schema is None:
        return None
    dtypes: dict[str, ir.DataType] = {}
    taken, made = input_parameters(node, schema), output_parameters(node, schema)
    if node.op_type not in ATTRIBUTES:
        made = [name if name in taken else None for name in made]
    for name, value in zip((*taken, *made), (*node.inputs, *node.outputs), strict=True):
        if name is None or value is None or not isinstance(value.type, ir.TensorType | None):
            continue
        if value.dtype is None or dtypes.setdefault(name, value.dtype) != value.dtype:
            return None
    reduction = node.attributes.get_string("reduction", "none")
    return Signature(
        node.domain, node.op_type, schema.since_version, reduction, tuple(sorted(dtypes.items()))
    )


def input_parameters(node: ir.Node, schema: Any) -> list[str | None]:
    """Return the parameter that each input of ``node`` belongs to; None where there is none."""
    return _parameters(schema, schema.inputs, len(node.inputs))


def output_parameters(node: ir.Node, schema: Any) -> list[str | None]:
    """Return the parameter that each output of ``node`` belongs to; None where there is none."""
    return _parameters(schema, schema.outputs, len(node.outputs))


def _parameters(schema: Any, formals: Sequence[Any], count: int) -> list[str | None]:
    """Return the parameter of each of ``count`` values; the last formal may stand for many."""
    names = {constraint.type_param_str for constraint in schema.type_constraints}
    texts = [formals[min(index, len(formals) - 1)].type_str for index in range(count)]
    return [text if text in names else None for text in texts]


@functools.cache
def schema_of(domain: str, operator: str, opset: int) -> Any | None:
    """Return ONNX's description of an operator; None for one of another's, or of control flow."""
    try:
        schema = onnx.defs.get_schema(operator, opset, domain)
    except onnx.defs.SchemaError:
        return None
    mixed = any(not formal.is_homogeneous for formal in (*schema.inputs, *schema.outputs))
    return None if mixed else schema


@functools.cache
def allowed(domain: str, operator: str, version: int) -> dict[str, frozenset[ir.DataType]]:
    """Return the dtypes that ONNX defines an operator for, by parameter."""
    schema = onnx.defs.get_schema(operator, version, domain)
    return {
        constraint.type_param_str: dtypes_of(constraint.allowed_type_strs)
        for constraint in schema.type_constraints
    }


def is_defined(signature: Signature) -> bool:
    """Whether ONNX defines the operator for these dtypes."""
    known = allowed(signature.domain, signature.operator, signature.version)
    return all(dtype in known[name] for name, dtype in signature.dtypes)


def is_function(signature: Signature) -> bool:
    """Whether ONNX defines the operator by others, so that a runtime may replace it by them."""
    schema: Any = onnx.defs.get_schema(signature.operator, signature.version, signature.domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


_NAMES = {"FLOAT": "float", "DOUBLE": "double"}
_BY_TEXT = {f"tensor({_NAMES.get(d.name, d.name.lower())})": d for d in ir.DataType}


def dtypes_of(texts: Sequence[str]) -> frozenset[ir.DataType]:
    """Return the dtypes of tensors among ``texts``, such as ``tensor(float)``."""
    return frozenset(_BY_TEXT[text] for text in texts if text in _BY_TEXT)
