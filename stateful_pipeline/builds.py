"""Where builds live: a folder per run, a link to the last good one, and reuse of earlier ones.

::

    <out>/<name>                     a link to the last build that ended well
    <out>/.builds/<name>/<id>/       every build, good or bad

A run writes into a folder of its own and switches the link at its very end, and only if it ended
well, so that neither a failure nor a killed process harms what was there.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from stateful_pipeline.errors import SpecError
from stateful_pipeline.foreign import no_room, write_error
from stateful_pipeline.stages.files import sha256

STAGE = "build folder"
"""What an error is called that comes before any stage."""

MANIFEST = "manifest.json"
SPEC = "spec.json"
TIMINGS = "timings.json"


def new_build(out: Path, name: str) -> Path:
    """Make and return the folder of a new build of ``name`` under ``out``.

    Raises:
        SpecError: ``<out>/<name>`` is in the way, or nothing can be written there.
        StageError: The disk is full.
    """
    link = out / name
    if link.exists() and not link.is_symlink():
        raise SpecError(
            f"{link} is not a link to a build", hint="move it away, or choose another --out"
        )
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    folder = (out / ".builds" / name / f"{stamp}-{secrets.token_hex(3)}").absolute()
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        if no_room(error):
            raise write_error(error, STAGE, folder) from error
        raise SpecError(f"cannot write to {out}: {error}", hint="choose another --out") from error
    return folder


def switch(folder: Path) -> Path:
    """Make ``<out>/<name>`` point at ``folder``, in one step; return the link."""
    name = folder.parent.name
    out = folder.parents[2]
    link = out / name
    fresh = out / f".{name}.{secrets.token_hex(3)}.link"
    fresh.symlink_to(Path(".builds") / name / folder.name, target_is_directory=True)
    try:
        os.replace(fresh, link)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return link


def status_of_linked(link: Path) -> str | None:
    """Return the status of the build that ``link`` points at; None if there is none to be read."""
    try:
        manifest = json.loads((link / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    status = manifest.get("status") if isinstance(manifest, dict) else None
    return None if status is None else str(status)


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class EndedStage(_Read):
    """How a stage of an earlier build ended, and what it had to note."""

    status: str
    notes: dict[str, Any]


class EndedTarget(_Read):
    """What became of a target of an earlier build: as in ``TargetBuild``, its errors in words."""

    artifact: str | None
    passed: bool | None
    owed: tuple[str, ...]
    error: str | None


class Manifest(_Read):
    """What a later run asks of the ``manifest.json`` of a build.

    Attributes:
        reuse_key: See :mod:`.identity`.
        stages: Every stage, by name.
        targets: Those that were asked for, by name.
        files: Relative path to SHA-256.
    """

    reuse_key: str
    stages: dict[str, EndedStage]
    targets: dict[str, EndedTarget]
    files: dict[str, str]

    @classmethod
    def of(cls, build: Path) -> Manifest:
        """Read that of the folder ``build``.

        Raises:
            ValueError: It is damaged, or of another kind.
            OSError: It cannot be read.
        """
        try:
            return cls.model_validate_json((build / MANIFEST).read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ValueError(f"{key}: {first['msg']}" if key else first["msg"]) from error


def earlier_builds(out: Path, name: str) -> list[Path]:
    """Return the earlier builds that reached their end, newest first."""
    folder = (out / ".builds" / name).absolute()
    if not folder.is_dir():
        return []
    return [b for b in sorted(folder.iterdir(), reverse=True) if (b / MANIFEST).is_file()]


def damaged_part(build: Path, files: Mapping[str, str], parts: Sequence[str]) -> str | None:
    """Return what is not as it was when a build was made; None if all is.

    Args:
        build: The build's folder.
        files: The digests in its manifest.
        parts: The names of the folders and files of a build that are looked at.
    """
    held = {path: digest for path, digest in files.items() if path.split("/")[0] in parts}
    for part in parts:
        if not any(path.split("/")[0] == part for path in held):
            return part
    return next((path for path, digest in held.items() if not _is(build / path, digest)), None)


def _is(path: Path, digest: str) -> bool:
    try:
        return sha256(path) == digest
    except OSError:
        return False  # what cannot be read cannot be reused


def file_digests(folder: Path, without: Sequence[str] = ()) -> dict[str, str]:
    """Return relative path to SHA-256 of every file below ``folder``."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() not in without
    }
