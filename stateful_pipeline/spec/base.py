"""What every model of the spec shares: strictness, names, paths, and how a validator complains."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from stateful_pipeline.spec.faults import show


class SpecModel(BaseModel):
    """A mapping of the spec: unknown keys are errors, values are never converted or changed."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        use_attribute_docstrings=True,
    )


def problem(message: str, hint: str | None = None) -> PydanticCustomError:
    """Return the exception by which a validator says what is wrong and what to try."""
    return PydanticCustomError("spec", "{message}", {"message": message, "hint": hint})


def _matching(pattern: str, wanted: str, hint: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text):
            return text
        raise problem(f"expected {wanted}, found {show(text)}", hint)

    return check


def text_like(pattern: str, wanted: str, hint: str) -> tuple[AfterValidator, WithJsonSchema]:
    """Return what annotates a string that has to match ``pattern`` as a whole."""
    return (
        AfterValidator(_matching(pattern, wanted, hint)),
        WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"}),
    )


_FILE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_CLASS_NAME = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"

FileName = Annotated[
    str,
    *text_like(
        _FILE_NAME,
        "a name that is safe in a path and a URL",
        "up to 100 letters, digits, '.', '_' and '-', beginning with a letter or a digit",
    ),
]
"""The name of a spec or a target: it becomes a folder, a run, a part of a link."""

Identifier = Annotated[
    str, *text_like(r"[A-Za-z_][A-Za-z0-9_]*", "the name of a method", "such as `forward`")
]

InputName = Annotated[
    str,
    *text_like(
        r"[A-Za-z_][A-Za-z0-9_.:/-]*", "the name of a parameter of `forward`", "such as `x: {...}`"
    ),
]

StateName = Annotated[
    str,
    *text_like(
        r"""[^\s"']+""",
        "the dotted path of an attribute, without spaces or quotes",
        "such as `cells.0.h`",
    ),
]

AttributeName = Annotated[
    str,
    *text_like(
        r"""[^\s"']+""",
        "the dotted path of an attribute, without spaces or quotes",
        "such as `encoder._last_sr`",
    ),
]

CppClass = Annotated[
    str,
    *text_like(
        r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*",
        "a C++ class, `namespace.Class`",
        "its name below torch.classes, such as `stateful.TensorRing`",
    ),
]

ImportPath = Annotated[
    str,
    *text_like(
        rf"{_CLASS_NAME}:{_CLASS_NAME}",
        "a module and a class, `package.module:Class`",
        "write a colon between the module and the class; use `file: path.py:Class` for a file",
    ),
]

FileClass = Annotated[
    str,
    *text_like(
        rf"[^\0]+\.py:{_CLASS_NAME}",
        "a Python file and a class, `path.py:Class`",
        "write the path, a colon, and the name of the class",
    ),
]

FilePath = Annotated[Path, Field(strict=False)]


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem(f"expected a number, found {show(value)}")
    if value != value or value in (float("inf"), float("-inf")):
        raise problem(f"expected a finite number, found {show(value)}")
    return value


def _version(value: Any) -> Any:
    if type(value) is not int:  # true and 1.0 equal 1
        raise problem(f"expected 1, found {show(value)}")
    return value


SchemaVersion = Annotated[Literal[1], BeforeValidator(_version)]
"""The version of the format of specs and jobs."""

LIMIT = 1 << 31
"""What every size and count stays below: larger ones are slips, and no runtime takes them."""

Number = Annotated[Any, BeforeValidator(_number), WithJsonSchema({"type": "number"})]
"""A finite number that stays an ``int`` where it was written as one."""
