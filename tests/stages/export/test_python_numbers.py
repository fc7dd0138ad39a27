"""Numbers of Python that depend on data are computed as Python does, in the ONNX model too."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import stateful_pipeline as sp
from stateful_pipeline.errors import ContractError, StageError

EXACT = 1e-15


INTEGERS = [
    *["k // 3", "k // -3", "k % 7", "k % -7", "-7 // 2 + k", "9 // (k * k + 1)"],
    *["7 % (abs(k) + 1)", "k & 3", "k | 8", "k ^ 5", "k << 2", "k >> 1", "k >> 70"],
    *["-1 << abs(k)", "3 << (k & 3)", "abs(k)", "-k", "min(k, 3)", "max(k, -2)"],
    *["k if k > 4 else 2", "k * 1000003 * 1000003 + 1", "int(f)", "int(-f)", "math.floor(f)"],
    *["math.ceil(f)", "int(k / 2)", "int(bool(k))", "math.floor(k)", "[k, 2, k * k][k % 3]"],
    *["[1, 5, 9][k % 3]", "len(x) * k", "x.size(0) // 2"],
]
FLOATS = [
    *["k / 49.0 * 49.0", "k / 10", "f / 3", "f * k", "k - f", "f - k", "f + 0.1 + 0.2"],
    *["2.5 * (k % 3)", "f // 0.75", "f % 0.75", "-f // 0.75", "-f % 0.75", "f % -0.75"],
    *["math.fmod(f, 0.3)", "k % 0.5", "f ** 2", "k ** 2.0", "2.0 ** k", "k ** 2", "abs(f)", "-f"],
    *["math.fabs(f)", "float(k)", "min(k, f)", "max(f, 2)", "min(f, 0.5)", "1.0 if k > 2 else f"],
    *["f if k > 2 else 0.1", "round(f)", "round(k / 2)", "float(k // 4)"],
    *["[0.1, 0.7, 1.1][k % 3]", "[f, 0.1][k % 2]"],
]
FUNCTIONS = [
    *["math.sqrt(k * k)", "math.exp(f)", "math.sin(f)", "math.cos(f)", "math.tan(f)"],
    *["math.expm1(f)", "math.log(abs(f))", "math.log(f * f + 1.0, 3)", "math.log1p(f * f)"],
    *["math.pow(f * f, 1.5)", "math.log10(10.0 ** abs(k))", "math.log10(f * f)"],
    *["math.degrees(f)", "math.radians(f)", "math.sinh(f)", "math.cosh(f)", "math.tanh(f)"],
    *["math.asinh(f)", "math.acosh(1.0 + f * f)", "math.atan(f)", "math.atan(1e300 * f)"],
    *["math.atan2(f, k)", "math.atan2(k, f)", "math.asin(math.sin(f))", "math.acos(math.sin(f))"],
    *["math.atanh(math.sin(f))"],
]
QUESTIONS = [
    *["k < 3", "k <= 3", "k > 3", "k >= 3", "k != 3", "k == f", "k < f", "f >= k", "f != f"],
    *["0 < k < 5", "k / 10 == 0.3", "bool(k)", "not k", "bool(f)", "bool(x[0] > 0)"],
    *["bool(self.n)", "bool(x[0])", "k % 2 == 0 and f < 0.25", "k % 2 == 0 or f < 0.25"],
    *["(k > 2) & (f < 0.25)", "(k > 2) == (f < 1)", "(k > 2) | (f < 0.25)"],
    *["(k > 2) ^ (f < 0.25)", "(k > 2) != (f < 1)", "k == 2 or k == 4", "math.isnan(f)"],
    *["math.isinf(f)", "math.isfinite(f)", "math.isinf(f * 1e300 * 1e300)"],
]

SOURCE = """
import math
import torch
class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(-12))
    def forward(self, x):
        self.n += 1
        k = int(self.n)
        f = float(x.sum())
        return torch.stack([
            {values}
        ])
