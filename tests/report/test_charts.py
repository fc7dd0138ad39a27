import itertools
import re
from xml.etree import ElementTree

import pytest

from stateful_pipeline.report import error_svg, latency_svg

SVG = "{http://www.w3.org/2000/svg}"


def curve(svg: str) -> list[tuple[float, float]]:
    line = ElementTree.fromstring(svg).find(f"{SVG}polyline")
    assert line is not None
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]


def marks(svg: str, kind: str) -> list[ElementTree.Element]:
    circles = ElementTree.fromstring(svg).findall(f"{SVG}circle")
    return [circle for circle in circles if circle.attrib["class"] == kind]


def test_an_error_has_the_same_height_whatever_else_is_drawn() -> None:
    small = curve(error_svg([1e-7, 1e-8], 1e-5, "a"))
    large = curve(error_svg([1e-7, 5.0, 1e-3], None, "b"))
    assert small[0][1] == large[0][1]


def test_each_decade_takes_the_same_height() -> None:
    heights = [y for _, y in curve(error_svg([1e-8, 1e-7, 1e-6, 1e-5], 1e-5, "a"))]
    gaps = {round(above - below, 1) for above, below in itertools.pairwise(heights)}
    assert max(gaps) - min(gaps) <= 0.1
    assert min(gaps) > 0


def test_zero_lies_at_the_bottom_and_what_is_not_a_number_is_marked_at_the_top() -> None:
    svg = error_svg([0.0, 1e-9, 10.0, float("nan"), "inf", None], 1e-5, "a")
    heights = [y for _, y in curve(svg)]
    assert heights[0] == heights[1]
    assert len(set(heights[2:])) == 1
    assert heights[2] < heights[0]
    assert len(marks(svg, "bad")) == 3


def test_the_first_bad_step_is_marked() -> None:
    svg = error_svg([1e-7, 1e-7, 1e-2], 1e-5, "a", first_bad=2)
    [mark] = marks(svg, "bad")
    assert float(mark.attrib["cx"]) == curve(svg)[2][0]


def test_a_long_rollout_is_thinned_without_losing_its_worst_step() -> None:
    errors = [1e-8] * 100_000
    errors[54_321] = 1.0
    svg = error_svg(errors, 1e-5, "a")
    assert len(svg) < 30_000
    assert min(y for _, y in curve(svg)) == curve(error_svg([1.0], 1e-5, "a"))[0][1]


def test_a_run_without_steps_still_has_a_chart() -> None:
    assert "no step was compared" in error_svg([], None, "a")
    assert "not measured" in latency_svg({})


def test_titles_are_escaped() -> None:
    ElementTree.fromstring(error_svg([1e-7], 1e-5, 'a <b> & "c"'))
    ElementTree.fromstring(latency_svg({"p50_ms": 1.0}, "a <b> & 'c'"))


@pytest.mark.parametrize("milliseconds", [1e-4, 0.001, 0.5, 9999.0, 1e6])
def test_a_latency_has_the_same_place_beside_any_other(milliseconds: float) -> None:
    alone = latency_svg({"p50_ms": milliseconds})
    beside = latency_svg({"p50_ms": milliseconds, "eager": {"p50_ms": 3.0}})

    def place(svg: str) -> str:
        return marks(svg, "ours")[0].attrib["cx"]

    assert place(alone) == place(beside)
    assert 0 < float(place(alone)) < 640


def test_latency_names_its_numbers() -> None:
    svg = latency_svg({"p50_ms": 0.5, "p95_ms": 0.6, "p99_ms": 0.9, "eager": {"p50_ms": 1.25}})
    assert re.findall(r"([\d.]+) ms</text>", svg)[-4:] == ["0.5", "1.25", "0.6", "0.9"]


def test_a_second_curve_is_drawn_on_the_same_scale_and_named() -> None:
    alone = curve(error_svg([1e-7, 1e-6], None, "a"))
    svg = error_svg([1e-3, 1e-2], None, "a", names=("fp16", "fp32"), beside=[1e-7, 1e-6])
    lines = ElementTree.fromstring(svg).findall(f"{SVG}polyline")
    points = {line.attrib["class"]: line.attrib["points"].split() for line in lines}
    assert points["beside"] == [f"{x:.1f},{y:.1f}" for x, y in alone]
    assert points["curve"] != points["beside"]
    texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert {"fp16", "fp32"} <= {*texts}
