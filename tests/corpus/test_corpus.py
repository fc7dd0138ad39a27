"""Every module of the corpora comes out right at every step; what draws numbers is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError, StageError, StateError

UNSUPPORTED = {
    "Noisy": "random",
}


def check_rollout(case, path, contract, tolerance=1e-5) -> None:
    runner = sp.StatefulRunner(path)
    for _ in range(2):  # the second time after a reset
        module = case.build()
        for step in range(case.steps):
            arguments = case.inputs(step)
            with torch.no_grad():
                expected = module(*arguments)
            given = {v.name: a.numpy() for v, a in zip(contract.inputs, arguments, strict=True)}
            got = runner.run(given)["output"]
            assert got.dtype == expected.numpy().dtype
            np.testing.assert_allclose(
                got, expected.numpy(), rtol=1e-4, atol=tolerance, err_msg=f"step {step}"
            )
        runner.reset()


def test_case_equals_eager_or_is_refused(case, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    if case.name in UNSUPPORTED:
        with pytest.raises((StateError, StageError), match=UNSUPPORTED[case.name]) as caught:
            sp.export_onnx(case.build(), case.inputs(0), path)
        error: PipelineError = caught.value
        assert error.file is not None
        assert error.file.endswith("cases.py")
        assert error.line is not None
        assert list(tmp_path.iterdir()) == []
        return
    contract = sp.export_onnx(case.build(), case.inputs(0), path)
    found = {state.name for state in contract.states}
    # a container counts as one state in the case, and as several in the contract
    assert {name for name in case.states if not any(f.startswith(f"{name}.") for f in found)} == {
        name for name in found if not any(name.startswith(f"{s}.") for s in case.states)
    }
    check_rollout(case, path, contract)


REGISTERED = [
    "Counter AugmentedAssign FifoByCat SliceAssign KeyValueCache StreamingLSTM NestedReassign",
    "NestedInPlace SharedSubmodule ParentReadsChild Branch LoopOverTime ReturnsState TrailingCopy",
    "NonZeroInit RingBuffer GrowingCache BoolState RunningNorm StackedGRUCells Swap",
    "ConstantBuffers HalfState CausalConv OverlapAdd BeamReorder",
]


def test_case_equals_eager_through_torchscript(case, tmp_path) -> None:
    if case.name not in " ".join(REGISTERED).split():
        pytest.skip("its state is no registered buffer, or it is no TorchScript")
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(case.build(), case.inputs(0), path, frontend="torchscript")
    assert {state.name for state in contract.states} == set(case.states)
    check_rollout(case, path, contract)


def test_stream_equals_eager(stream, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(
        stream.build(), stream.inputs(0), path, dynamic_axes=stream.dynamic or None
    )
    assert contract.states
    check_rollout(stream, path, contract)


def test_deployed_module_equals_eager(deployed, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    contract = sp.export_onnx(deployed.build(), deployed.example(), path)
    check_rollout(deployed, path, contract)


def test_deployed_modules_depend_on_what_was_before(deployed) -> None:
    module, differs = deployed.build(), False
    for step in range(deployed.steps):
        with torch.no_grad():
            carried = module(*deployed.inputs(step))
            fresh = deployed.build()(*deployed.inputs(step))
        differs |= not torch.equal(carried, fresh)
    assert deployed.steps >= 8
    assert differs
