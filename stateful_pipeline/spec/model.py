"""The spec itself: what a user may declare, and what it carries about where it was declared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from stateful_pipeline.errors import Place
from stateful_pipeline.spec import keypath
from stateful_pipeline.spec.base import (
    AttributeName,
    CppClass,
    FileName,
    InputName,
    SchemaVersion,
    SpecModel,
    StateName,
    problem,
)
from stateful_pipeline.spec.dims import AxisName, AxisSpec
from stateful_pipeline.spec.inputs import AttributeSpec, InputSpec
from stateful_pipeline.spec.options import (
    BenchmarkOptions,
    ExportOptions,
    MlflowOptions,
    ScriptOptions,
    VerifyOptions,
)
from stateful_pipeline.spec.paths import relative_content
from stateful_pipeline.spec.relations import broken_relations
from stateful_pipeline.spec.source import Importable, Source
from stateful_pipeline.spec.states import StateSpec
from stateful_pipeline.spec.targets import OnnxRuntimeTarget, Target
from stateful_pipeline.spec.tree import Node, Parts


@dataclass(frozen=True)
class Origin:
    """Where a spec came from; it takes no part in comparisons.

    Attributes:
        path: The absolute path of the file that was loaded, or None.
        name: The file as the user named it.
        tree: The merged tree with its positions.
        relative: The keys whose paths were written relative.
    """

    path: Path | None = field(default=None, compare=False)
    name: str = field(default="(no file)", compare=False)
    tree: Node | None = field(default=None, compare=False)
    relative: frozenset[Parts] = field(default=frozenset(), compare=False)


def _cpu() -> dict[str, Target]:
    return {"cpu": OnnxRuntimeTarget(runtime="onnxruntime")}


class Spec(SpecModel):
    """What to build, from what, for which runtimes, and how to prove it."""

    schema_version: Annotated[SchemaVersion, Field(alias="schema")] = 1
    """The version of this format."""
    name: FileName
    """The name of the build: a folder under the output folder, and the default experiment."""
    source: Source
    """Where the model comes from."""
    inputs: Annotated[dict[InputName, InputSpec], Field(min_length=1)]
    """The arguments of a step, by the names of forward's parameters."""
    attributes: dict[AttributeName, AttributeSpec] = Field(default_factory=dict)
    """Attributes of the module that are fixed to constants, by dotted path."""
    dynamic_axes: dict[AxisName, AxisSpec] = Field(default_factory=dict)
    """The axes whose size may vary, by name."""
    states: dict[StateName, StateSpec] = Field(default_factory=dict)
    """What to know about states, by attribute path; what is not listed is discovered."""
    script: ScriptOptions = ScriptOptions()
    """How the module is captured."""
    export: ExportOptions = ExportOptions()
    """How the ONNX model is written."""
    classes: dict[CppClass, Importable] = Field(default_factory=dict)
    """The explicit forms of C++ classes whose objects the model holds, by the class's name."""
    operators: dict[str, Any] = Field(default_factory=dict)
    """Custom operators: a torch implementation and an ONNX body."""
    targets: dict[FileName, Target] = Field(default_factory=_cpu)
    """The runtimes to build for; ONNX Runtime on the CPU if not given."""
    verify: VerifyOptions = VerifyOptions()
    """How a built target is compared with eager PyTorch."""
    benchmark: BenchmarkOptions = BenchmarkOptions()
    """How steps are timed."""
    mlflow: Annotated[MlflowOptions, Field(validate_default=True)] = MlflowOptions()
    """What is logged to MLflow, and where."""

    _origin: Origin = PrivateAttr(default=Origin())

    @field_validator("mlflow")
    @classmethod
    def _name_experiment(cls, mlflow: MlflowOptions, info: ValidationInfo) -> MlflowOptions:
        if mlflow.experiment:
            return mlflow
        return mlflow.model_copy(update={"experiment": info.data.get("name", "")})

    @model_validator(mode="after")
    def _related(self) -> Spec:
        broken = broken_relations(self.model_dump(by_alias=True, exclude_unset=True))
        if broken:
            first = broken[0]
            raise problem(f"{keypath.render(first.parts)}: {first.message}", first.hint)
        return self

    @property
    def path(self) -> Path | None:
        """The absolute path of the file that was loaded; None for a spec made in Python."""
        return self._origin.path

    @property
    def folder(self) -> Path:
        """The folder of :attr:`path`, or the working directory."""
        return Path.cwd() if self.path is None else self.path.parent

    def place(self, key_path: str | Parts) -> Place:
        """Return where ``key_path`` is written, or the nearest key above it that is.

        Args:
            key_path: Such as ``source.python`` or ``states["cells.0.h"].init``; or its parts, as in
                ``("states", "cells.0.h", "init")``.

        Raises:
            ValueError: It is not a path of keys.
        """
        parts = keypath.parse(key_path) if isinstance(key_path, str) else key_path
        if self._origin.tree is None:
            return Place(self._origin.name)
        node, followed = self._origin.tree.find(parts)
        return node.where if followed else Place(self._origin.name, 1, 1)

    def content(self) -> dict[str, Any]:
        """Return the spec as plain, JSON-able data, the same from any checkout.

        Every default is written out; paths that were written relative to their file are relative to
        the spec's folder, the others are absolute.
        """
        content = self.model_dump(mode="json", by_alias=True)
        relative_content(content, self._origin.relative, self.folder)
        return content

    def digest(self) -> str:
        """Return the SHA-256 of :meth:`content`, as 64 hexadecimal digits."""
        text = json.dumps(self.content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def tolerances(self, target: str) -> tuple[float, float]:
        """Return the atol and rtol of ``target``: its own, else those of ``verify``.

        Raises:
            KeyError: The spec has no such target.
        """
        own = self.targets[target].verify
        atol = self.verify.atol if own.atol is None else own.atol
        rtol = self.verify.rtol if own.rtol is None else own.rtol
        return atol, rtol
