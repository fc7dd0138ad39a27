"""What people see, on a terminal and elsewhere."""

import io
from pathlib import Path

import pytest

from stateful_pipeline.errors import StageError, TargetError
from stateful_pipeline.outcome import Outcome
from stateful_pipeline.stages.artifacts import TargetBuild
from stateful_pipeline.stages.log import LogResult
from stateful_pipeline.terminal import Terminal


class Tty(io.StringIO):
    def isatty(self):
        return True


def shown(outcome):
    stream = io.StringIO()
    Terminal(stream).verdict(outcome)
    return stream.getvalue()


def outcome(status, *targets, **more):
    return Outcome(
        "m", status, Path("out/.builds/m/1"), targets={t.name: t for t in targets}, **more
    )


def verify(**changed):
    return {
        "steps": 8,
        "max_abs_error": 1.25e-6,
        "first_bad": None,
        "reset": {"passed": True},
        **changed,
    }


def test_plain_lines_have_no_escape_codes_and_end_each_stage():
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.title("m", Path("configs/m.yaml"))
    for status, error in (("done", None), ("reused", None), ("skipped", None)):
        terminal.begin("script")
        terminal.say("looking")
        terminal.end("script", status, 1.5, error)
    text = stream.getvalue()
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4
    assert "1.50 s" in text
    assert "looking" not in text


def test_a_terminal_gets_colours(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Tty()
    terminal = Terminal(stream)
    terminal.begin("verify")
    terminal.say("rolling out")
    terminal.end("verify", "failed", 0.1, "no luck")
    assert "\x1b[" in stream.getvalue()
    assert "no luck" in stream.getvalue()


def test_square_brackets_of_the_users_are_printed_and_not_read_as_markup():
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.title("[red]m", Path("[bold]/m.yaml"))
    terminal.end("script", "failed", 0.1, 'states["cells.0.h"]: [batch, 3] [/] [red]')
    assert 'states["cells.0.h"]: [batch, 3] [/] [red]' in stream.getvalue()
    assert "[red]m" in stream.getvalue()


def test_a_long_error_is_not_cut():
    stream = io.StringIO()
    Terminal(stream).end("script", "failed", 0.1, "x" * 500)
    assert "x" * 500 in stream.getvalue()


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("passed", "equal to eager PyTorch"),
        ("built", "not verified"),
        ("failed", "failed"),
        ("refused", "refused"),
        ("owed", "could not be checked"),
        ("interrupted", "interrupted"),
    ],
)
def test_the_last_word_is_what_the_run_ended_with(status, word):
    text = shown(outcome(status))
    assert word in text
    assert ("equal" in text) == (status == "passed")
    assert str(Path("out/.builds/m/1/report.html")) in text


def test_lines_that_raise_in_eager_mode_alone_are_said():
    notes = {"rewrite": {"never_raised": ["cache.py:12"]}}
    assert "cache.py:12 may raise; an engine goes on there" in shown(
        outcome("passed", summary={"notes": notes})
    )


def test_state_that_keeps_graphs_is_said():
    graph = "state 'held', a C++ object of acme.Kept: 'swap' leaves state that requires grad"
    notes = {"script": {"carried_graphs": [graph]}}
    text = " ".join(shown(outcome("passed", summary={"notes": notes})).split())
    assert graph in text


def test_only_what_was_checked_and_equal_is_called_passed():
    good = TargetBuild("good", passed=True, verify=verify())
    bad = TargetBuild("bad", passed=False, verify=verify())
    broken = TargetBuild("broken", error=StageError("no", stage="build"))
    absent = TargetBuild("absent", error=TargetError("no GPU", target="absent"))
    owed = TargetBuild("owed", owed=["no GPU here"])
    text = shown(outcome("failed", good, bad, broken, absent, owed))
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert "PASSED" in rows["good"]
    assert "1.3e-06" in rows["good"]
    assert "FAILED" in rows["bad"]
    assert "FAILED" in rows["broken"]
    assert "not available" in rows["absent"]
    assert "owed" in rows["owed"]
    assert sum("PASSED" in row for row in rows.values()) == 1
    assert "no GPU here" in text


def test_the_first_bad_step_and_tensor_are_named():
    bad = {
        "kind": "state", "tensor": "cells.0.h", "step": 3, "mode": "free-running",
        "sizes": {"batch": 4}, "seed": 1, "expected": 0.5, "got": 0.25,
    }  # fmt: skip
    text = shown(outcome("failed", TargetBuild("cpu", passed=False, verify=verify(first_bad=bad))))
    assert "state 'cells.0.h' is off from step 3 on" in text
    assert "free-running, batch=4, seed 1" in text
    assert "expected 0.5, got 0.25" in text


def test_a_reset_that_does_not_restore_is_said():
    failed = verify(reset={"passed": False})
    text = shown(outcome("failed", TargetBuild("cpu", passed=False, verify=failed)))
    assert "reset does not restore" in text


def test_where_it_was_logged_or_why_not_is_said():
    log = LogResult("sqlite:////x/mlflow.db", "1", "abc", "http://127.0.0.1:5000/#/x", "mlflow ui")
    text = shown(outcome("passed", log=log))
    assert "http://127.0.0.1:5000/#/x" in text
    assert "mlflow ui" in text
    text = shown(outcome("passed", log=LogResult("http://h:1", warning="nobody answers")))
    assert "not logged: nobody answers" in text


def test_a_size_that_varies_is_told_from_the_others():
    bad = {
        "kind": "output", "tensor": "y", "step": 3, "mode": "free-running", "seed": 1,
        "sizes": {"batch": 4, "time": "1, 20 in turn"}, "expected": 0.5, "got": 0.25,
    }  # fmt: skip
    text = shown(outcome("failed", TargetBuild("cpu", passed=False, verify=verify(first_bad=bad))))
    assert "batch=4, time=(1, 20 in turn), seed 1" in text


def test_a_verified_build_that_stays_is_said_in_a_line_before_the_new_ones_folder():
    text = shown(outcome("built", kept=Path("out/m")))
    stays, build = (
        line for line in text.splitlines() if "out/m stays" in line or "build  " in line
    )
    assert "verified" in stays
    assert "out/.builds/m/1" in build
