"""Values come back from a fork of this process, and nothing else does."""

import ctypes
import os
import signal

import pytest
import torch

from stateful_pipeline.errors import StageError
from stateful_pipeline.model.forked import values_in_fork


def test_values_come_back_and_what_was_changed_does_not():
    held = {"sum": torch.zeros(2, dtype=torch.bfloat16)}

    def steps():
        for _ in range(3):
            held["sum"] += 1
            yield {"sum": held["sum"].clone()}

    made = values_in_fork(steps)
    assert [value["sum"].tolist() for value in made.values] == [[1, 1], [2, 2], [3, 3]]
    assert made.raised is None
    assert held["sum"].tolist() == [0, 0]


def test_random_numbers_are_those_that_this_process_would_draw():
    with torch.random.fork_rng(devices=[]):
        made = values_in_fork(lambda: iter([torch.rand(3)]))
        torch.testing.assert_close(made.values[0], torch.rand(3), rtol=0, atol=0)


def test_work_that_more_threads_shared_is_done():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        big = torch.ones(600, 600)
        expected = [big @ big, (big + 1).sum()]
        made = values_in_fork(lambda: iter([big @ big, (big + 1).sum()]))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(made.values, expected)


def test_values_up_to_an_exception_come_back_with_its_words():
    def steps():
        yield torch.ones(1)
        raise ValueError("full")

    made = values_in_fork(steps)
    assert len(made.values) == 1
    assert made.raised == "ValueError: full"


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os._exit(0), "ends the process that it runs in, with code 0, at step 1"),
        (lambda: ctypes.CDLL(None).exit(0), "ends the process that it runs in, with code 0"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), r"crashes \(SIGSEGV\) at step 1"),
    ],
    ids=["_exit", "exit", "crash"],
)
def test_what_ends_the_fork_is_named_with_its_step(end, how):
    def steps():
        yield torch.ones(1)
        end()
        yield torch.ones(1)

    with pytest.raises(StageError, match=how):
        values_in_fork(steps)


def test_what_goes_on_for_too_long_is_ended(monkeypatch):
    monkeypatch.setattr("stateful_pipeline.model.forked._LONGEST", 0.2)

    def steps():
        yield torch.ones(1)
        while True:
            pass

    with pytest.raises(StageError, match="takes more than 0 s"):
        values_in_fork(steps)
