"""How rewriting scales with the number of states: 1,000 beside 100, in one run.

A module of many cells, called in a loop: each has a buffer that a branch reassigns or writes to in
place through a view, and a counter. Both programs are compared with eager, bit for bit, before
anything is timed. Prints the ratio of the medians; the limit is 12 (10 times the states).
"""

import statistics
import time

import torch
from torch import nn

from stateful_pipeline.model.inputs import Input, InputPlan, Resampled
from stateful_pipeline.model.scripting import script
from stateful_pipeline.model.subject import PositionalCall, Subject
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.torchscript.explicit import make_explicit

LIMIT, REPEATS = 12.0, 3


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.h = self.h * 0.5 + x
        else:
            self.h[1:].mul_(0.5)
        self.n += 1
        return torch.tanh(x + self.h)


class Many(nn.Module):
    def __init__(self, states: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Cell() for _ in range(states // 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for cell in self.cells:
                x = cell(x)
        return x


def prepared(states: int):
    x = torch.randn(3, generator=torch.Generator().manual_seed(0))
    plan = InputPlan([Input("x", x.dtype, (3,), Resampled(x))])
    subject = Subject(Many(states).eval(), plan, (), PositionalCall(("x",), {}), {})
    reference = subject.discover().reference
    scripted = script(reference, plan, {})

    def rewrite():
        return make_explicit(scripted, reference, plan, {})

    program = rewrite().program
    assert len(program.states) == states
    assert check_equal(program, reference, plan, [{}], 3).bitwise
    return rewrite


def main() -> None:
    torch.set_num_threads(1)
    contenders = {states: prepared(states) for states in (100, 1000)}
    seconds: dict[int, list[float]] = {states: [] for states in contenders}
    for _ in range(REPEATS):
        for states, rewrite in contenders.items():
            start = time.perf_counter()
            rewrite()
            seconds[states].append(time.perf_counter() - start)
    few, many = (statistics.median(seconds[states]) for states in (100, 1000))
    print(f"100 states {few:.3f} s, 1,000 states {many:.3f} s: ratio {many / few:.1f}", end=" ")
    print(f"(limit {LIMIT:g})")
    raise SystemExit(many / few > LIMIT)


if __name__ == "__main__":
    main()
