"""Puts all that a run found into one plain dict, from which reports and logs are made."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

from stateful_pipeline.builds import MANIFEST, file_digests
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.log import LogResult


def summarize(
    artifacts: Artifacts,
    status: str,
    stages: dict[str, dict[str, Any]],
    versions: dict[str, str],
) -> dict[str, Any]:
    """Return the summary of a run: plain data, parts missing where a stage failed early."""
    spec = artifacts.spec
    contract = artifacts.contract
    return {
        "schema": 1,
        "name": spec.name,
        "run_id": artifacts.folder.name,
        "out": str(artifacts.folder),
        "status": status,
        "spec_digest": spec.digest(),
        "versions": versions,
        "host": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
        },
        "params": _flat(spec.content()),
        "contract": None if contract is None else json.loads(contract.to_json()),
        "frontend": artifacts.notes.get("script", {}).get("frontend"),
        "notes": artifacts.notes,
        "stages": {name: dict(stage) for name, stage in stages.items()},
        "targets": {name: _target(artifacts, build) for name, build in artifacts.targets.items()},
    }


def manifest_of(
    artifacts: Artifacts,
    status: str,
    summary: dict[str, Any],
    reuse_key: str,
    log: LogResult | None,
) -> dict[str, Any]:
    """Return what ``manifest.json`` says: no clock's value is in it, and every other file is."""
    stages = {
        name: {
            "status": stage["status"],
            "error": stage["error"],
            "notes": artifacts.notes.get(name, {}),
        }
        for name, stage in summary["stages"].items()
    }
    stages["log"]["status"] = "not asked" if log is None else "failed" if log.warning else "done"
    verdicts = {
        name: {key: target[key] for key in ("passed", "owed", "error", "artifact")}
        for name, target in summary["targets"].items()
    }
    return {
        "schema": 1,
        "name": artifacts.spec.name,
        "id": artifacts.folder.name,
        "status": status,
        "spec_digest": summary["spec_digest"],
        "reuse_key": reuse_key,
        "frontend": summary["frontend"],
        "versions": summary["versions"],
        "stages": stages,
        "targets": verdicts,
        "missed_gates": summary["missed_gates"],
        "mlflow": None if log is None else vars(log),
        "files": file_digests(artifacts.folder, without=[MANIFEST]),
    }


def timings_of(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what ``timings.json`` says: everything that a clock measured."""
    return {
        "schema": 1,
        "stages": {name: stage["seconds"] for name, stage in summary["stages"].items()},
        "benchmark": {name: target["benchmark"] for name, target in summary["targets"].items()},
    }


def _target(artifacts: Artifacts, build: TargetBuild) -> dict[str, Any]:
    target = artifacts.spec.targets[build.name]
    artifact = build.artifact
    return {
        "runtime": target.runtime,
        "provider": getattr(target, "provider", None),
        "optional": target.optional,
        "passed": build.passed,
        "owed": list(build.owed),
        "error": None if build.error is None else str(build.error),
        "artifact": None if artifact is None else str(artifact.relative_to(artifacts.folder)),
        "bytes": None
        if artifact is None
        else sum(file.stat().st_size for file in artifact.parent.iterdir() if file.is_file()),
        "verify": build.verify,
        "benchmark": build.benchmark,
    }


def _flat(value: Any, prefix: str = "") -> dict[str, str | int | float | bool]:
    """Return nested data as dotted keys and scalars: lists as text, without what is unset."""
    if isinstance(value, dict):
        flat: dict[str, str | int | float | bool] = {}
        for key, item in value.items():
            flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
        return flat
    if value is None or value == []:
        return {}
    if isinstance(value, list):
        return {prefix: json.dumps(value)}
    return {prefix: value}
