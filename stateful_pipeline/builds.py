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
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import SpecError
from stateful_pipeline.foreign import no_room, write_error
from stateful_pipeline.stages.files import sha256

STAGE = "build folder"
"""What an error is called that comes before any stage."""

MANIFEST = "manifest.json"
SPEC = "spec.json"


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


def earlier_builds(out: Path, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield earlier builds that reached their end, newest first, with their manifests."""
    folder = (out / ".builds" / name).absolute()
    if not folder.is_dir():
        return
    for build in sorted(folder.iterdir(), reverse=True):
        manifest = build / MANIFEST
        if manifest.is_file():
            try:
                yield build, json.loads(manifest.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # not one of ours, or damaged: there is nothing in it to reuse


def reuse(
    out: Path,
    name: str,
    folders: Sequence[str],
    into: Path,
    fits: Callable[[Path, dict[str, Any]], bool],
) -> tuple[Path, dict[str, Any]] | None:
    """Copy ``folders`` of an earlier build that ``fits`` into the folder ``into``.

    Args:
        out: The output folder.
        name: The spec's name.
        folders: The parts of a build that are wanted.
        into: The new build.
        fits: Says of an earlier build and its manifest whether they are what is wanted.

    Returns:
        That build and its manifest, or None if there is none whose files are all as they were.
    """
    for build, manifest in earlier_builds(out, name):
        if build == into or not all((build / folder).is_dir() for folder in folders):
            continue
        wanted = {
            path: digest
            for path, digest in manifest.get("files", {}).items()
            if path.split("/")[0] in (*folders, SPEC)
        }
        if not _as_they_were(build, wanted) or not fits(build, manifest):
            continue
        for folder in folders:
            shutil.copytree(build / folder, into / folder, dirs_exist_ok=True)
        return build, manifest
    return None


def _as_they_were(build: Path, files: dict[str, str]) -> bool:
    try:
        return all((build / p).is_file() and sha256(build / p) == d for p, d in files.items())
    except OSError:
        return False  # what cannot be read cannot be reused


def file_digests(folder: Path, without: Sequence[str] = ()) -> dict[str, str]:
    """Return relative path to SHA-256 of every file below ``folder``."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).as_posix() not in without
    }
