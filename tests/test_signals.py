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


STUCK = """\
import ctypes, sys, time
from stateful_pipeline import signals

signals._PATIENCE = 0.5
signals.as_interrupts()
mutex = ctypes.create_string_buffer(64)
library = ctypes.CDLL(None)
library.pthread_mutex_lock(mutex)
print("ready", flush=True)
try:
    WAIT
    print("on", flush=True)
finally:
    time.sleep(1.0)  # longer than anyone waits for a handler
    print("cleaned up", flush=True)
"""


def interrupted(wait, *numbers):
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.replace("WAIT", wait)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.0)  # until it waits: an interrupt before that would be one of Python
    for number in numbers:
        process.send_signal(number)
    out, err = process.communicate(timeout=20)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_code_that_never_returns_is_ended(number):
    code, out, err = interrupted("library.pthread_mutex_lock(mutex)", number)
    assert (code, out) == (130, "")
    assert err.startswith("interrupted: C++ code, of a model or of a library, has not returned for")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_takes_its_time_to_clean_up_is_left_to_it(number):
    """Even where two signals come at once, as `timeout` sends them: Python may see one."""
    code, _, err = interrupted("time.sleep(20)", number, number)
    assert code == -signal.SIGINT  # as Python ends with it
    assert "KeyboardInterrupt" in err
    assert "has not returned" not in err


def test_a_crash_in_code_of_cpp_says_which_line_called_it():
    code = "from stateful_pipeline.signals import as_interrupts\nas_interrupts()\n"
    code += "import ctypes\ndef step():\n    ctypes.string_at(0)\nstep()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert 'File "<string>", line 5 in step' in done.stderr
    assert "_watch" not in done.stderr


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
