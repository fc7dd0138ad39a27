"""The HTML page: what a run ended with, in the order in which a reader asks.

The verdict comes first, since MLflow's comparison shows only the top 150 pixels.  Then errors in
full, each target with its charts, the states, the stages, and where it all came from.  Everything
that comes from a summary is escaped; nothing on the page is fetched from anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from stateful_pipeline.report.style import CSS
from stateful_pipeline.report.tables import Html, key_value_table, pre, table, verdict_mark
from stateful_pipeline.report.target import target_section
from stateful_pipeline.report.verdict import run_verdict, show, target_verdict


def write_report(summary: Mapping[str, Any], folder: Path) -> Path:
    """Write ``report.html`` into ``folder`` and return its path.

    Args:
        summary: The run's summary; parts that a failed stage left out may be missing.
        folder: The build's folder, which exists.

    Raises:
        OSError: The page cannot be written.
    """
    path = folder / "report.html"
    partial = folder / ".report.html.part"
    partial.write_text(render_report(summary), encoding="utf-8")
    os.replace(partial, path)
    return path


def render_report(summary: Mapping[str, Any]) -> str:
    """Return the page as text: one HTML document with its style and charts inside."""
    verdict = run_verdict(summary)
    name = str(summary.get("name", "model"))
    targets: Mapping[str, Mapping[str, Any]] = summary.get("targets") or {}
    parts = [
        _header(summary, verdict, name),
        *_errors(summary),
        *(target_section(target_name, target) for target_name, target in targets.items()),
        *_graphs(summary),
        *_left_by_reset(summary),
        *_states(summary),
        *_stages(summary),
        *_origin(summary),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<title>{escape(verdict)}: {escape(name)}</title>",
            f"<style>{CSS}</style></head><body><main>",
            *parts,
            "</main></body></html>\n",
        ]
    )


def _header(summary: Mapping[str, Any], verdict: str, name: str) -> str:
    status = str(summary.get("status", ""))
    detail = " (refused)" if status == "refused" else ""
    said = [
        f"{escape(target_name)}: {verdict_mark(target_verdict(target))}{_in_short(target)}"
        for target_name, target in (summary.get("targets") or {}).items()
    ]
    return (
        f'<header class="{verdict}"><h1><span class="verdict">{verdict}{detail}</span> '
        f"{escape(name)}</h1><p>{' · '.join(said) or 'no target was reached'}</p>"
        f'<p class="muted">run {escape(str(summary.get("run_id", "")))}</p></header>'
    )


def _in_short(target: Mapping[str, Any]) -> str:
    verify = target.get("verify") or {}
    if not verify.get("steps"):
        return ""
    return (
        f" over {escape(show(verify['steps']))} free-running steps, "
        f"worst error {escape(show(verify.get('max_abs_error')))}"
    )


def _errors(summary: Mapping[str, Any]) -> Iterable[str]:
    stages = summary.get("stages") or {}
    failed = [(name, str(stage["error"])) for name, stage in stages.items() if stage.get("error")]
    if not failed:
        return
    yield '<section class="FAILED"><h2>What went wrong</h2>'
    for name, error in failed:
        yield f"<h3>{escape(name)}</h3>{pre(error)}"
    yield "</section>"


def _states(summary: Mapping[str, Any]) -> Iterable[str]:
    contract = summary.get("contract")
    if not contract:
        return
    rows = [
        (
            state["name"],
            state["dtype"],
            _shapes(state),
            _initial(state["init"]),
            state.get("attribute"),
            "yes" if state.get("exercised", True) else Html("<b>not exercised</b>"),
            bool(state.get("in_place", False)),
        )
        for state in contract["states"]
    ]
    heads = ("state", "dtype", "shape", "initial value", "attribute", "exercised", "in place")
    yield f"<section><h2>States</h2>{table(heads, rows)}"
    values = [
        (kind, value["name"], value["dtype"], show(value["shape"]))
        for kind, key in (("input", "inputs"), ("output", "outputs"))
        for value in contract[key]
    ]
    axes = [
        (axis["name"], axis.get("min", 1), axis.get("opt"), axis.get("max"))
        for axis in contract.get("axes", ())
    ]
    yield "<h3>Inputs and outputs</h3>" + table(("", "name", "dtype", "shape"), values)
    if axes:
        yield "<h3>Dynamic axes</h3>" + table(("axis", "min", "opt", "max"), axes)
    places = (summary.get("notes") or {}).get("rewrite", {}).get("never_raised", [])
    if places:
        listed = ", ".join(escape(place) for place in places)
        yield f"<p>In eager mode, forward may raise at {listed}; an engine goes on there.</p>"
    yield "</section>"


def _graphs(summary: Mapping[str, Any]) -> Iterable[str]:
    """Yield what C++ objects keep of autograd."""
    graphs = (summary.get("notes") or {}).get("script", {}).get("carried_graphs", [])
    if graphs:
        listed = "".join(f"<li>{escape(graph)}</li>" for graph in graphs)
        yield f"<section><h2>State with gradients</h2><ul>{listed}</ul></section>"


def _left_by_reset(summary: Mapping[str, Any]) -> Iterable[str]:
    """Yield what the module's own reset leaves as it is, and an engine's does not."""
    paths = (summary.get("notes") or {}).get("script", {}).get("left_by_reset", [])
    if paths:
        listed = ", ".join(f"<code>{escape(path)}</code>" for path in paths)
        yield (
            "<section><h2>Reset</h2><p>The module's reset leaves these as they are; an engine's "
            f"takes them back, too: {listed}.</p></section>"
        )


def _shapes(state: Mapping[str, Any]) -> str:
    before = show(state["shape"])
    return f"{before} → {show(state['out_shape'])}" if state.get("out_shape") else before


def _initial(init: Mapping[str, Any]) -> str:
    stored = show(init.get("shape", ()))
    if init["kind"] == "file":
        return f"{init.get('key')} in {init.get('file')} {stored}"
    return f"{'zeros' if init['kind'] == 'zeros' else 'stored values'} {stored}"


def _stages(summary: Mapping[str, Any]) -> Iterable[str]:
    stages = summary.get("stages") or {}
    if not stages:
        return
    rows = []
    for name, stage in stages.items():
        status = str(stage.get("status", ""))
        mark = verdict_mark("FAILED", "failed") if status == "failed" else status
        seconds = stage.get("seconds")
        rows.append((name, mark, "–" if seconds is None else f"{seconds:.2f} s"))
    yield f"<section><h2>Stages</h2>{table(('stage', 'status', 'time'), rows)}</section>"


def _origin(summary: Mapping[str, Any]) -> Iterable[str]:
    facts = {
        "spec digest": summary.get("spec_digest"),
        "front end": summary.get("frontend"),
        "build folder": summary.get("out"),
        **{f"host: {key}": value for key, value in (summary.get("host") or {}).items()},
        **(summary.get("versions") or {}),
    }
    known = {key: value for key, value in facts.items() if value is not None}
    params = summary.get("params") or {}
    yield "<section><h2>Where it came from</h2>" + key_value_table(known)
    if params:
        yield (
            f"<details><summary>the spec, {len(params)} values</summary>"
            f"{key_value_table(params)}</details>"
        )
    yield "</section>"
