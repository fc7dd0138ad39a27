"""Signals that end a run as Ctrl-C does."""

import os
import signal
import subprocess
import sys

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
