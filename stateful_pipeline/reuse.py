"""Takes over what an earlier build made, where this run would make the same again.

script, rewrite and export are taken over whenever an earlier build has the same *reuse key* (see
:mod:`.identity`); build, verify and benchmark only where the call asks for it with ``--from``, and
only if their part of the spec is the same too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_pipeline.builds import (
    MANIFEST,
    SPEC,
    TIMINGS,
    Manifest,
    damaged_part,
    earlier_builds,
)
from stateful_pipeline.errors import SpecError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spot_check import SpotCheck
from stateful_pipeline.stages.artifacts import Artifacts

FRONT = ("script", "rewrite", "export")
"""The stages that are taken over together: the captured program is not kept in a build."""

_FOR_ONNX = ("rewrite", "export")
"""The stages that nothing needs but what is built from ONNX."""

_SCRIPTED = Path("script") / "model.pt"

FOLDERS = {
    "script": "script",
    "rewrite": "rewrite",
    "export": "export",
    "build": "targets",
    "verify": "verify",
}
"""Stage to the folder of a build that it writes."""


@dataclass(frozen=True)
class Taken:
    """What became of the search for an earlier build.

    Attributes:
        build: The build that was taken over; None if there is none that fits.
        why_not: Why the one that comes nearest does not fit, in words: the newest of them.
    """

    build: Path | None = None
    why_not: str | None = None


def needed_stages(stages: Sequence[str], needed: Sequence[str]) -> list[str]:
    """Return those of ``stages`` that lead to the artifacts ``needed``."""
    return [name for name in stages if "onnx" in needed or name not in _FOR_ONNX]


def take_over(artifacts: Artifacts, out: Path, key: str, stages: Sequence[str]) -> Taken:
    """Copy what ``stages`` made from the newest build that fits.

    A key cannot know of all that decides what a module does: a file or a variable of the
    environment that ``forward`` reads, say.  So the model of a build that fits by its key is run
    beside the module, too.

    Args:
        artifacts: This run's; filled as the stages would have filled them.
        out: The output folder.
        key: This run's reuse key.
        stages: :data:`FRONT`, or more.

    Raises:
        OSError: The files of a build that fits cannot be read or copied.
    """
    search = _Search(artifacts, key, needed_stages(stages, artifacts.needed()), stages[-1])
    nearest = _Misfit(None)
    for build in earlier_builds(out, artifacts.spec.name):
        if build == artifacts.folder:
            continue
        misfit = search.misfit(build)
        if misfit is None:
            for folder in search.folders:
                shutil.copytree(build / folder, artifacts.folder / folder, dirs_exist_ok=True)
            _fill(artifacts, build, Manifest.of(build), search.stages)
            return Taken(build)
        nearest = max(nearest, misfit, key=lambda one: one.nearness)
    return Taken(why_not=nearest.why)


def nothing_to_reuse(first: str, name: str, out: Path, why_not: str | None) -> SpecError:
    """Return the error for a ``--from`` that finds no earlier build.

    Args:
        first: The stage to begin with.
        name: The spec's name.
        out: The output folder.
        why_not: As in :class:`Taken`.
    """
    message = (
        f"--from {first}: no earlier build of '{name}' in {out} has what "
        "the stages before it make of this spec, model and code"
    )
    if why_not is not None:
        message += f": {why_not}"
    return SpecError(message, hint="run without --from")


@dataclass(frozen=True)
class _Misfit:
    """Why a build does not fit, and how near it comes: 0 stands for no build at all."""

    why: str | None
    nearness: int = 0


class _Search:
    """What is asked of an earlier build."""

    def __init__(self, artifacts: Artifacts, key: str, stages: Sequence[str], last: str) -> None:
        self._artifacts, self._key, self.stages = artifacts, key, stages
        self._check = SpotCheck(artifacts, last)
        self.folders = [FOLDERS[name] for name in stages if name in FOLDERS]

    def misfit(self, build: Path) -> _Misfit | None:
        """Return why ``stages`` of a build are not what this run would do again."""
        found = next(self._misfits(build), None)
        return None if found is None else _Misfit(f"that of {build.name} {found[1]}", found[0])

    def _misfits(self, build: Path) -> Iterator[tuple[int, str]]:
        """Yield nearness and reason; what is cheap to find comes first."""
        try:
            manifest = Manifest.of(build)
        except (OSError, ValueError) as error:
            yield 2, f"has a damaged {MANIFEST}: {error}"
            return
        if manifest.reuse_key != self._key:
            yield 1, "is of another spec, model, code or version of a library"
        yield from ((2, reason) for reason in self._of_stages(manifest))
        parts = [*self.folders, SPEC, *([TIMINGS] if "benchmark" in self.stages else [])]
        damaged = damaged_part(build, manifest.files, parts)
        if damaged is not None:
            yield 3, f"is damaged: {damaged} is missing or was changed"
        if "build" in self.stages:
            yield from ((4, reason) for reason in self._of_targets(manifest, build))
        if not self._check.equals(build):
            yield 5, f"no longer equals the module: {self._check.why_not}"

    def _of_stages(self, manifest: Manifest) -> Iterator[str]:
        for name in self.stages:
            stage = manifest.stages.get(name)
            if stage is None or stage.status not in ("done", "reused"):
                yield f"has not done {name}: {stage.status if stage else 'there is no such stage'}"
        if "scripted" in self._artifacts.needed() and _SCRIPTED.as_posix() not in manifest.files:
            yield f"has no {_SCRIPTED}"

    def _of_targets(self, manifest: Manifest, build: Path) -> Iterator[str]:
        """Yield what differs in the targets, and in the part of the spec that decides them."""
        then, now = _read(build / SPEC), self._artifacts.spec.content()
        for name in self._artifacts.targets:
            made = manifest.targets.get(name)
            if made is None or (made.artifact is None and made.error is None):
                yield f"has not built target '{name}'"
            elif then["targets"].get(name) != now["targets"][name]:
                yield f"has other settings of target '{name}'"
            elif made.error is not None:
                yield f"has no target '{name}' that works: {made.error.splitlines()[0]}"
            elif "verify" in self.stages and made.passed is None and not made.owed:
                yield f"has not verified target '{name}'"
        for name in ("verify", "benchmark"):
            if name in self.stages and then[name] != now[name]:
                yield f"has other settings of `{name}`"


def _fill(artifacts: Artifacts, build: Path, manifest: Manifest, stages: Sequence[str]) -> None:
    """Put what was copied where later stages look for it."""
    if "onnx" in artifacts.needed():
        artifacts.model = artifacts.folder / "export" / "model.onnx"
        artifacts.contract = StatefulRunner(artifacts.model).contract
    if "scripted" in artifacts.needed():
        artifacts.scripted = artifacts.folder / _SCRIPTED
    for name in stages:
        artifacts.notes[name] = manifest.stages[name].notes
    if "build" not in stages:
        return
    verified = _read(artifacts.folder / "verify" / "report.json") if "verify" in stages else {}
    timed = _read(build / TIMINGS) if "benchmark" in stages else {}
    for name, target in artifacts.targets.items():
        made = manifest.targets[name]
        target.artifact = artifacts.folder / str(made.artifact)
        if "verify" in stages:
            found = verified["targets"][name]
            target.verify = found if found["steps"] else None  # it could not run
            target.passed, target.owed = made.passed, list(made.owed)
        if "benchmark" in stages:
            target.benchmark = timed["benchmark"][name]


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
