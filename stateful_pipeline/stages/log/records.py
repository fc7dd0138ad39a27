"""A run's summary as MLflow's params, metrics, tags and note: pure, and without MLflow.

Errors are also logged as their decimal logarithm: MLflow's charts show 2.8e-7 as 0.  An exact zero
has the logarithm :data:`LOG10_OF_ZERO`, just below the spacing of float64 at 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stateful_pipeline.report.verdict import as_number, run_verdict, show, target_verdict

LOG10_OF_ZERO = -17.0

_MAX_PARAM, _MAX_TAG, _MAX_KEY = 6000, 5000, 250
_NOT_IN_A_KEY = re.compile(r"[^\w\-. :/]")


@dataclass(frozen=True)
class Point:
    """One metric's value at one step."""

    key: str
    value: float
    step: int = 0


@dataclass(frozen=True)
class Record:
    """All that one MLflow run gets, its artifacts aside."""

    status: str
    params: dict[str, str]
    metrics: list[Point]
    tags: dict[str, str]


def parent_record(summary: Mapping[str, Any]) -> Record:
    """Return what the run of the whole spec gets."""
    targets = summary.get("targets") or {}
    verdict = run_verdict(summary)
    ends = {"PASSED": "FINISHED", "UNCHECKED": "FINISHED", "INTERRUPTED": "KILLED"}
    status = ends.get(verdict, "FAILED")
    stages = summary.get("stages") or {}
    checked = verdict not in ("OWED", "UNCHECKED")
    metrics = [Point("passed", float(verdict == "PASSED"))] if checked else []
    metrics += _points((f"seconds/{name}", stage.get("seconds")) for name, stage in stages.items())
    errors = [
        as_number((target.get("verify") or {}).get("max_abs_error")) for target in targets.values()
    ]
    metrics += _error_points(
        "max_abs_error", max((e for e in errors if e is not None), default=None)
    )
    tags = {
        **_shared_tags(summary),
        "verdict": verdict,
        "mlflow.note.content": parent_note(summary),
        "error": "\n\n".join(f"{name}: {text}" for name, text in _errors(stages)),
    }
    return Record(status, _params(summary.get("params") or {}), metrics, _tags(tags))


def child_record(summary: Mapping[str, Any], name: str) -> Record:
    """Return what the nested run of the target called ``name`` gets."""
    target = summary["targets"][name]
    verdict = target_verdict(target)
    verify, benchmark = target.get("verify") or {}, target.get("benchmark") or {}
    status = _child_status(run_verdict(summary), verdict, optional=bool(target.get("optional")))
    metrics = (
        [Point("passed", float(verdict == "PASSED"))] if verdict in ("PASSED", "FAILED") else []
    )
    metrics += _verify_points(verify)
    metrics += _points(
        (key, benchmark.get(key)) for key in ("p50_ms", "p95_ms", "p99_ms", "mean_ms", "ratio_p50")
    )
    metrics += _points(
        (f"eager_{key}", value) for key, value in (benchmark.get("eager") or {}).items()
    )
    metrics += _points([("bytes", target.get("bytes"))])
    settings = {key: target.get(key) for key in ("runtime", "provider", "artifact", "optional")}
    settings |= {key: verify.get(key) for key in ("steps", "atol", "rtol")}
    settings |= {f"benchmark.{key}": benchmark.get(key) for key in ("sizes", "threads", "steps")}
    tags = {
        **_shared_tags(summary),
        "target": name,
        "verdict": verdict,
        "owed": "; ".join(str(reason) for reason in target.get("owed") or ()),
        "error": str(target.get("error") or ""),
        "mlflow.note.content": f"**{verdict}**: {_cell(name)}{_block(target.get('error'))}",
    }
    params = _params({key: value for key, value in settings.items() if value is not None})
    return Record(status, params, metrics, _tags(tags))


def _child_status(run: str, target: str, *, optional: bool) -> str:
    """Return what MLflow calls the end of a target's run, from both verdicts.

    A target that nobody asked to check is to blame for nothing, nor is an optional one that
    cannot be checked here; a run that failed, though, may have left it unchecked.
    """
    done = target == "PASSED" or (target == "OWED" and optional)
    if done or (target == "UNCHECKED" and run in ("PASSED", "UNCHECKED", "OWED")):
        return "FINISHED"
    return "KILLED" if target == "UNCHECKED" and run == "INTERRUPTED" else "FAILED"


