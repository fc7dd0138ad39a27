"""What tests of the export share."""

import inspect

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


@pytest.fixture(params=["torchscript", "export"])
def same_as_eager(request, tmp_path):
    """Return a function that holds a module against eager, through each front end.

    The module gives a dict of tensors.  It is exported with an example that is nothing special, and
    compared on others, of other sizes too.
    """

    def check(module, example, others, *, axes=None, rtol=0.0, atol=0.0):
        path = tmp_path / "m.onnx"
        module.eval()
        sp.export_onnx(module, example, path, frontend=request.param, dynamic_axes=axes)
        runner = sp.StatefulRunner(path)
        names = list(inspect.signature(module.forward).parameters)
        for inputs in others:
            feeds = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
            got = runner.run(feeds)
            for name, value in module(*inputs).items():
                expected, sizes = value.numpy(), [list(i.shape) for i in inputs]
                about = f"{name} of {inputs[0].dtype} {sizes}"
                assert got[name].dtype == expected.dtype, about
                assert got[name].shape == expected.shape, about
                np.testing.assert_allclose(got[name], expected, rtol=rtol, atol=atol, err_msg=about)

    check.frontend = request.param
    return check
