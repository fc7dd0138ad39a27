"""Operators give, through both exporters, what eager gives for numbers that no example had.

Examples are positive and far from anything special; what is compared is negative, a tie, -0, large,
infinite or NaN.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import stateful_pipeline as sp

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
INFINITE = (float("inf"), float("-inf"), float("nan"))
NUMBERS = (0.0, -0.0, 1.5, -2.5, 3.7, -4.2, 0.5, -0.5, 0.3, -0.3, 7.0, -7.0, 1.0, -1.0, 2.5)
LARGE = (1e6, -1e6, 1e-6, -1e-10, 30.0, -100.0)
WHOLE = (0, 1, 2, 3, 7, 8, 100, 127, -1, -2, -3, -7, -8, -100, -128)


class Counting(nn.Module):
    """A module of one state, so that it is exported as any other is."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))


def pairs(left, right, dtype):
    """All pairs of two rows of numbers, as two vectors."""
    both = torch.tensor(list(itertools.product(left, right)), dtype=torch.float64)
    if dtype == torch.uint8:
        both = both.abs()
    return both[:, 0].to(dtype), both[:, 1].to(dtype)


def example(dtype):
    """Positive numbers that divide, shift and compare without anything special."""
    numbers = [1.3, 2.6, 3.4, 4.7, 5.2], [1.1, 1.3, 2.4, 3.6, 2.2]
    return tuple(torch.tensor(row, dtype=torch.float64).to(dtype) for row in numbers)


@pytest.fixture(params=["torchscript", "export"])
def equal_to_eager(request, tmp_path):
    """:func:`assert_equal_to_eager` for each front end."""
    return functools.partial(
        assert_equal_to_eager, path=tmp_path / "m.onnx", frontend=request.param
    )


def assert_equal_to_eager(module, inputs, path, frontend, *, rtol, atol=0.0, signs=()):
    """Export with positive numbers and any length; compare with eager on ``inputs``.

    Args:
        module: Gives a dict of tensors for two vectors.
        inputs: What to compare on.
        path: Where to export to.
        frontend: What captures the module.
        rtol: How far numbers may be off, as a share of what eager gives.
        atol: How far they may be off besides.
        signs: Names of results whose zeros must have the sign of eager's.
    """
    given = example(inputs[0].dtype)
    axes = {name: {0: "n"} for name in ("x", "y")}
    sp.export_onnx(module.eval(), given, path, frontend=frontend, dynamic_axes=axes)
    feeds = {name: value.numpy() for name, value in zip("xy", inputs, strict=True)}
    got = sp.StatefulRunner(path).run(feeds)
    for name, value in module(*inputs).items():
        expected = value.numpy()
        assert got[name].dtype == expected.dtype, name
        message = f"{name} of {inputs[0].dtype}"
        np.testing.assert_allclose(got[name], expected, rtol=rtol, atol=atol, err_msg=message)
        if name in signs:
            numbers = ~np.isnan(expected)
            wrong = (np.signbit(got[name]) != np.signbit(expected)) & numbers
            assert not wrong.any(), f"sign of {name} of {feeds['x'][wrong]}, {feeds['y'][wrong]}"


