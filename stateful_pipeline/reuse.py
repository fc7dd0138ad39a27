"""Takes over what an earlier build made, where this run would make the same again.

script, rewrite and export are taken over whenever an earlier build has the same *reuse key* (see
:mod:`.identity`); build, verify and benchmark only where the call asks for it with ``--from``, and
only if their part of the spec is the same too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateful_pipeline.builds import SPEC, reuse
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
        why_not: What else is wrong with the newest one that should have fitted, in words.
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
    check = SpotCheck(artifacts, stages[-1])
    stages = needed_stages(stages, artifacts.needed())

    def fits(build: Path, manifest: dict[str, Any]) -> bool:
        return _fits(artifacts, key, build, manifest, stages) and check.equals(build)

    folders = [FOLDERS[name] for name in stages if name in FOLDERS]
    found = reuse(out, artifacts.spec.name, folders, artifacts.folder, fits=fits)
    if found is None:
        return Taken(why_not=check.why_not)
    _fill(artifacts, *found, stages)
    return Taken(found[0])


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


def _fits(
    artifacts: Artifacts, key: str, build: Path, manifest: dict[str, Any], stages: Sequence[str]
) -> bool:
    """Whether ``stages`` of an earlier build are what this run would do again."""
    if manifest.get("reuse_key") != key:
        return False
    ended, targets = manifest.get("stages", {}), manifest.get("targets", {})
    if any(ended.get(name, {}).get("status") not in ("done", "reused") for name in stages):
        return False
    if "scripted" in artifacts.needed() and not (build / _SCRIPTED).is_file():
        return False
    if "build" not in stages:
        return True
    then, now = _read(build / SPEC), artifacts.spec.content()
    for name in artifacts.targets:
        made = targets.get(name, {})
        if then["targets"].get(name) != now["targets"][name] or not made.get("artifact"):
            return False
        if made["error"] is not None or ("verify" in stages and made["passed"] is None):
            return False
    return all(then[name] == now[name] for name in ("verify", "benchmark") if name in stages)


def _fill(
    artifacts: Artifacts, build: Path, manifest: dict[str, Any], stages: Sequence[str]
) -> None:
    """Put what was copied where later stages look for it."""
    if "onnx" in artifacts.needed():
        artifacts.model = artifacts.folder / "export" / "model.onnx"
        artifacts.contract = StatefulRunner(artifacts.model).contract
    if "scripted" in artifacts.needed():
        artifacts.scripted = artifacts.folder / _SCRIPTED
    for name in stages:
        artifacts.notes[name] = manifest["stages"][name].get("notes", {})
    verified = _read(artifacts.folder / "verify" / "report.json") if "verify" in stages else {}
    timed = _read(build / "timings.json") if "benchmark" in stages else {}
    for name, target in artifacts.targets.items():
        artifact = manifest["targets"].get(name, {}).get("artifact")
        if "build" in stages and artifact:
            target.artifact = artifacts.folder / artifact
        target.verify = verified.get("targets", {}).get(name)
        target.passed = (target.verify or {}).get("passed")
        target.benchmark = timed.get("benchmark", {}).get(name)


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content
