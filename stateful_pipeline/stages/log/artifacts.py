"""The files that go with a run: the build's own for the parent, four fixed ones for each target.

MLflow's comparison lists only files that lie at the root of *all* chosen runs, so every nested run
has the same four there, also one that was never checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stateful_pipeline.report import error_svg, latency_svg, plain_json, target_verdict
from stateful_pipeline.report.verdict import as_number

MAX_BYTES = 100_000_000
"""A larger file stays in the build folder alone; the run's tag ``left_out`` names it."""

_PARENT = (
    "report.html",
    "manifest.json",
    "timings.json",
    "spec.yaml",
    "spec.json",
    "verify/report.json",
    "script",
    "rewrite",
    "export",
)


def parent_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the build's files to upload and those too large for it, relative to ``folder``."""
    found = sorted(path for entry in _PARENT for path in _files(folder / entry))
    small = [path for path in found if path.stat().st_size <= MAX_BYTES]
    large = [path for path in found if path.stat().st_size > MAX_BYTES]
    return [path.relative_to(folder) for path in small], [p.relative_to(folder) for p in large]


def child_files(summary: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return file name to text for the nested run of the target called ``name``."""
    target = summary["targets"][name]
    verify = target.get("verify") or {}
    about = f"{summary.get('name')} / {name}"
    return {
        "report.json": plain_json({"verdict": target_verdict(target), **target}),
        "contract.json": plain_json(summary.get("contract")),
        "error_per_step.svg": error_svg(
            verify.get("per_step") or [],
            as_number(verify.get("atol")),
            f"{about}: error against eager PyTorch",
            first_bad=(verify.get("first_bad") or {}).get("step"),
            names=(str(verify.get("precision", "")), "fp32"),
            beside=(verify.get("fp32") or {}).get("per_step") or [],
        ),
        "latency.svg": latency_svg(target.get("benchmark") or {}, f"{about}: latency of one step"),
    }


def _files(entry: Path) -> Iterator[Path]:
    if entry.is_dir():
        yield from (path for path in entry.rglob("*") if path.is_file())
    elif entry.is_file():
        yield entry
