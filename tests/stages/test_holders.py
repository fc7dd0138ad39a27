"""Modules with state in every holder, changed in every way, in every block, are right.

The modules are made in ``tests/corpus/holders.py``.  Those of ``make test`` have every combination
once; ``make test-all`` draws more at random.  Each has several states, is exported with
``frontend="auto"`` and followed beside eager PyTorch.
"""

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError

STEPS = 8
EACH = 5
SLOW_SHARDS, SLOW_EACH = 27, 100
LEAST_RIGHT = 0.95


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


holders = _load("corpus_holders", Path(__file__).parents[1] / "corpus" / "holders.py")
MODULES = holders.modules(EACH)
INPUTS = [
    torch.randn(*holders.SHAPE, generator=torch.Generator().manual_seed(n)) for n in range(STEPS)
]


def build(states, folder):
    """Return a new module with ``states``, whose code is in a file of ``folder``."""
    path = folder / f"module_{abs(hash(states))}.py"
    path.write_text(holders.source(states))
    return _load(path.stem, path).Model().eval()


def check(states, folder):
    """Export a module with ``states`` and compare it with eager at every step."""
    model = folder / "m.onnx"
    sp.export_onnx(build(states, folder), (INPUTS[0],), model)
    runner, eager = sp.StatefulRunner(model), build(states, folder)
    for step, x in enumerate(INPUTS):
        expected = eager(x).detach().numpy()
        got = runner.run({"x": x.numpy()})["output"]
        message = f"step {step} of {states}"
        assert got.dtype == expected.dtype, message
        np.testing.assert_allclose(got, expected, 1e-4, 1e-4, err_msg=message)


def test_the_modules_have_every_holder_way_and_block():
    wanted = {(s.holder, s.way, s.block) for s in holders.every_state()}
    for holder in (*holders.TENSORS, *holders.NUMBERS):
        ways = {w for d in holders.dtypes_of(holder) for w in holders.ways_of(holder, d)}
        assert {(holder, w, b) for w in ways for b in holders.BLOCKS} <= wanted
    refused = {s for s in holders.every_state() if holders.is_refused([s])}
    assert len(refused) <= 0.05 * len(wanted)
    made = {(s.holder, s.way, s.block) for states in MODULES for s in states}
    assert made == wanted - {(s.holder, s.way, s.block) for s in refused}


@pytest.mark.parametrize("number", range(len(MODULES)))
def test_states_in_every_holder_way_and_block_are_right(number, tmp_path):
    check(MODULES[number], tmp_path)


@pytest.mark.parametrize(
    "state", [s for s in holders.every_state() if holders.is_refused([s])][::4], ids=str
)
def test_what_no_front_end_takes_is_refused_with_its_line(state, tmp_path):
    with pytest.raises(PipelineError) as caught:
        check((state,), tmp_path)
    assert Path(caught.value.file or "").name.startswith("module_")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SLOW_SHARDS))
def test_random_modules_are_right_or_refused(shard, tmp_path):
    draw = random.Random(shard)
    everything = [
        holders.State(holder, dtype, way, block)
        for holder in (*holders.TENSORS, *holders.NUMBERS)
        for dtype in holders.dtypes_of(holder)
        for way in holders.ways_of(holder, dtype)
        for block in holders.BLOCKS
    ]
    right = 0
    for _ in range(SLOW_EACH):
        states = tuple(draw.sample(everything, draw.randint(1, 4)))
        while holders.is_refused(states):
            states = tuple(draw.sample(everything, draw.randint(1, 4)))
        try:
            check(states, tmp_path)
            right += 1
        except PipelineError:
            assert not (tmp_path / "m.onnx").exists()
        (tmp_path / "m.onnx").unlink(missing_ok=True)
    assert right >= LEAST_RIGHT * SLOW_EACH
