"""Python that ``torch.jit.script`` does not take as it is written, and that goes through."""

import collections
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError
from stateful_pipeline.model import jit


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = torch.zeros(3, dtype=torch.int32)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.counts += (x.sum(0) * 5).to(torch.int32)
        self.calls += 1
        if self.calls % 3 == 0:
            self.counts //= 2
        return x * 0 + self.counts


def test_floor_division_in_place_rounds_down_for_negative_counts(roll):
    assert roll(Counts(), steps=12).states[0].dtype == "int32"


class Numbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.f = 7, 3.0

    def forward(self, x: Tensor) -> Tensor:
        k = int(x.sum() * 10)
        k //= 2
        self.n += k
        self.n //= 3
        self.n %= 50
        self.n **= 2
        self.n %= 37
        self.n <<= 1
        self.n |= 1
        self.f **= 2
        self.f %= 7.0
        self.f //= 0.5
        return x + self.n + self.f


def test_augmented_assignments_rebind_python_numbers(roll):
    contract = roll(Numbers(), steps=12)
    assert {state.name: state.dtype for state in contract.states} == {"n": "int64", "f": "float64"}


class Tensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.tensor([9, -7, 3]))
        self.register_buffer("w", torch.eye(3))
        self.register_buffer("flags", torch.zeros(2, 3, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        m, flags = self.m, self.flags
        m += (x[0] * 4).long()
        m //= 2
        m[0] //= 3
        m[1:] **= 2
        m[1:] %= 11
        self.w @= torch.eye(3) * 0.9
        flags |= x > 1
        flags &= x > -1
        flags ^= x > 0.5
        y = x.clone()
        y //= 0.5
        y **= 2
        return y @ self.w + self.m + self.flags


def test_augmented_assignments_write_to_tensors_under_another_name(roll):
    roll(Tensors(), steps=12)


class InAList(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = [torch.zeros(3), torch.ones(3)]

    def forward(self, x: Tensor) -> Tensor:
        first = self.rows[0]
        self.rows[0] += x[0] * 3
        self.rows[0] //= 2
        return x + first


def test_floor_division_of_an_item_writes_to_the_tensor_in_the_list(roll):
    roll(InAList(), steps=8)


class CalledTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = [torch.zeros(3), torch.ones(3)]
        self.n = 0

    def next_row(self) -> Tensor:
        self.n += 1
        return self.rows[self.n % 2]

    def forward(self, x: Tensor) -> Tensor:
        self.next_row()[0] //= 2
        return x + self.n


def test_an_augmented_assignment_to_what_a_call_gives_is_refused_with_its_line(roll):
    with pytest.raises(PipelineError, match="FloorDiv") as refused:
        roll(CalledTwice())
    assert str(refused.value.place).endswith(f"{CalledTwice.forward.__code__.co_firstlineno + 1}")


class Controller(nn.Module):
    def __init__(self):
        super().__init__()
        self.integral = 0.0
        self.previous_error = 0.0

    def forward(self, x: Tensor) -> Tensor:
        setpoint, measured = x.tolist()
        error = setpoint - measured
        u = 1.2 * error + 0.8 * self.integral + 0.5 * (error - self.previous_error)
        saturated = max(-1.0, min(1.0, u))
        if u == saturated:
            self.integral += error * 0.1
        self.previous_error = error
        return torch.tensor([saturated])


def test_a_vector_is_unpacked_into_python_floats(roll):
    contract = roll(Controller(), steps=16, shape=(2,))
    assert [state.dtype for state in contract.states] == ["float64", "float64"]


class Peak(nn.Module):
    def __init__(self):
        super().__init__()
        self.peak, self.at = 0.0, [0]

    def forward(self, x: Tensor) -> Tensor:
        for row in x.tolist():
            for value in row:
                self.peak = value if value > self.peak else self.peak * 0.9
        self.at = x.argmax(1).tolist()
        return x - self.peak + self.at[0]


def test_loops_over_nested_lists_of_numbers(roll):
    module = Peak()
    module.at = [0, 0]
    roll(module, steps=8)


class Rare(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = 0.0

    def read(self, x: Tensor):
        return x.item()

    def forward(self, x: Tensor) -> Tensor:
        self.level = self.read(x.mean())
        if self.level > 100:
            self.level = self.read(x.argmax())
        return x + self.level


def test_a_number_of_another_kind_than_was_seen_is_refused_with_its_line(roll):
    with pytest.raises(PipelineError, match=r"torch.int64 becomes what .* for float") as refused:
        roll(Rare())
    assert refused.value.place.line == Rare.forward.__code__.co_firstlineno + 3


class Items(nn.Module):
    def __init__(self):
        super().__init__()
        self.level, self.count, self.hot = 0.0, 0, False

    def forward(self, x: Tensor) -> Tensor:
        self.level = x[0, 0].item()
        self.count = (x > 0).sum().item()
        self.hot = (x.max() > 1).item()
        y = x * self.level + self.count + float(x[0, 1]) + int(x[0, 2]) + bool(x[0, 2])
        return y - 1 if self.hot else y


def test_items_are_numbers_of_the_kind_of_the_tensor(roll):
    contract = roll(Items(), steps=8)
    kinds = {state.name: state.dtype for state in contract.states}
    assert kinds == {"level": "float64", "count": "int64", "hot": "bool"}


class Unpacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("position", torch.zeros(2))
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        a, b = x
        px, py = self.position
        px += a
        self.n += 1
        if self.n % 3 == 0:
            px, py = py, px
        self.position = torch.stack([px + a, py - b])
        return self.position


def test_a_tensor_is_unpacked_into_views_of_its_rows(roll):
    roll(Unpacked(), steps=9, shape=(2,))


class Taps(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = [0.0, 0.0, 0.0]
        self.rows = [torch.zeros(3), torch.ones(3)]
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.taps = [x.sum().item(), *self.taps[:-1]]
        if (total := sum(self.taps)) > 0:
            self.n += round(total)
            self.rows = [*self.rows[1:], x[0]]
        largest = max(tap * tap for tap in self.taps)
        return x + 0.5 * self.taps[2] - self.n + sum(self.rows) + largest + sorted(self.taps)[1]


def test_lists_are_built_with_stars_summed_and_sorted(roll):
    roll(Taps(), steps=12)


class Helpers(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.zeros(2, 3)
        self.n = 0

    def mix(self, x, n, flag=False, bias=None, *, gain=2.0):
        if bias is not None:
            x = x + bias
        if flag:
            x = x * gain
        return x + n

    def forward(self, x):
        self.n += 1
        odd = self.n % 2 == 1
        self.h = self.h + self.mix(x, self.n, flag=odd) + self.mix(x, 1, bias=x, gain=0.5)
        return self.h


def test_parameters_without_annotations_are_what_they_are_called_with(roll):
    roll(Helpers(), steps=8)


class Remainders(nn.Module):
    def __init__(self):
        super().__init__()
        self.t, self.phase = 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.t -= 3
        q, r = divmod(self.t, 7)
        self.phase = (self.phase + 0.3) % 1.0
        whole, rest = divmod(self.phase, 0.4)
        low = min([self.phase, 0.5, float(r)])
        if any([self.t % 2 == 0, self.phase > 0.7]) and all([r > 1, q < 0]):
            return x * q + r
        return x + whole + rest + low + round(self.phase * 10)


def test_divmod_rounding_and_questions_about_lists(roll):
    roll(Remainders(), steps=12)


class Failing(nn.Module):
    works = False

    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return x + self.extra(x) + self.n if self.n % 2 else x

    def extra(self, x: Tensor) -> Tensor:
        return globals()["offset"](x)


def offset(x: Tensor) -> Tensor:
    return x


def test_a_class_that_was_refused_is_refused_for_the_same_reason_again(tmp_path):
    path, messages = tmp_path / "m.onnx", []
    for _ in range(2):
        with pytest.raises(PipelineError) as refused:
            sp.export_onnx(Failing(), (torch.zeros(2),), path, frontend="torchscript")
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert "redefine" not in messages[0]


def test_what_torch_jit_script_makes_of_the_class_afterwards_is_as_before(roll):
    roll(Controller(), shape=(2,))
    with pytest.raises(RuntimeError, match="Expected type hint"):
        jit.script(Controller())


class Resized(nn.Module):
    def __init__(self, size=None, scale=None, mode="nearest"):
        super().__init__()
        self.up = nn.Upsample(size=size, scale_factor=scale, mode=mode)
        self.h = torch.zeros(1, 2, 8, 8)
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        if self.n % 3 == 0:
            self.h = self.h * 0.5
        self.h = self.h + self.up(x)
        return self.h


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 2.0},
        {"scale": (2.0, 2.0), "mode": "bilinear"},
        {"size": 8, "mode": "bicubic"},
        {"size": (8, 8)},
    ],
    ids=str,
)
def test_upsampling_by_a_factor_or_to_a_size(roll, options):
    roll(Resized(**options), steps=7, shape=(1, 2, 4, 4))


class Matrices(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 1)
        self.plain = nn.Linear(2, 2, bias=False)
        self.readout = nn.Linear(2, 2)
        self.register_buffer("p", torch.eye(2))
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        (a, b), (c, d) = self.p + x
        total = torch.stack([a + d, b * c])
        for row, scale in zip(x, self.p, strict=True):
            total = total + row * scale
        if self.n % 2 == 0:
            self.p = self.p * 0.5 + x / (1 + x.norm(dim=-1))
            self.readout.weight.data += 0.1 * x
        y = self.readout(x) + nn.functional.linear(x, self.plain.weight, self.plain.bias)
        return total + y * self.conv.weight[:, 0].sum() + self.conv.bias


def test_nested_unpacking_norms_and_writes_to_the_data_of_a_weight(roll):
    names = {state.name for state in roll(Matrices(), steps=8, shape=(2, 2)).states}
    assert "readout.weight" in names


class Scratch(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.zeros(2, 3)
        self.n = 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        levels, kept, best = [], {}, None
        for value in x[0].tolist():
            levels.append(value * 2)  # noqa: PERF401 - a list that is empty at first
        kept["h"] = self.h
        best = x + levels[0]
        if self.n % 2 == 0:
            best = best + kept["h"]
        self.h = best
        return best


def test_variables_that_are_empty_at_first_have_the_type_of_what_comes(roll):
    roll(Scratch(), steps=8)


class Operands(nn.Module):
    """``and`` and ``or`` that give an operand, and not a bool."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.gain = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.count += 1
            self.gain += 0.5
        return x / (self.count or 1) + (self.count and 7) * (self.gain or 2.0)


def test_and_and_or_give_an_operand_as_in_python(tmp_path):
    path = tmp_path / "m.onnx"
    sp.export_onnx(Operands().eval(), (torch.randn(3),), path, frontend="torchscript")
    runner, eager = sp.StatefulRunner(path), Operands()
    for step in range(8):
        x = torch.randn(3, generator=torch.Generator().manual_seed(step)) + 0.5
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], eager(x), 1e-5)


class Peeks(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def peek(self) -> int:
        self.calls += 1
        return self.calls


class PeeksInTheMiddle(Peeks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0 and 0 <= self.peek() < 100:  # line
            x = x + 1
        return x + self.calls


class PeeksAtAny(Peeks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0 and any(self.peek() > k for k in [1, 2]):  # line
            x = x + 1
        return x + self.calls


class PeeksOr(Peeks):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + (self.peek() or 3)  # line
        return x + self.calls


@pytest.mark.parametrize("module", [PeeksInTheMiddle, PeeksAtAny, PeeksOr])
def test_calls_that_torchscript_makes_more_often_are_refused_by_their_line(module, tmp_path):
    with pytest.raises(PipelineError, match=r"twice|first item|makes a bool") as caught:
        sp.export_onnx(
            module().eval(), (torch.randn(3),), tmp_path / "m.onnx", frontend="torchscript"
        )
    lines = Path(__file__).read_text().splitlines()
    assert lines[caught.value.line - 1].endswith("# line")


class OwnLimit(nn.Module):
    """An attribute of the module's own that is called as a deque's limit is."""

    def __init__(self):
        super().__init__()
        self.maxlen = 16
        self.recent = collections.deque([torch.zeros(3)] * 2, maxlen=2)
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > -100:
            self.n = (self.n + 1) % self.maxlen
        self.recent.append(x)
        return self.recent[0] + self.n


def test_an_attribute_called_maxlen_is_not_the_limit_of_a_deque(tmp_path):
    path = tmp_path / "m.onnx"
    sp.export_onnx(OwnLimit().eval(), (torch.randn(3),), path, frontend="torchscript")
    runner, eager = sp.StatefulRunner(path), OwnLimit()
    for _ in range(20):
        x = torch.ones(3)
        np.testing.assert_allclose(runner.run({"x": x.numpy()})["output"], eager(x), 1e-6)
