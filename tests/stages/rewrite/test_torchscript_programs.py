"""Random modules with branches and loops: eager, the rewritten graph and ONNX Runtime agree.

The programs are in ``tests/corpus/programs.py``.  Each comes out right, or is refused for one of
``REASONS`` and leaves no file: where buffers trade places in a loop and are then written to in
place, say, nobody can tell which of them a line writes to.  Nothing may come out wrong without a
word.  Which directed programs are refused is written down, so that it shows when that changes.
"""

from __future__ import annotations

import copy
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, assume, given, note, seed, settings
from hypothesis import strategies as st
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError, StateError

REASONS = (
    "may be the same tensor, depending on which way a loop or a branch went",
    "may be the same tensor as '.*' after a call",
    "an item of a list that grows in a loop is assigned",
    # PyTorch's exporter forgets the dtype of a list that some nests of branches hand on.
    "Invalid tensor data type 0",
    # A loop with `break` and `return` in branches of its own hands on what some of them do not set.
    "the dtype or the number of dimensions of '.*' depends on values",
)
"""Why a program may be refused: expressions that its message has to match."""

REFUSED: frozenset[int] = frozenset()
"""The directed programs that are refused, by number."""

LEAST_RIGHT = 0.6
"""The share of one shard's random programs that have to come out right; the others are refused.

Hypothesis makes programs that are alike: of all shards together it is about 0.9."""


def load(name: str) -> ModuleType:
    """Load a module of the corpus by its path: test modules cannot import each other."""
    qualified = f"corpus_{name}"
    if qualified not in sys.modules:
        path = Path(__file__).parents[2] / "corpus" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(qualified, path)
        sys.modules[qualified] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[qualified])
    return sys.modules[qualified]


stores = load("program_stores")
corpus = load("programs")
strategies = load("program_strategies")

# `make test`: the directed programs once each, random ones, each ambiguous kind once.
RANDOM_SHARDS, RANDOM_EACH = 15, 8
# `make test-all`: the same, and more of each.
SLOW_DIRECTED = 5
SLOW_SHARDS, SLOW_EACH = 25, 80
SLOW_AMBIGUOUS = 150


def prove(module: nn.Module, xs: Sequence[torch.Tensor], folder: Path) -> None:
    """Export ``module`` and hold each step of the ONNX model against eager PyTorch.

    Before it writes anything, the export compares the rewritten graph with eager bit for bit.
    """
    path = folder / "model.onnx"
    eager = copy.deepcopy(module)
    sp.export_onnx(module, (xs[0],), path, frontend="torchscript")
    runner = sp.StatefulRunner(path)
    for step, (x, expected) in enumerate(zip(xs, corpus.rollout(eager, xs), strict=True)):
        got = runner.run({"x": x.numpy()}) | runner.state
        for name, value in got.items():
            np.testing.assert_allclose(
                value,
                expected[name].numpy(),
                atol=1e-5,
                rtol=1e-4,
                err_msg=f"'{name}' at step {step}",
            )


def over(
    programs: st.SearchStrategy,
    count: int,
    check: Callable[[object, nn.Module], None],
    folder: Path,
    *,
    number: int | None = None,
) -> None:
    """Check ``count`` programs, the same ones each time where they have a ``number``."""

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, *[Phase.shrink] * (count > 1)),  # directed ones are small
    )
    @given(programs)
    def run(program: object) -> None:
        note(corpus.source(program).text)
        module = corpus.build(program, folder)().eval()
        assume(corpus.steady(module, corpus.inputs()))
        check(program, module)

    (run if number is None else seed(number)(run))()


