"""A job: which specs to run, with which changes, and what must hold beside equality.

::

    schema: 1
    kind: job
    name: nightly
    specs: [../configs/*.yaml]
    set: {verify.steps: 256}
    matrix: {targets.cpu.threads: [1, 2]}
    gates: {max_abs_error: 1.0e-4, ratio_p50: 1.5}
"""

from __future__ import annotations

import glob
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from stateful_pipeline.errors import Place, SpecError
from stateful_pipeline.spec import keypath
from stateful_pipeline.spec.base import FileName, SchemaVersion, SpecModel, problem
from stateful_pipeline.spec.faults import raise_together, show
from stateful_pipeline.spec.load import load_spec
from stateful_pipeline.spec.messages import explain, faults_of
from stateful_pipeline.spec.model import Spec
from stateful_pipeline.spec.yaml12 import read_file


def _key_path(text: str) -> str:
    try:
        keypath.parse(text)
    except ValueError:
        raise problem(
            f"{show(text)} is not a path of keys", "such as `targets.cpu.threads`"
        ) from None
    return text


KeyPath = Annotated[str, AfterValidator(_key_path)]
Bound = Annotated[float, Field(gt=0)]


class Gates(SpecModel):
    """What must hold of every target beside equality; a gate that is missed ends the run with 1."""

    max_abs_error: Bound | None = None
    """Largest absolute error of a free-running rollout."""
    p50_ms: Bound | None = None
    """Median time of a step, in milliseconds."""
    p99_ms: Bound | None = None
    """99th percentile of the time of a step, in milliseconds."""
    ratio_p50: Bound | None = None
    """Median time of a step over that of eager PyTorch in the same run."""


class Job(SpecModel):
    """Several specs, run one after the other."""

    schema_version: Annotated[SchemaVersion, Field(alias="schema")] = 1
    """The version of this format."""
    kind: Literal["job"]
    """Tells a job from a spec."""
    name: FileName
    """The job's name."""
    specs: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    """Spec files, or patterns such as `configs/*.yaml`, relative to this file."""
    set: dict[KeyPath, Any] = Field(default_factory=dict)
    """Keys of the specs to change, as with `--set`."""
    matrix: dict[KeyPath, Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]] = Field(
        default_factory=dict
    )
    """Keys with several values each: every spec is run for every combination."""
    gates: Gates = Gates()
    """What must hold of every target beside equality."""


_NO_GATES = Gates()


@dataclass(frozen=True)
class Planned:
    """One run of a job, or a spec by itself, not read yet.

    Attributes:
        path: The spec's file.
        overrides: ``KEY=VALUE`` each.
        gates: What must hold of its targets.
        suffix: What its name gets, to tell the combinations of a matrix; empty for one.
    """

    path: Path
    overrides: tuple[str, ...]
    gates: Gates = _NO_GATES
    suffix: str = ""

    def load(self) -> Spec:
        """Read the spec.

        Raises:
            SpecError: It is wrong.
        """
        spec = load_spec(self.path, self.overrides)
        if not self.suffix:
            return spec
        return load_spec(self.path, [*self.overrides, f"name={spec.name}-{self.suffix}"])


def is_job(path: Path) -> bool:
    """Whether the YAML file at ``path`` says ``kind: job``.

    Raises:
        SpecError: It cannot be read.
    """
    tree = read_file(path, str(path))
    if not isinstance(tree.value, dict):
        return False
    kind = tree.value.get("kind")
    return kind is not None and kind.value == "job"


def load_job(path: Path) -> Job:
    """Read and validate the job at ``path``; its specs are not read.

    Raises:
        SpecError: Anything is wrong with it.
    """
    tree = read_file(path, str(path))
    try:
        return Job.model_validate(tree.plain())
    except ValidationError as error:
        faults = [explain(detail, tree, Job) for detail in faults_of(error)]
        raise_together(faults, str(path))


def plan(path: Path, overrides: Sequence[str] = ()) -> list[Planned]:
    """Return what ``path``, a spec or a job, asks to run; no spec of a job is read yet.

    Args:
        path: The YAML file.
        overrides: ``KEY=VALUE`` each; they override a job's own.

    Raises:
        SpecError: The file cannot be read, or is a job that is wrong.
    """
    if not is_job(path):
        return [Planned(path, tuple(overrides))]
    job = load_job(path)
    own = [f"{key}={json.dumps(value)}" for key, value in job.set.items()]
    combinations = list(itertools.product(*job.matrix.values()))
    planned = []
    for spec_path, values in itertools.product(_files(path, job), combinations):
        chosen = dict(zip(job.matrix, values, strict=True))
        changes = [*own, *(f"{key}={json.dumps(value)}" for key, value in chosen.items())]
        suffix = _suffix(chosen) if len(combinations) > 1 else ""
        planned.append(Planned(spec_path, (*changes, *overrides), job.gates, suffix))
    return planned


def _files(path: Path, job: Job) -> list[Path]:
    found: list[Path] = []
    for index, pattern in enumerate(job.specs):
        if _is_pattern(pattern):
            # pathlib takes no absolute pattern.
            names = glob.glob(pattern, root_dir=path.parent, recursive=True)  # noqa: PTH207
            files = [path.parent / name for name in sorted(names)]
            files = [file for file in files if not _says_job(file)]
            if not files:
                hint = "patterns are relative to this file"
                raise _wrong_entry(path, index, f"`{pattern}` matches no spec", hint)
        else:
            files = [path.parent / pattern]
            if _says_job(files[0]):
                hint = "list its specs here, or give both jobs to `pipeline run`"
                raise _wrong_entry(path, index, f"`{pattern}` is a job, not a spec", hint)
        found += files
    return list(dict.fromkeys(found))


def _says_job(path: Path) -> bool:
    """Whether ``path`` is a job; a file that cannot be read is for its own run to report."""
    try:
        return is_job(path)
    except SpecError:
        return False


def _wrong_entry(path: Path, index: int, message: str, hint: str) -> SpecError:
    place: Place = read_file(path, str(path)).find(("specs", index))[0].place
    return SpecError(message, place=place, key=f"specs[{index}]", hint=hint)


def _is_pattern(text: str) -> bool:
    return any(mark in text for mark in "*?[")


def _suffix(chosen: dict[str, Any]) -> str:
    """Return the part of a build's name that tells a combination: ``threads-2``."""
    words = [f"{keypath.parse(key)[-1]}-{json.dumps(value)}" for key, value in chosen.items()]
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(words)).strip("_")