def parent_note(summary: Mapping[str, Any]) -> str:
    """Return the run's description, as Markdown: verdict, a line for each target, errors."""
    status = " (refused)" if summary.get("status") == "refused" else ""
    lines = [f"**{run_verdict(summary)}**{status}: {_cell(summary.get('name'))}", ""]
    targets = summary.get("targets") or {}
    if targets:
        lines += ["| target | verdict | steps | worst error | p50 | eager p50 |", "|" + "---|" * 6]
    for name, target in targets.items():
        verify, benchmark = target.get("verify") or {}, target.get("benchmark") or {}
        cells = [
            name,
            target_verdict(target),
            show(verify.get("steps")),
            show(verify.get("max_abs_error")),
            _ms(benchmark),
            _ms(benchmark.get("eager") or {}),
        ]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    for name, text in _errors(summary.get("stages") or {}):
        lines.append(f"\n**{name}**{_block(text)}")
    return "\n".join(lines) + "\n"


def _verify_points(verify: Mapping[str, Any]) -> list[Point]:
    points = _error_points("max_abs_error", as_number(verify.get("max_abs_error")))
    points += _points((key, verify.get(key)) for key in ("max_rel_error", "steps"))
    for step, value in enumerate(verify.get("per_step") or ()):
        points += _error_points("abs_error", as_number(value), step)
    beside = verify.get("fp32") or {}
    points += _error_points("fp32_max_abs_error", as_number(beside.get("max_abs_error")))
    for step, value in enumerate(beside.get("per_step") or ()):
        points += _error_points("fp32_abs_error", as_number(value), step)
    worst: dict[str, float] = {}
    for rollout in verify.get("rollouts") or ():
        for tensor, value in (rollout.get("tensors") or {}).items():
            number = as_number(value)
            if number is not None:
                worst[tensor] = max(worst.get(tensor, 0.0), number)
    return points + _points((f"max_abs_error/{tensor}", value) for tensor, value in worst.items())


def _error_points(key: str, value: float | None, step: int = 0) -> list[Point]:
    if value is None:
        return []
    log10 = math.log10(value) if value > 0 else LOG10_OF_ZERO if value == 0 else math.nan
    return [Point(key, value, step), Point(f"log10_{key}", log10, step)]


def _points(items: Iterable[tuple[str, Any]]) -> list[Point]:
    numbers = ((key, as_number(value)) for key, value in items)
    return [Point(_key(key), value) for key, value in numbers if value is not None]


def _shared_tags(summary: Mapping[str, Any]) -> dict[str, str]:
    host = {f"host.{key}": value for key, value in (summary.get("host") or {}).items()}
    versions = {f"version.{key}": value for key, value in (summary.get("versions") or {}).items()}
    named = {
        "spec": summary.get("name"),
        "spec_digest": summary.get("spec_digest"),
        "status": summary.get("status"),
        "frontend": summary.get("frontend"),
        "build": summary.get("out"),
        "build_id": summary.get("run_id"),
        "mlflow.source.name": f"pipeline run {summary.get('name')}",
        "mlflow.source.type": "LOCAL",
    }
    return {
        key: "" if value is None else str(value) for key, value in (named | versions | host).items()
    }


def _errors(stages: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(stage["error"])) for name, stage in stages.items() if stage.get("error")]


def _tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {_key(key): _cut(value, _MAX_TAG) for key, value in tags.items() if value}


def _params(params: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in params.items():
        key, number = _key(name), 2
        while key in found:
            key, number = f"{_key(name)[: _MAX_KEY - 4]}_{number}", number + 1
        found[key] = _cut(str(value), _MAX_PARAM)
    return found


def _key(name: str) -> str:
    """Return ``name`` as MLflow takes it: other characters become ``_``, no path tricks."""
    plain = _NOT_IN_A_KEY.sub("_", str(name))[:_MAX_KEY]
    return "/".join(part if part.strip(".") else "_" for part in plain.split("/"))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 16] + " ... (cut short)"


def _ms(latency: Mapping[str, Any]) -> str:
    value = as_number(latency.get("p50_ms"))
    return "–" if value is None else f"{value:.3g} ms"


def _cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _block(error: Any) -> str:
    if not error:
        return ""
    return "\n\n" + "\n".join(f"    {line}" for line in str(error).splitlines()) + "\n"
