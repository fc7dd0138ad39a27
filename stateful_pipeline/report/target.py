"""One target's part of the page: verdict, error curve, latency beside eager, rollouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from stateful_pipeline.report.charts import error_svg, latency_svg
from stateful_pipeline.report.tables import key_value_table, pre, table, verdict_mark
from stateful_pipeline.report.verdict import (
    as_number,
    scientific,
    show,
    show_non_finite,
    show_sizes,
    target_verdict,
)


def target_section(name: str, target: Mapping[str, Any]) -> str:
    """Return the ``<section>`` of the target called ``name``."""
    verdict = target_verdict(target)
    runtime = " / ".join(str(target[key]) for key in ("runtime", "provider") if target.get(key))
    optional = ", optional" if target.get("optional") else ""
    parts = [
        f'<section class="{verdict}"><h2>{verdict_mark(verdict)} {escape(name)} '
        f'<span class="muted">{escape(runtime + optional)}</span></h2>'
    ]
    if target.get("error"):
        parts.append(pre(str(target["error"])))
    parts += _owed(target)
    if target.get("artifact"):
        size = as_number(target.get("bytes"))
        written = "" if size is None else f", {_bytes(size)}"
        parts.append(f"<p><code>{escape(str(target['artifact']))}</code>{written}</p>")
    verify, benchmark = target.get("verify") or {}, target.get("benchmark") or {}
    parts += ['<div class="charts">', *_charts(verify, benchmark), "</div>"]
    if verify:
        parts += _verify(verify)
    if benchmark:
        parts += _benchmark(benchmark)
    return "\n".join([*parts, "</section>"])


def _owed(target: Mapping[str, Any]) -> Iterable[str]:
    """Yield each reason why something is owed, once."""
    reasons = [*(target.get("owed") or ()), *((target.get("verify") or {}).get("owed") or ())]
    for reason in dict.fromkeys(map(str, reasons)):
        yield f'<p class="OWED"><span class="verdict">Owed:</span> {escape(reason)}</p>'


def error_chart(verify: Mapping[str, Any], title: str = "Error against eager PyTorch") -> str:
    """Return the error curve of a ``verify`` entry, its first bad step marked.

    Where it is in half precision, the curve of the same target in float32 is beside it.
    """
    bad = verify.get("first_bad") or {}
    return error_svg(
        verify.get("per_step") or [],
        as_number(verify.get("atol")),
        title,
        first_bad=bad.get("step"),
        names=(str(verify.get("precision", "")), "fp32"),
        beside=(verify.get("fp32") or {}).get("per_step") or [],
    )


def _charts(verify: Mapping[str, Any], benchmark: Mapping[str, Any]) -> Iterable[str]:
    if verify.get("per_step"):
        yield error_chart(verify)
    if benchmark:
        yield latency_svg(benchmark)


def _verify(verify: Mapping[str, Any]) -> Iterable[str]:
    bad = verify.get("first_bad")
    if bad:
        yield (
            f"<h3>First difference</h3><p>step <b>{cell_of(bad, 'step')}</b>, "
            f"{cell_of(bad, 'kind')} <b>{cell_of(bad, 'tensor')}</b>: "
            f"expected {cell_of(bad, 'expected')}, got {cell_of(bad, 'got')} "
            f"({cell_of(bad, 'mode')}, {escape(show_sizes(bad.get('sizes')))}, "
            f"seed {cell_of(bad, 'seed')})</p>"
        )
    if verify.get("hint"):
        yield f"<p><b>Try:</b> {escape(str(verify['hint']))}</p>"
    yield from _cost(verify)
    facts = {
        "free-running steps": verify.get("steps"),
        "worst absolute error": verify.get("max_abs_error"),
        "worst relative error": verify.get("max_rel_error"),
        "tolerance": f"{show(verify.get('atol'))} absolute + {show(verify.get('rtol'))} relative",
    }
    if verify.get("non_finite"):
        facts["NaN or infinite in eager too"] = show_non_finite(verify["non_finite"])
    if verify.get("states"):
        facts["states"] = f"{verify['states']}; outputs alone are compared"
    reset = verify.get("reset")
    if reset:
        same = reset.get("passed")
        mark = {True: ("PASSED", "same as a new start"), False: ("FAILED", "not as a new start")}
        facts["after a reset"] = verdict_mark(*mark.get(same, ("UNCHECKED", "not checked")))
    yield f"<h3>Equality</h3>{key_value_table(facts)}"
    rollouts = verify.get("rollouts") or []
    if rollouts:
        rows = [_rollout(rollout) for rollout in rollouts]
        heads = ("", "mode", "sizes", "seed", "steps", "worst error", "by tensor")
        yield f"<h3>Rollouts</h3>{table(heads, rows)}"


def _cost(verify: Mapping[str, Any]) -> Iterable[str]:
    """Yield what half precision costs."""
    beside = verify.get("fp32")
    if not beside:
        return
    precision = escape(str(verify.get("precision")))
    if beside.get("error"):
        yield f"<p>What {precision} costs is not known: no target in fp32 beside it.</p>"
        yield pre(str(beside["error"]))
        return
    errors = [as_number(entry.get("max_abs_error")) for entry in (verify, beside)]
    ours, theirs = ("unknown" if error is None else scientific(error) for error in errors)
    yield f"<p><b>{precision} costs:</b> max error {ours} instead of {theirs}</p>"


def _in_turn(rollout: Mapping[str, Any]) -> dict[str, str]:
    """Return the axes whose size changes from step to step, with their sizes in words."""
    turns = rollout.get("turns") or {}
    return {
        axis: f"{', '.join(str(size) for size in dict.fromkeys(turn))} in turn"
        for axis, turn in turns.items()
    }


def _rollout(rollout: Mapping[str, Any]) -> tuple[Any, ...]:
    word = {True: "PASSED", False: "FAILED"}.get(rollout.get("passed"), "UNCHECKED")  # type: ignore[arg-type]
    return (
        verdict_mark(word),
        rollout.get("mode"),
        show_sizes({**(rollout.get("sizes") or {}), **_in_turn(rollout)}),
        rollout.get("seed"),
        rollout.get("steps"),
        rollout.get("max_abs_error"),
        rollout.get("tensors"),
    )


def cell_of(item: Mapping[str, Any], key: str) -> str:
    """Return one value of ``item``, written for a person and escaped."""
    return escape(show(item.get(key)))


def _benchmark(benchmark: Mapping[str, Any]) -> Iterable[str]:
    eager = benchmark.get("eager") or {}
    rows = []
    for key in ("p50", "p95", "p99", "mean"):
        ours, theirs = as_number(benchmark.get(f"{key}_ms")), as_number(eager.get(f"{key}_ms"))
        if ours is None and theirs is None:
            continue
        ratio = ours / theirs if ours is not None and theirs else None
        rows.append((key, _ms(ours), _ms(theirs), "–" if ratio is None else f"{ratio:.2f}×"))
    yield "<h3>Latency of one step</h3>" + table(("", "this target", "eager", "ratio"), rows)
    facts = [
        f"{show(benchmark.get('steps'))} steps after {show(benchmark.get('warmup'))} of warm-up"
    ]
    if benchmark.get("sizes"):
        facts.append(show_sizes(benchmark["sizes"]))
    if benchmark.get("threads") is not None:
        facts.append(f"threads: {show(benchmark['threads'])}")
    yield f'<p class="muted">{escape("; ".join(facts))}</p>'


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g} ms"


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
