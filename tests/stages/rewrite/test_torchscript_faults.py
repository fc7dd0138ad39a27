"""Faults that random programs found, each as the smallest module that shows it."""

import onnx
import pytest
import torch
from torch import nn

from stateful_pipeline.errors import StageError


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", torch.ones(3))
        self.register_buffer("t", torch.tensor(0))


class OneValueTwice(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        if self.t % 2 == 0:
            self.b = self.b + x[0]
        else:
            self.a = self.b
            self.a.mul_(0.5)
            self.a = self.a.clone()
        for _ in range(2):
            self.a = self.a * 0.5
        return x + self.a + self.b


def test_a_branch_that_hands_on_one_value_twice(roll):
    roll(OneValueTwice())


class MaskedThroughASlice(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.a[1:]
        part[x[0, 1:] > 0] = 0.25
        self.b[:2][torch.tensor([1])] = x[1, :1]
        return x + self.a + self.b


def test_elements_of_a_slice_are_assigned_and_the_rest_of_the_buffer_stays(roll):
    roll(MaskedThroughASlice())


class Overwritten(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.b
        self.a.copy_(x[0])
        self.b = self.a * 2.0
        return y


def test_a_buffer_that_is_overwritten_before_it_is_read_keeps_its_input(roll):
    assert {state.name for state in roll(Overwritten()).states} == {"a", "b"}


class NamedLikeAnInput(Base):
    def __init__(self):
        super().__init__()
        for name in ("n", "f", "cond", "value_1", "given_0", "made_0"):
            self.register_buffer(name, torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for n in range(3):
            f = x * n
            if f.sum() > 0:
                self.a = self.a + f[0] * self.n * self.f
        return self.a * self.cond * self.value_1 + self.given_0 * self.made_0


def test_weights_that_are_named_like_what_is_computed(roll):
    roll(NamedLikeAnInput())


class Diagonals(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.arange(12).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.m.diagonal(1).mul_(-1)
        return x.sum() + torch.diagonal(self.m, 1).float() + torch.diagonal(self.m, -1).sum()


def test_a_diagonal_of_integers_is_read_and_written(roll):
    roll(Diagonals())


class Ranks(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if x.sum() > 0:
            y = y + self.a
        for _ in range(int(self.t) % 2 + 1):
            y = y.flatten()[1:].reshape(-1)
            y = torch.cat([y, self.b[:1]]).reshape(2, 3)
            self.a[1] = y[0, 0]
        self.t += 1
        return y.flatten(0, 1)


def test_ranks_are_kept_through_branches_and_loops(roll):
    roll(Ranks())


class NestedNumbers(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a = self.a.scatter(0, torch.tensor([2, 0]), x[0, :2])
        y = x.scatter(1, torch.tensor([[2], [0]]), self.a[:2].reshape(2, 1))
        if y.sum() > 0:
            self.b = y[0]
        return y + self.b


def test_tensors_of_nested_lists_of_numbers(roll):
    roll(NestedNumbers())


class LeftEarly(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        for i in range(4):
            step = torch.tanh(x[0]) * float(i)
            if i == int(self.t) % 3:
                continue
            self.a = self.a * 0.5 + step
            if self.a.sum() > 2.0:
                break
            if self.t % 5 == 0:
                return x - step
        return x + self.a


def test_loops_that_are_left_by_break_continue_and_return(roll):
    roll(LeftEarly(), steps=12)


class LeftInEachBranch(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.tensor(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        v = x[0]
        for _ in range(3):
            self.a = self.a * 0.5 + x[1]
            if int(self.n) % 3 == 1:  # always
                if self.t % 2 == 0:
                    v = 0.5 * v + self.a
                    break
                return x - v
            self.b += 0.25 * torch.tanh(v)
        return x + v + self.a + self.b


def test_what_follows_a_branch_that_is_left_either_way_is_not_reached(roll):
    roll(LeftInEachBranch(), steps=12)


class RoundedConstant(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.linspace(0.5, -0.75, 300).reshape(3, 100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.m[x[0] > 0.1] = 0.3
        if x.sum() > 0:
            self.m.transpose(0, 1).diagonal().add_(0.25 * x[0])
        return x + self.m[1:].mean()  # in the graph, of a transposed tensor: in another order


def test_a_constant_of_float32_does_not_make_rounding_look_like_a_wrong_graph(roll):
    roll(RoundedConstant(), steps=12)


class Data(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.a.data.add_(x[0])
        self.b.detach().mul_(0.5)
        return x + self.a + self.b


def test_writes_through_data_and_detach(roll):
    roll(Data())


class Rows(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = [x[0], x[1]]
        for _ in range(int(self.t) % 3 + 1):
            rows[1] = rows[0] * 0.5 + self.a
            rows[0] = torch.tanh(rows[1])
            self.a = self.a * 0.5 + rows[1]
        self.t += 1
        return torch.stack(rows)


def test_items_of_a_list_are_assigned_in_a_loop(roll):
    roll(Rows())


class DoubleList(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("z", torch.zeros(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs: list[torch.Tensor] = []
        for row in x:
            self.z = self.z * 0.5 + row
            outs.append(self.z)
        return torch.stack(outs)


def test_a_list_of_float64_that_grows_in_a_loop(roll):
    roll(DoubleList(), dtype=torch.float64)


class GrownByCat(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:0]
        for i in range(x.shape[0]):
            y = torch.cat([y, x[i : i + 1] + self.a])
            if y.sum() > 0:
                self.a = self.a * 0.5 + x[i]
        return y


def test_a_tensor_that_grows_by_cat_in_a_loop(roll):
    roll(GrownByCat())


class ConstantCondition(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("gain", torch.tensor([0.5, 2.0, 1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        for _ in range(int(self.t) % 3):
            if self.gain.sum() > 3.0:
                self.a = self.a * 0.5 + x[0]
            else:
                self.a = self.a - 1.0
            if bool(self.gain[1] < self.gain[0]):
                self.b = self.b + 1.0
        return x + self.a * self.gain + self.b


def test_a_branch_whose_condition_depends_on_weights_alone_is_decided(roll, tmp_path):
    roll(ConstantCondition())
    # ONNX Runtime folds the condition and crashes on some such branches.
    assert {node.op_type for node in nodes(onnx.load(tmp_path / "m.onnx").graph)} & {"If"} == set()


def nodes(graph):
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes(attribute.g)


class BroadcastThenViewed(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("m", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.m.copy_(torch.tanh(x[:, :1].reshape(2)).sum())
        self.m.t().copy_(x[0, :1])
        self.m.view(2, 6)[1] += 0.5
        row = self.m.view(-1)
        for i in range(3):
            row[i + 1] = 0.25 * i
        return x + self.m.sum(1)


def test_a_broadcast_copy_leaves_a_tensor_where_it_lies_in_memory(roll):
    roll(BroadcastThenViewed())


class IdleLoops(Base):
    """Nothing reads what the inner loops compute, and nobody knows that they end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        for _ in range(3):
            i = 0
            while i < 2:
                i += 1
                k = 0
                while k < int(self.t):
                    k += 1
        return x + self.t


class IdleCount(Base):
    """The loop counts, which nobody reads, and changes a buffer under a condition never met."""

    def __init__(self):
        super().__init__()
        self.register_buffer("level", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        if self.t % 2 == 0:
            i = 0
            while i < 2:
                i += 1
                if self.level > 1:
                    self.level = self.level + x.sum()
        return x + self.t + self.level


@pytest.mark.parametrize("module", [IdleLoops(), IdleCount()], ids=lambda m: type(m).__name__)
def test_loops_that_compute_nothing_are_left_out(module, roll):
    roll(module)


class NumbersInAList(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        numbers: list[float] = []
        for i in range(int(self.t)):
            numbers.append(i * 0.5)  # noqa: PERF401 - the loop is what is tested
        return x + numbers[0]


class OtherWords(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t += 1
        word = "a"
        if x.sum() > 0:
            word = "b"
        return x if word == "a" else x + self.t


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (NumbersInAList, "a list of numbers grows in a loop"),
        (OtherWords, "a variable is 'b' in one branch and 'a' in the other"),
    ],
)
def test_what_no_graph_holds_is_refused_with_the_line(module, reason, roll):
    with pytest.raises(StageError, match=reason) as caught:
        roll(module())
    assert caught.value.file == __file__
