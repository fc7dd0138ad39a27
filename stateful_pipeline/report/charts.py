"""Two charts as hand-written SVG, with fixed axes so that two runs compare side by side.

A chart stands alone (MLflow shows it as an image, on white) and is also set inline in the HTML
page, where the page's colours win: each colour is a CSS variable whose fallback is the light one.

Both scales are logarithmic: a point ``v`` of the range ``[10^a, 10^b]`` lies at the fraction
``(log10 v - a) / (b - a)``.  What lies outside is clamped to the edge and marked there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from stateful_pipeline.report.verdict import as_number, show

ERROR_DECADES = (-9, 1)
"""The range of the error axis, as powers of ten; absolute error, in the tensor's own unit."""

LATENCY_DECADES = (-3, 4)
"""The range of the latency axis, as powers of ten of a millisecond: 1 µs to 10 s."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 40, 40
_WIDTH = 640
_MAX_POINTS = 560

_STYLE = """
.chart{font:12px system-ui,sans-serif}
.chart .paper{fill:var(--paper,#fff)}
.chart text{fill:var(--ink,#1f2430)}
.chart .faint{fill:var(--muted,#5c6470)}
.chart .grid{stroke:var(--line,#dfe3e8);stroke-width:1}
.chart .curve{fill:none;stroke:var(--ours,#1f6feb);stroke-width:2;stroke-linejoin:round}
.chart .beside{fill:none;stroke:var(--eager,#b35900);stroke-width:1.5;stroke-linejoin:round}
.chart .ours{fill:var(--ours,#1f6feb)}
.chart .eager{fill:var(--eager,#b35900)}
.chart .limit{stroke:var(--bad,#c62828);stroke-width:1.5;stroke-dasharray:6 4}
.chart .bad{fill:var(--bad,#c62828)}
"""


def _fraction(value: float, decades: tuple[int, int]) -> float:
    """Place ``value`` on a log scale: 0 at the low end, 1 at the high one; not finite is 1."""
    if not math.isfinite(value):
        return 1.0
    low, high = decades
    if value <= 0:
        return 0.0
    return min(1.0, max(0.0, (math.log10(value) - low) / (high - low)))


def _frame(height: int, title: str, body: Sequence[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" '
            f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
            f'aria-label="{escape(title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{_WIDTH}" height="{height}"/>',
            f'<text x="{_LEFT}" y="22" font-size="14" font-weight="600">{escape(title)}</text>',
            *body,
            "</svg>\n",
        ]
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "faint") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _thin(values: Sequence[float]) -> list[tuple[int, float]]:
    """Pair values with their step; past :data:`_MAX_POINTS` keep the worst of each bucket."""
    bucket = max(1, math.ceil(len(values) / _MAX_POINTS))
    points = []
    for start in range(0, len(values), bucket):
        steps = range(start, min(start + bucket, len(values)))
        worst = max(steps, key=lambda step: math.inf if math.isnan(values[step]) else values[step])
        points.append((worst, values[worst]))
    return points


def error_svg(
    per_step: Sequence[Any],
    atol: float | None,
    title: str,
    *,
    first_bad: int | None = None,
    names: tuple[str, str] = ("", ""),
    beside: Sequence[Any] = (),
) -> str:
    """Draw the worst absolute error of each free-running step.

    Args:
        per_step: One error for each step, the first being step 0; ``"nan"`` and ``"inf"`` are drawn
            in red at the top, an exact zero at the bottom.
        atol: The absolute tolerance, drawn as a dashed line; None for no line.
        title: What stands above the chart.
        first_bad: The first step that was not equal, marked in red.
        names: What the two curves are called, where there are two.
        beside: The errors of a second curve, over the same steps.

    Returns:
        An SVG document of 640 by 300, whose vertical axis is always 1e-9 to 10.
    """
    height = 300
    right, bottom = _WIDTH - _RIGHT, height - _BOTTOM
    low, high = ERROR_DECADES

    def y_of(value: float) -> float:
        return bottom - _fraction(value, ERROR_DECADES) * (bottom - _TOP)

    body = []
    for power in range(low, high + 1, 2):
        y = y_of(10.0**power)
        body += [
            _line("grid", _LEFT, y, right, y),
            _text(_LEFT - 8, y + 4, f"1e{power}", anchor="end"),
        ]
    values, others = _numbers(per_step), _numbers(beside)
    last = max(1, len(values) - 1, len(others) - 1)

    def x_of(step: int) -> float:
        return _LEFT + step / last * (right - _LEFT)

    for step in sorted({0, last // 2, last}):
        anchor = {0: "start", last: "end"}.get(step, "middle")
        body.append(_text(x_of(step), bottom + 18, str(step), anchor=anchor))
    middle = (_LEFT + right) / 2
    body.append(_text(middle, height - 6, "step (worst absolute error)", anchor="middle"))
    if atol is not None and atol > 0:
        y = y_of(atol)
        body += [
            _line("limit", _LEFT, y, right, y),
            _text(right - 4, y - 6, f"atol {atol:.0e}", anchor="end"),
        ]
    if others:
        path = " ".join(f"{x_of(step):.1f},{y_of(value):.1f}" for step, value in _thin(others))
        body += [f'<polyline class="beside" points="{path}"/>', *_legend(names, right)]
    points = [(step, value, x_of(step), y_of(value)) for step, value in _thin(values)]
    if points:
        path = " ".join(f"{x:.1f},{y:.1f}" for _, _, x, y in points)
        body.append(f'<polyline class="curve" points="{path}"/>')
    else:
        body.append(_text(middle, (_TOP + bottom) / 2, "no step was compared", anchor="middle"))
    for step, value, x, y in points:
        if step == first_bad or not value <= 10.0**high:
            body.append(
                f'<circle class="bad" cx="{x:.1f}" cy="{y:.1f}" r="4">'
                f"<title>step {step}: {show(value)}</title></circle>"
            )
    return _frame(height, title, body)


def _numbers(items: Sequence[Any]) -> list[float]:
    """Return errors as floats; what is none is NaN."""
    return [math.nan if (number := as_number(item)) is None else number for item in items]


def _legend(names: tuple[str, str], right: float) -> list[str]:
    """Name the two curves, above them."""
    body = []
    for kind, name, x in (("ours", names[0], right - 96), ("eager", names[1], right - 40)):
        body += [
            f'<circle class="{kind}" cx="{x:.1f}" cy="18" r="5"/>',
            _text(x + 10, 22, name, kind="label"),
        ]
    return body


def latency_svg(benchmark: Mapping[str, Any], title: str = "Latency of one step") -> str:
    """Draw p50, p95 and p99 of a step beside those of eager PyTorch.

    Args:
        benchmark: ``p50_ms``, ``p95_ms``, ``p99_ms`` and, under ``eager``, the same; what is
            missing is left out.
        title: What stands above the chart.

    Returns:
        An SVG document of 640 by 200, whose horizontal axis is always 1 µs to 10 s.
    """
    height = 200
    left, right, bottom = _LEFT, _WIDTH - 96, height - _BOTTOM
    low, high = LATENCY_DECADES

    def x_of(milliseconds: float) -> float:
        return left + _fraction(milliseconds, LATENCY_DECADES) * (right - left)

    body = []
    names = {-3: "1 µs", -2: "10 µs", -1: "0.1 ms", 0: "1 ms", 1: "10 ms", 2: "0.1 s", 3: "1 s"}
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        name = names.get(power, f"{10 ** (power - 3)} s")
        body += [_line("grid", x, _TOP, x, bottom), _text(x, bottom + 18, name, anchor="middle")]
    eager = benchmark.get("eager") or {}
    if not benchmark:
        middle = (left + right) / 2
        body.append(_text(middle, (_TOP + bottom) / 2, "not measured", anchor="middle"))
    for row, quantile in enumerate(("p50", "p95", "p99")):
        y = _TOP + 20 + row * 40
        body.append(_text(left - 8, y + 4, quantile, anchor="end", kind="label"))
        for source, kind, offset in ((benchmark, "ours", -7), (eager, "eager", 9)):
            value = as_number(source.get(f"{quantile}_ms"))
            if value is None:
                continue
            x = x_of(value)
            body += [
                f'<circle class="{kind}" cx="{x:.1f}" cy="{y + offset:.1f}" r="5"/>',
                _text(x + 10, y + offset + 4, f"{show(value)} ms", kind="label"),
            ]
    body += [
        f'<circle class="ours" cx="{right - 96}" cy="18" r="5"/>',
        _text(right - 86, 22, "this target", kind="label"),
        f'<circle class="eager" cx="{right + 4}" cy="18" r="5"/>',
        _text(right + 14, 22, "eager", kind="label"),
    ]
    return _frame(height, title, body)
