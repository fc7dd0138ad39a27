from __future__ import annotations

import numpy as np
import pytest

from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.stages.build import run as build


def test_each_target_has_a_model_of_its_own_that_runs(run_stages) -> None:
    artifacts = run_stages("targets.two={runtime: onnxruntime, threads: 2}", last="build")
    for name in ("cpu", "two"):
        path = artifacts.targets[name].artifact
        assert path == artifacts.folder / "targets" / name / "model.onnx"
        x = np.ones((2, 3), np.float32)
        np.testing.assert_allclose(StatefulRunner(path).run({"x": x})["output"], np.tanh(x))


def test_side_files_come_along(run_stages) -> None:
    artifacts = run_stages("source.kwargs={size: 3}", last="export")
    (artifacts.model.parent / "model.onnx.states.npz").write_bytes(b"beside")
    build.run(artifacts)
    folder = artifacts.targets["cpu"].artifact.parent
    assert (folder / "model.onnx.states.npz").read_bytes() == b"beside"


def test_a_model_that_does_not_load_fails_its_target_alone(run_stages) -> None:
    artifacts = run_stages(last="export")
    artifacts.model.write_bytes(b"not a model")
    build.run(artifacts)
    assert "cpu" in artifacts.targets
    error = artifacts.targets["cpu"].error
    assert error is not None
    assert error.stage == "build"


@pytest.mark.parametrize("missing", ["model"])
def test_it_needs_a_model(run_stages, missing: str) -> None:
    artifacts = run_stages(last="export")
    setattr(artifacts, missing, None)
    with pytest.raises(Exception, match="needs 'model'"):
        build.run(artifacts)
