"""What tests of the export share."""

import numpy as np
import pytest
import torch

import stateful_pipeline as sp

STEPS = 30


@pytest.fixture
def follow(tmp_path):
    """Return a function that holds a free-running ONNX model against eager for 30 steps.

    Inputs are three random numbers of ``dtype`` each, multiples of ``unit`` if it is given.
    """

    def check(module, *, rtol=0.0, dtype=torch.float64, unit=None, **options):
        module.eval()
        generator = torch.Generator().manual_seed(0)
        xs = [torch.randn(3, generator=generator, dtype=torch.float64) for _ in range(STEPS)]
        xs = [(x if unit is None else (x / unit).round() * unit).to(dtype) for x in xs]
        path = tmp_path / "m.onnx"
        sp.export_onnx(module, (xs[0],), path, frontend="torchscript", **options)
        runner = sp.StatefulRunner(path)
        for step, x in enumerate(xs):
            got, expected = runner.run({"x": x.numpy()}), module(x)
            results = expected if isinstance(expected, tuple) else (expected,)
            for value, result in zip(got.values(), (r.numpy() for r in results), strict=True):
                assert value.dtype == result.dtype
                np.testing.assert_allclose(value, result, rtol=rtol, err_msg=f"step {step}")

    return check