"""


def program(values: Sequence[str], folder: Path) -> nn.Module:
    """Return a module that computes ``values`` from its count ``k`` and the sum ``f`` of ``x``.

    TorchScript's ``torch.tensor`` would round them to float32 on the way.
    """
    path = folder / "program.py"
    numbers = [f"torch.full((), float({value}), dtype=torch.float64)," for value in values]
    path.write_text(SOURCE.format(values="\n            ".join(numbers)))
    spec = importlib.util.spec_from_file_location("program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Program()


class Counting(nn.Module):
    """Counts its steps from below zero."""

    def __init__(self, start: int = -12) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(start))


def number(value: float) -> Tensor:
    """Return a float as it is: TorchScript's torch.tensor rounds it to float32 on the way."""
    return torch.full((), value, dtype=torch.float64)


class Loops(Counting):
    """Carries numbers through loops and branches that start from constants."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.n += 1
        k = int(self.n)
        f, rounds = 0.0, 0
        while f < 1.0:
            f = f + 0.1
            rounds += 1
        total, power, sign = 0, 1.0, 1
        for i in range(k, -k, -2):
            total += i // 3
            power = power / 3
            sign = -sign
        for i in range(abs(k)):
            if i % 3 == 1:
                power = power + 0.1
            elif power > 0.7:
                power = power * 0.3
            total = total * 3 + i
        step = 0.1 if k % 2 == 0 else 0.7
        going = True
        while going:
            step = step * 1.3
            going = step < abs(k)
        floats = torch.stack([number(f), number(power), number(step)])
        return floats, torch.tensor([rounds, total, sign])


@pytest.mark.parametrize("values", [INTEGERS, QUESTIONS], ids=["integers", "truth values"])
def test_integers_and_truth_values_are_exact(values, follow, tmp_path) -> None:
    follow(program(values, tmp_path))


def test_floats_have_64_bits(follow, tmp_path) -> None:
    follow(program(FLOATS, tmp_path), rtol=EXACT)


def test_functions_have_64_bits(follow, tmp_path) -> None:
    follow(program(FUNCTIONS, tmp_path), rtol=5 * EXACT)


def test_numbers_carried_through_loops_and_branches_are_exact(follow) -> None:
    follow(Loops(), rtol=EXACT)


class FloorOfNegatives(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        k = int(self.n)
        if k > 0:
            return x + (10 - k) // 2
        return x


def test_floor_division_rounds_down_for_negative_numbers(follow) -> None:
    follow(FloorOfNegatives())


class Percentage(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x * int(int(self.n) / 49.0 * 49.0)


def test_a_quotient_times_its_divisor_is_rounded_as_in_float64(follow) -> None:
    follow(Percentage(start=0))


class Halves(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if int(self.n) / 2 > 8388608.0:
            return x + 1
        return x


def test_a_quotient_of_large_integers_has_more_than_24_bits(follow) -> None:
    follow(Halves(start=2**24 - 3))


class Tenths(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if int(self.n) / 10 == 1.3:
            return x + 1
        return x


def test_a_quotient_equals_the_float_that_it_is_in_python(follow) -> None:
    follow(Tenths(start=0))


@pytest.mark.parametrize("opset", [18, 24])
def test_numbers_are_exact_at_the_oldest_and_the_newest_opset(opset, follow) -> None:
    follow(Loops(), rtol=EXACT, opset=opset)


class Shares(Counting):
    def forward(self, x: Tensor) -> Tensor:
        k = int(self.n)
        self.n += 1
        return x + 100 // k + 100 % k


def test_a_state_that_is_never_zero_may_divide(follow) -> None:
    follow(Shares(start=1))


class Undecided(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        number = x.sum().item()
        if int(self.n) > 3:
            number = int(self.n)
        return x + float(number)


def test_a_number_that_is_an_integer_or_a_float_is_refused(tmp_path) -> None:
    with pytest.raises(StageError, match="a number is float or int") as refused:
        sp.export_onnx(
            Undecided().eval(), (torch.zeros(3),), tmp_path / "m.onnx", frontend="torchscript"
        )
    assert "float(...)" in str(refused.value)


class Divides(Counting):
    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x + 7 // int(self.n)


def test_a_division_of_integers_by_zero_is_an_error(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    sp.export_onnx(Divides(start=-40).eval(), (torch.zeros(3),), path, frontend="torchscript")
    runner = sp.StatefulRunner(path)
    x = {"x": np.zeros(3, np.float32)}
    for _ in range(39):
        runner.run(x)
    with pytest.raises(ContractError, match="by zero"):
        runner.run(x)


# --- random expressions --------------------------------------------------------------------------

LEAVES = {
    "i": ["k", "(k - 9)", "3", "-2", "int(f)"],
    "f": ["f", "0.5", "1.25", "float(k)", "(k / 10)", "(f % 0.5)", "(f % -0.25)"],
    "b": ["(k > 2)", "(f < 0.5)", "bool(k)"],
}
"""Expressions: integers, floats and truth values."""
FORMS = {
    "i": [
        *["({i} + {i})", "({i} - {i})", "({i} * {i})", "({i} & {i})", "({i} ^ {i})", "({i} | {i})"],
        *["({i} // 3)", "({i} // -4)", "({i} % 3)", "({i} % -4)", "({i} // (abs({i}) + 1))"],
        *["({i} >> 1)", "({i} << 2)", "abs({i})", "(-{i})", "min({i}, {i})", "max({i}, {i})"],
        *["int({f})", "math.floor({f})", "math.ceil({f})", "({i} if {b} else {i})"],
    ],
    "f": [
        *["({f} + {f})", "({f} - {i})", "({i} * {f})", "({f} / {d})", "({i} / {d})", "({f} ** 2)"],
        *["({f} // 0.5)", "({f} // -0.25)", "abs({f})", "(-{f})", "min({i}, {f})", "max({f}, {f})"],
        *["round({f})", "float({i})", "({f} if {b} else {f})"],
    ],
    "b": [
        *["({i} < {f})", "({f} >= {f})", "({f} == {i})", "({i} != {i})", "({i} <= {i})"],
        *["({b} and {b})", "({b} or {b})", "({b} == {b})", "(not {b})"],
    ],
}
"""Expressions of others, of which TorchScript computes the same as Python, bit for bit."""
DIVISORS = st.sampled_from(["3", "-0.7", "(abs(k) + 1)"])

Expressions = dict[str, st.SearchStrategy[str]]


def form(text: str, parts: Expressions) -> st.SearchStrategy[str]:
    """Return a strategy of ``text`` with expressions in its places."""
    places = re.findall("{(.)}", text)
    bare = re.sub("{.}", "{}", text)
    return st.tuples(*(parts[place] for place in places)).map(lambda made: bare.format(*made))


def expressions(depth: int) -> Expressions:
    made = {kind: st.sampled_from(leaves) for kind, leaves in LEAVES.items()}
    for _ in range(depth):
        parts = {**made, "d": DIVISORS}
        made = {
            kind: st.one_of(made[kind], *(form(text, parts) for text in texts))
            for kind, texts in FORMS.items()
        }
    return made


RANDOM = expressions(3)


@settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    integers=st.lists(RANDOM["i"], min_size=3, max_size=3),
    floats=st.lists(RANDOM["f"], min_size=3, max_size=3),
    truths=st.lists(RANDOM["b"], min_size=3, max_size=3),
)
def test_random_expressions_are_exact(follow, integers, floats, truths) -> None:
    chosen = [f"(0.1 if {truth} else 0.7)" for truth in truths]
    values = [*integers, *floats, *chosen]
    note("\n".join(values))
    with tempfile.TemporaryDirectory() as folder:
        follow(program(values, Path(folder)), unit=1 / 8)
