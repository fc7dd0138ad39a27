import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from stateful_pipeline.report import (
    plain_json,
    render_report,
    run_verdict,
    target_verdict,
    write_report,
)

VOID = {"meta", "rect", "line", "circle", "polyline"}


class Page(HTMLParser):
    """Reads a page; fails where tags do not pair up."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "title"} & set(self.open):
            self.words += data


def test_the_verdict_is_the_first_word_of_the_page(
    summary: dict[str, Any], failed: dict[str, Any]
) -> None:
    assert Page(render_report(failed)).words.split()[0] == "FAILED"
    failed["status"] = "passed"
    assert Page(render_report(failed)).words.split()[0] == "PASSED"


def test_a_good_run_shows_steps_latency_states_and_stages(summary: dict[str, Any]) -> None:
    words = Page(render_report(summary)).words
    for text in ("over 4 free-running steps", "worst error 2e-07", "teacher-forced", "batch=4"):
        assert text in words
    for text in ("0.5 ms", "1 ms", "0.50×", "[2, batch, 8]", "cells.h", "not exercised", "1.25 s"):
        assert text in words
    assert "same as a new start" in words


def test_a_failed_run_shows_the_first_difference_and_errors_in_full(failed: dict[str, Any]) -> None:
    words = Page(render_report(failed)).words
    assert "step 2 & 'h'\n<here>" in words
    assert "step 2, state h: expected 0.12, got 0.15 (free-running, batch=4, seed 0)" in words


def test_a_target_that_was_not_checked_says_why(summary: dict[str, Any]) -> None:
    summary["targets"]["gpu"] = {"passed": None, "owed": ["no CUDA device"], "optional": True}
    words = Page(render_report(summary)).words
    assert "OWED" in words
    assert "Owed: no CUDA device" in words


def test_lines_that_raise_in_eager_mode_alone_are_named(summary: dict[str, Any]) -> None:
    summary["notes"] = {"rewrite": {"never_raised": ["cache.py:12"]}}
    assert "forward may raise at cache.py:12" in Page(render_report(summary)).words


def test_state_that_keeps_graphs_is_named(summary: dict[str, Any]) -> None:
    summary["notes"] = {"script": {"carried_graphs": ["'swap' of acme.Kept keeps a graph"]}}
    assert "'swap' of acme.Kept keeps a graph" in Page(render_report(summary)).words


def test_state_that_the_modules_reset_leaves_is_named(summary: dict[str, Any]) -> None:
    summary["notes"] = {"script": {"left_by_reset": ["encoder.steps"]}}
    assert "takes them back, too: encoder.steps" in Page(render_report(summary)).words


def test_a_size_that_varies_from_step_to_step_is_told_from_the_others(
    failed: dict[str, Any],
) -> None:
    cpu = failed["targets"]["cpu"]
    cpu["verify"]["rollouts"][0] |= {
        "sizes": {"batch": 4, "time": 20},
        "turns": {"time": [1, 20, 200, 20]},
    }
    cpu["verify"]["rollouts"][1]["sizes"] = {}
    words = Page(render_report(failed)).words
    assert words.count("batch=4, time=(1, 20, 200 in turn)") == 1
    assert "fixed sizes" in words


def test_what_was_not_finite_is_shown_with_what_is_owed_for_it(summary: dict[str, Any]) -> None:
    cpu = summary["targets"]["cpu"]
    reason = "output is never finite: equality proves nothing"
    fractions = {"state h": 0.25, "output": 1.0, "y": 0.00001, "z": 0.9999}
    cpu["verify"] |= {"passed": None, "non_finite": fractions, "owed": [reason]}
    cpu |= {"passed": None, "owed": [reason]}
    words = Page(render_report(summary)).words
    assert words.count(reason) == 1
    assert "output: all of it, z: 99.9 %, state h: 25 %, y: less than 0.1 %" in words
    assert "OWED" in words


@pytest.mark.parametrize("status", ["passed", "failed", "refused", "owed", "interrupted"])
def test_a_run_that_ended_before_anything_was_made_has_a_page(status: str) -> None:
    early = {"name": "lstm", "status": status, "contract": None, "targets": {}, "stages": {}}
    assert run_verdict(early) in Page(render_report(early)).words


def test_nothing_is_fetched_from_anywhere(failed: dict[str, Any]) -> None:
    html = render_report(failed)
    assert Page(html).links == []
    assert not re.search(r"url\(|@import|<script|<link|<img", html)
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {"http://www.w3.org/2000/svg"}


def test_text_from_the_run_cannot_become_markup(failed: dict[str, Any]) -> None:
    evil = "<script>alert(1)</script>\"'&"

    def poison(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: poison(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poison(item) for item in value]
        return evil if isinstance(value, str) else value

    poisoned = poison(failed)
    poisoned["targets"] = {evil: poisoned["targets"]["cpu"]}
    poisoned["params"] = {evil: evil}
    page = Page(render_report(poisoned))
    assert "script" not in page.tags
    assert evil in page.words


def test_the_page_is_written_whole(summary: dict[str, Any], tmp_path: Path) -> None:
    path = write_report(summary, tmp_path)
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8") == render_report(summary)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_only_what_was_compared_and_found_equal_has_passed() -> None:
    assert target_verdict({"passed": True}) == "PASSED"
    assert target_verdict({"passed": True, "error": "benchmark died"}) == "FAILED"
    assert target_verdict({"passed": None, "owed": ["no device"]}) == "OWED"
    assert target_verdict({"passed": None}) == "UNCHECKED"
    assert target_verdict({}) == "UNCHECKED"
    assert run_verdict({}) == "FAILED"


def test_json_has_no_numbers_that_json_does_not_know() -> None:
    text = plain_json({"worst": float("nan"), "per_step": [1.0, float("inf")]})
    assert json.loads(text) == {"worst": "nan", "per_step": [1.0, "inf"]}


def in_half(summary: dict[str, Any], beside: dict[str, Any]) -> str:
    verify = summary["targets"]["cpu"]["verify"]
    verify |= {"precision": "fp16", "max_abs_error": 2.1e-3, "fp32": beside}
    return render_report(summary)


def test_what_half_precision_costs_is_said_and_drawn(summary: dict[str, Any]) -> None:
    page = in_half(summary, {"max_abs_error": 2.4e-7, "per_step": [0.0, 1e-7, 2.4e-7, 1e-7]})
    assert "<b>fp16 costs:</b> max error 2.1e-3 instead of 2.4e-7" in page
    assert page.count('class="beside"') == 1


def test_it_is_said_why_the_cost_of_half_precision_is_not_known(summary: dict[str, Any]) -> None:
    page = in_half(summary, {"error": "build: no <room>"})
    assert "What fp16 costs is not known" in page
    assert "no &lt;room&gt;" in page
    assert 'class="beside"' not in page


def test_the_tolerance_that_would_do_is_on_the_page(failed: dict[str, Any]) -> None:
    failed["targets"]["cpu"]["verify"]["hint"] = "`targets.cpu.verify: {atol: 5.0e-3}`"
    assert "<b>Try:</b> `targets.cpu.verify: {atol: 5.0e-3}`" in render_report(failed)
