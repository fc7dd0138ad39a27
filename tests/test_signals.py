"""Signals that end a run as Ctrl-C does."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from stateful_pipeline.signals import as_interrupts


@pytest.fixture
def _handlers():
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts(number):
    as_interrupts()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.usefixtures("_handlers")
def test_a_signal_that_is_ignored_stays_so_as_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    as_interrupts()
    os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


WAITING = """\
import os, sys, time
from stateful_pipeline.signals import as_interrupts

as_interrupts()
report = int(sys.argv[1])
try:
    os.write(report, b"ready\\n")
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")  # to a terminal that is gone
    sys.stdout.flush()
    os.write(report, b"done\\n")
"""


def test_a_terminal_that_hangs_up_does_not_break_what_is_left_to_say():
    master, slave = os.openpty()
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(write)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        pass_fds=[write],
        start_new_session=True,
    )
    os.close(slave)
    os.close(write)
    with os.fdopen(read) as report:
        assert report.readline() == "ready\n"
        os.close(master)
        process.send_signal(signal.SIGHUP)
        assert report.readline() == "done\n"
    assert process.wait(20) == 0


MODEL = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = 0.5 * self.h + x
        return 2 * self.h
"""
SPEC = """\
name: leaky
source: {file: "model.py:Leaky"}
inputs:
  x: {shape: [batch, 3]}
dynamic_axes: {batch: {min: 1, opt: 2, max: 3}}
verify: {steps: 2000}
benchmark: {steps: 2000}
mlflow: {enabled: false}
"""


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.0, 0.4, 1.5])
def test_ctrl_c_ends_a_run_with_130_and_leaves_nothing_half_written(tmp_path, seconds):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "leaky.yaml").write_text(SPEC)
    process = subprocess.Popen(
        [sys.executable, "-m", "stateful_pipeline.cli", "run", "leaky.yaml", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    builds = tmp_path / "out" / ".builds" / "leaky"
    while process.poll() is None and not (builds.is_dir() and any(builds.iterdir())):
        time.sleep(0.01)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    (build,) = builds.iterdir()
    assert json.loads((build / "manifest.json").read_text())["status"] == "interrupted"
    assert not (tmp_path / "out" / "leaky").exists()
    half_written = [path.name for path in build.rglob(".*")]
    assert half_written == []
    files = json.loads((build / "manifest.json").read_text())["files"]
    assert {str(p.relative_to(build)) for p in build.rglob("*") if p.is_file()} == {
        *files,
        "manifest.json",
    }