class Division(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        z = x.clone()
        z.floor_divide_(y)
        return {
            "floor": x // y,
            "floor_number": x // 0.7,
            "floor_negative": x // -2,
            "floor_function": torch.floor_divide(x, y),
            "floor_in_place": z,
            "floor_mode": torch.div(x, y, rounding_mode="floor"),
            "truncated": torch.div(x, y, rounding_mode="trunc"),
            "remainder": x % y,
            "remainder_number": x % 0.7,
            "remainder_negative": torch.remainder(x, -3),
            "fmod": torch.fmod(x, y),
            "fmod_number": torch.fmod(x, -0.7),
            "quotient": x / y,
            "scalar": (x[0] // y[0]).reshape(1),
        }


DIVISORS = (0.0, -0.0, 2.0, -2.0, 0.7, -0.7, *INFINITE)


def assert_divided_as_eager_does(dtype, compare):
    inputs = pairs((*NUMBERS, *LARGE, *INFINITE), DIVISORS, dtype)
    signs = [name for name in Division()(*example(dtype)) if "remainder" not in name]
    compare(Division(), inputs, rtol=0, signs=signs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_division_of_floats_rounds_as_eager_does(dtype, equal_to_eager):
    assert_divided_as_eager_does(dtype, equal_to_eager)


def test_division_of_float16_rounds_as_eager_does(tmp_path):
    compare = functools.partial(
        assert_equal_to_eager, path=tmp_path / "m.onnx", frontend="torchscript"
    )  # torch.onnx.export rounds the number 0.7 to float16 where it gets a captured program
    assert_divided_as_eager_does(torch.float16, compare)


class IntegerDivision(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        odd = y * 2 + 1  # never zero, whatever is given for y
        z = x.clone()
        z >>= 1
        return {
            "floor": x // odd,
            "floor_number": x // 3,
            "floor_mode": torch.div(x, odd, rounding_mode="floor"),
            "truncated": torch.div(x, odd, rounding_mode="trunc"),
            "remainder": x % odd,
            "remainder_number": x % 3,
            "fmod": torch.fmod(x, odd),
            "quotient": x / odd,
            "right": x >> 1,
            "right_in_place": z,
            "right_by_tensor": torch.bitwise_right_shift(x, y),
            "right_far": x >> 40,
            "left": x << 2,
            "left_by_tensor": torch.bitwise_left_shift(x, y),
            "and": x & y,
            "or": torch.bitwise_or(x, y),
            "xor": x ^ 5,
            "not": ~x,
            "negative": -x,
            "clamped": x.clamp(-1.5, 2.5),
            "clamped_below": x.clamp(min=2),
            "scalar": (x[0] >> 1).reshape(1),
        }


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_shifts_and_bits_of_integers_are_those_of_eager(dtype, equal_to_eager):
    inputs = pairs(WHOLE, (0, 1, 2, 3, 6, -1, -2, -3), dtype)
    equal_to_eager(IntegerDivision(), inputs, rtol=0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_the_lowest_integer_is_divided_and_shifted(dtype, equal_to_eager):
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, limits.max, limits.min, limits.max], dtype=dtype)
    y = torch.tensor([1, 31, limits.bits - 1, limits.bits], dtype=dtype)
    equal_to_eager(IntegerDivision(), (x, y), rtol=0)


class Functions(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "trunc": torch.trunc(x),
            "round": torch.round(x),
            "sign": torch.sign(x),
            "sgn": torch.sgn(x),
            "isnan": torch.isnan(x),
            "isinf": torch.isinf(x),
            "isfinite": torch.isfinite(x),
            "positive": torch.positive(x),
            "expm1": torch.expm1(x),
            "exp2": torch.exp2(x),
            "log1p": torch.log1p(x),
            "log2": torch.log2(x),
            "log10": torch.log10(x),
            "tan": torch.tan(x),
            "asin": torch.asin(x),
            "acos": torch.acos(x),
            "atan": torch.atan(x),
            "asinh": torch.asinh(x),
            "acosh": torch.acosh(x),
            "atanh": torch.atanh(x),
            "sinh": torch.sinh(x.clamp(-80, 80)),
            "cosh": torch.cosh(x.clamp(-80, 80)),
            "deg2rad": torch.deg2rad(x),
            "rad2deg": torch.rad2deg(x),
            "exp": torch.exp(x),
            "sqrt": torch.sqrt(x),
            "erf": torch.erf(x),
            "erfc": torch.erfc(x),
            "rsqrt": torch.rsqrt(x),
            "scalar": torch.expm1(x[0]).reshape(1),
        }


class FloatFunctions(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "signbit": torch.signbit(x.nan_to_num()),
            "frac": torch.frac(x),
            "round_decimals": torch.round(x, decimals=1),
            "round_tens": torch.round(x, decimals=-1),
            "isposinf": torch.isposinf(x),
            "isneginf": torch.isneginf(x),
            "softplus": F.softplus(x),
            "softplus_steep": F.softplus(x, 2.2, 3.0),
            "logsigmoid": F.logsigmoid(x),
            "threshold": F.threshold(x, 0.5, 0.1),
            "threshold_negative": F.threshold(x, -1.1, 7.0),
            "hardshrink": F.hardshrink(x, 0.3),
            "softshrink": F.softshrink(x, 0.3),
            "logit": torch.logit(x, 0.1),
            "clamped_above_only": x.clamp(max=0.3),
            "clamped_below_only": x.clamp(min=0.3),
            "clamped_scalar": x[0].clamp(min=0.1).reshape(1),
            "logical_not": torch.logical_not(x),
        }


class NearFunctions(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "sinc": torch.sinc(x),
            "sigmoid": torch.sigmoid(x),
            "celu": F.celu(x, 1.3),
            "elu": F.elu(x, 1.1),
            "selu": F.selu(x),
            "mish": F.mish(x),
            "gelu": F.gelu(x),
            "gelu_tanh": F.gelu(x, approximate="tanh"),
            "leaky_relu": F.leaky_relu(x, 0.1),
            "hardsigmoid": F.hardsigmoid(x),
            "hardswish": F.hardswish(x),
        }


ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-14}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_one_float_are_those_of_eager(dtype, equal_to_eager):
    inputs = pairs((*NUMBERS, *LARGE, *INFINITE, 1000.0, 8.0, 2.0**29), (1.0,), dtype)
    tiny = torch.finfo(dtype).smallest_normal
    signs = ("trunc", "expm1", "log1p", "asinh", "atan", "atanh", "sinh", "round_decimals")
    for module in (Functions(), FloatFunctions()):
        equal_to_eager(module, inputs, rtol=ROUNDING[dtype], atol=tiny, signs=signs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations_are_those_of_eager(dtype, equal_to_eager):
    inputs = pairs((*NUMBERS, *LARGE), (1.0,), dtype)
    rounding = ROUNDING[dtype]
    equal_to_eager(NearFunctions(), inputs, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_functions_of_integers_give_floats(dtype, equal_to_eager):
    inputs = pairs(WHOLE, (1,), dtype)
    equal_to_eager(Functions(), inputs, rtol=1e-5, atol=torch.finfo().smallest_normal)


def test_logarithms_of_powers_are_whole(equal_to_eager):
    class Logarithms(Counting):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            self.count = self.count + 1
            return {"two": torch.log2(x).floor(), "ten": torch.log10(y).floor()}

    x = torch.tensor([2.0**n for n in range(-40, 41)], dtype=torch.float64)
    y = torch.tensor([10.0**n for n in range(-20, 61)], dtype=torch.float64)
    y = torch.where(y < 1, 1.0, y)  # negative powers of ten are no floating-point numbers
    equal_to_eager(Logarithms(), (x, y), rtol=0)


class Pairs(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "atan2": torch.atan2(x, y),
            "atan2_scalar": torch.atan2(x[0], y),
            "fmax": torch.fmax(x, y),
            "fmin": torch.fmin(x, y),
            "isclose": torch.isclose(x, y, rtol=0.3),
            "heaviside": torch.heaviside(x, y),
            "xlogy": torch.xlogy(x, y),
            "xlogy_number": torch.xlogy(x, 2.3),
            "float_power": torch.float_power(x, 2),
            "ldexp": torch.ldexp(x, y),
            "logical_and": torch.logical_and(x, y),
            "logical_or": torch.logical_or(x, y),
            "logical_xor": torch.logical_xor(x, y),
            "bool_sum": (x > 1) + (y > 1),
            "bool_product": (x > 1) * (y > 1),
            "bool_and": (x > 1) & (y > 1),
            "bool_or": (x > 1) | (y > 1),
            "bool_xor": (x > 1) ^ (y > 1),
        }


class FloatPairs(Counting):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.count = self.count + 1
        return {
            "hypot": torch.hypot(x, y),
            "logaddexp": torch.logaddexp(x, y),
            "logaddexp2": torch.logaddexp2(x, y),
            "isclose_nan": torch.isclose(x, y, equal_nan=True),
            "copysign": torch.copysign(x, y.nan_to_num()),
            "xlog1py": torch.special.xlog1py(x, y),
            "addcmul": torch.addcmul(x, x, y, value=0.1),
            "addcdiv": torch.addcdiv(x, x, y, value=0.1),
            "smooth_l1": F.smooth_l1_loss(x, y, reduction="none", beta=0.3),
            "huber": F.huber_loss(x, y, reduction="none", delta=0.3),
        }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_two_floats_are_those_of_eager(dtype, equal_to_eager):
    right = (0.0, -0.0, 1.0, -1.0, 3.0, -0.7, 1.5, *INFINITE)
    inputs = pairs((*NUMBERS, *LARGE, *INFINITE), right, dtype)
    rounding = ROUNDING[dtype]
    for module in (Pairs(), FloatPairs()):
        signs = ("atan2", "copysign")
        equal_to_eager(module, inputs, rtol=rounding, atol=rounding / 100, signs=signs)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_functions_of_two_integers_are_those_of_eager(dtype, equal_to_eager):
    inputs = pairs(WHOLE, (0, 1, 2, 3, -1, -2), dtype)
    equal_to_eager(Pairs(), inputs, rtol=1e-5)
