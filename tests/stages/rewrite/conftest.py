"""What tests of the TorchScript front end share."""

import numpy as np
import pytest
import torch

import stateful_pipeline as sp


@pytest.fixture
def roll(tmp_path):
    """Return a function that exports a module through TorchScript and follows it beside eager."""

    def check(module, steps=6, shape=(2, 3), dtype=torch.float32, **options):
        module.eval()
        generator = torch.Generator().manual_seed(0)
        xs = [torch.randn(shape, generator=generator).to(dtype) for _ in range(steps)]
        path = tmp_path / "m.onnx"
        contract = sp.export_onnx(module, (xs[0],), path, frontend="torchscript", **options)
        runner = sp.StatefulRunner(path)
        with torch.no_grad():
            for x in xs:
                got = runner.run({"x": x.numpy()})["output"]
                np.testing.assert_allclose(got, module(x).numpy(), atol=1e-5, rtol=1e-4)
        return contract

    return check
