"""``source``: where the model comes from and how it is constructed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from stateful_pipeline.spec.base import (
    FileClass,
    FilePath,
    Identifier,
    ImportPath,
    SpecModel,
    problem,
)
from stateful_pipeline.spec.faults import show

SOURCES = ("python", "file", "torchscript", "exported_program", "onnx")
"""The keys of which a source has exactly one."""

CONSTRUCTED = ("python", "file")
"""Those that construct a model, and so take arguments."""


class Weights(SpecModel):
    """A file of weights, loaded into the model after it is constructed."""

    file: FilePath
    """A .safetensors file, or a .pt file (loaded with weights_only=True)."""
    ignore: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Names of the file, or of the model, that need no partner in the other."""


def _weights(value: Any) -> Any:
    if isinstance(value, str):
        return {"file": value}
    if value is None or isinstance(value, dict | Weights):
        return value
    raise problem(f"expected a path, or `{{file: ..., ignore: [...]}}`, found {show(value)}")


class Importable(SpecModel):
    """A class of the user's: exactly one of its keys."""

    python: ImportPath | None = None
    """An importable class, `package.module:Class`."""
    file: FileClass | None = None
    """A class of a Python file, `path.py:Class`; the path is relative to this file."""

    @property
    def kind(self) -> str:
        """The key that names it."""
        return "python" if self.python is not None else "file"

    @property
    def file_path(self) -> Path | None:
        """The path part of ``file``."""
        return None if self.file is None else Path(self.file.rpartition(":")[0])

    @property
    def module_name(self) -> str | None:
        """The module part of ``python``."""
        return None if self.python is None else self.python.partition(":")[0]

    @property
    def class_name(self) -> str | None:
        """The class part of ``python`` or ``file``."""
        text = self.python if self.python is not None else self.file
        return None if text is None else text.rpartition(":")[2]


class Source(Importable):
    """Where the model comes from: exactly one of its first five keys."""

    python: ImportPath | None = None
    """An importable class, `package.module:Class`; a function that returns a module works too."""
    file: FileClass | None = None
    """A class of a Python file, `path.py:Class`; the path is relative to this file."""
    torchscript: FilePath | None = None
    """A file that torch.jit.load takes."""
    exported_program: FilePath | None = None
    """A file that torch.export.load takes (.pt2)."""
    onnx: FilePath | None = None
    """An ONNX model whose states are explicit already; `states` pairs inputs and outputs."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the constructor."""
    args: Annotated[tuple[Any, ...], Field(strict=False)] = ()
    """Positional arguments of the constructor."""
    weights: Annotated[
        Weights | None, BeforeValidator(_weights, json_schema_input_type=str | Weights | None)
    ] = None
    """A file of weights: its path, or {file, ignore}."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """torch.manual_seed before construction."""
    method: Identifier = "forward"
    """The entry point: the method that is one step."""
    reset: Identifier | None = None
    """The method that restores the initial state, if the model has one."""
    libraries: Annotated[tuple[FilePath, ...], Field(strict=False)] = ()
    """.so files, or CMake projects, of custom classes and operators."""

    @property
    def kind(self) -> str:
        """Which of :data:`SOURCES` it is."""
        return next(name for name in SOURCES if getattr(self, name) is not None)

    @property
    def key(self) -> str:
        """The key path of the line that names the model, as in ``source.python``."""
        return f"source.{self.kind}"