class Tally:
    """Counts programs that came out right, and those that were refused."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.right, self.refused = folder, 0, 0

    def __call__(self, program: object, module: nn.Module) -> None:
        del program
        path = self.folder / "model.onnx"
        path.unlink(missing_ok=True)
        refusal = refusal_of(module, self.folder)
        if refusal is None:
            self.right += 1
            return
        self.refused += 1
        assert any(re.search(reason, refusal.message) for reason in REASONS), str(refusal)
        assert not path.exists()
        if isinstance(refusal, StateError):
            assert Path(refusal.file or "").name.startswith("program_"), str(refusal)
            assert refusal.line is not None


def refusal_of(module: nn.Module, folder: Path) -> PipelineError | None:
    try:
        prove(module, corpus.inputs(), folder)
    except PipelineError as error:
        return error
    return None


@pytest.mark.parametrize("number", range(strategies.DIRECTED))
def test_each_store_is_right_in_each_block(number, tmp_path) -> None:
    check_directed(number, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(strategies.DIRECTED))
def test_each_store_is_right_in_each_block_many_times(number, tmp_path) -> None:
    check_directed(number, SLOW_DIRECTED, tmp_path)


def check_directed(number: int, count: int, folder: Path) -> None:
    seen: set[tuple[str, str]] = set()
    tally = Tally(folder)

    def check(program: object, module: nn.Module) -> None:
        before = tally.right
        tally(program, module)
        if tally.right > before:
            seen.update(corpus.executed(module, program, corpus.inputs()))

    over(strategies.directed(number), count, check, folder, number=number)
    if count == 1:
        assert bool(tally.refused) == (number in REFUSED)
    if tally.right:
        assert strategies.pairs_of(number) <= seen


def test_the_programs_cover_each_store_in_each_block() -> None:
    right = [number for number in range(strategies.DIRECTED) if number not in REFUSED]
    covered = set().union(*(strategies.pairs_of(number) for number in right))
    assert len(covered) >= 0.95 * len(strategies.feasible())  # the rest is in REFUSED alone
    everything = set().union(*(strategies.pairs_of(n) for n in range(strategies.DIRECTED)))
    assert everything == strategies.feasible()
    assert (
        set(stores.INFEASIBLE)
        == {(kind, block) for kind in stores.DEFINITE for block in corpus.BLOCKS}
        - strategies.feasible()
    )


@pytest.mark.parametrize("shard", range(RANDOM_SHARDS))
def test_random_programs_are_right(shard, tmp_path) -> None:
    tally = Tally(tmp_path)
    over(strategies.programs(), RANDOM_EACH, tally, tmp_path, number=shard)
    assert tally.right >= 1


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SLOW_SHARDS))
def test_many_random_programs_are_right(shard, tmp_path) -> None:
    del shard
    tally = Tally(tmp_path)
    over(strategies.programs(), SLOW_EACH, tally, tmp_path)
    assert tally.right >= LEAST_RIGHT * (tally.right + tally.refused)


@pytest.mark.parametrize("kind", stores.AMBIGUOUS)
def test_ambiguous_stores_are_right_or_refused(kind, tmp_path) -> None:
    seen: set[tuple[str, str]] = set()
    check = Tally(tmp_path)

    def both(program: object, module: nn.Module) -> None:
        check(program, module)
        seen.update(corpus.executed(module, program, corpus.inputs()))

    over(strategies.ambiguous(kind), 1, both, tmp_path, number=0)
    assert {(kind, block) for block in corpus.BLOCKS} <= seen


@pytest.mark.slow
def test_many_ambiguous_programs_are_right_or_refused(tmp_path) -> None:
    programs = strategies.programs(tuple(stores.STORES))
    over(programs, SLOW_AMBIGUOUS, Tally(tmp_path), tmp_path)


def test_there_are_as_many_programs_as_promised() -> None:
    fast = strategies.DIRECTED + RANDOM_SHARDS * RANDOM_EACH + len(stores.AMBIGUOUS)
    slow = strategies.DIRECTED * SLOW_DIRECTED + SLOW_SHARDS * SLOW_EACH + SLOW_AMBIGUOUS
    assert fast >= 300
    assert slow >= 3000
    assert len(REFUSED) <= 0.05 * strategies.DIRECTED


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("shard", range(4))
def test_programs_mean_the_same_in_eager_mode_and_as_torchscript(shard, tmp_path) -> None:
    every = strategies.programs(tuple(stores.STORES))
    over(every, 25, same_as_torchscript, tmp_path, number=shard)


def same_as_torchscript(program: object, module: nn.Module) -> None:
    del program
    scripted = torch.jit.script(copy.deepcopy(module))
    try:
        got = corpus.rollout(scripted, corpus.inputs())
    except RuntimeError as error:
        # TorchScript's interpreter runs a loop with one result at the place where the enclosing
        # block returns it, and so after a value that the block returns before it has been moved
        # there, although the loop reads that value.
        assume("Expected Tensor but got None" not in str(error))
        raise
    for step, (one, two) in enumerate(
        zip(corpus.rollout(module, corpus.inputs()), got, strict=True)
    ):
        for name, value in one.items():
            assert torch.equal(value, two[name]), f"'{name}' at step {step}"
