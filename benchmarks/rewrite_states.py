"""How the TorchScript rewriting scales with the number of states: 1,000 beside 100, in one run.

The module is a row of cells, called one after another for every row of the input, whose length is a
dynamic axis: so the calls lie in a loop that stays one, and carries every state.  Each cell has one
buffer, which a third of the cells reassigns in one branch of an ``if`` and writes to in the other,
a third writes to in place through a view of a view, and a third changes in a loop over elements.
Cells damp what comes in: a long row that magnified rounding could be compared with nothing.
Both programs are rolled out beside eager PyTorch, bit for bit, before anything is timed.

Prints the medians of ``--repeats`` alternating rewritings and their ratio, which may be at most 12
(ten times the states, and a fifth on top), and ends with 1 if it is more.  ``--export`` also times
``export_onnx`` from end to end, once each.  The recursion limit is Python's own.
"""

import argparse
import gc
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import stateful_pipeline as sp
from stateful_pipeline.contract import Axis
from stateful_pipeline.model import jit
from stateful_pipeline.model.inputs import Input, InputPlan, Resampled
from stateful_pipeline.model.scripting import script
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.model.subject import PositionalCall, Subject
from stateful_pipeline.stages.rewrite.equality import check_equal
from stateful_pipeline.stages.rewrite.torchscript.explicit import make_explicit

LIMIT = 12.0
COUNTS = (100, 1000)
FEATURES = 3
STEPS = 3


class InBranches(nn.Module):
    """Reassigns its buffer in one branch, and writes to it in place in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(FEATURES))

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            self.h = self.h * 0.5 + x
        else:
            self.h.mul_(0.25)
        return torch.tanh(row + 0.2 * (x + self.h))


class ThroughViews(nn.Module):
    """Writes to its buffer in place, through a view of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(2, FEATURES))

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        self.h[1][1:].mul_(0.5).add_(x[1:])
        self.h[0] = x
        return torch.tanh(row + 0.2 * (x + self.h.sum(dim=0)))


class InALoop(nn.Module):
    """Changes its buffer in a loop over the elements of another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(FEATURES))

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        for i in range(x.size(0)):
            self.h = self.h * 0.5 + x[i]
        return torch.tanh(row + 0.2 * (x + self.h))


class Row(nn.Module):
    """``states`` cells in a row, each with one state, called for each row of the input."""

    def __init__(self, states: int) -> None:
        super().__init__()
        kinds = (InBranches, ThroughViews, InALoop)
        self.cells = nn.ModuleList([kinds[i % len(kinds)]() for i in range(states)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.zeros_like(x[0])
        for t in range(x.size(0)):
            y = x[t] - 0.5 * y
            for cell in self.cells:
                y = cell(y, x[t])
        return y


def example() -> Tensor:
    return torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(0))


def prepared(states: int) -> Callable[[], object]:
    """Return what rewrites a module of so many states, once that is known to come out right."""
    x = example()
    plan = InputPlan([Input("x", x.dtype, ("time", FEATURES), Resampled(x))])
    axes = (Axis("time", min=1, opt=4),)
    subject = Subject(Row(states).eval(), plan, axes, PositionalCall(("x",), {}), {})
    reference = subject.discover().reference
    hints = {"time": 4}
    scripted = script(reference, plan, hints)

    def rewrite():
        return make_explicit(scripted, reference, plan, hints)

    program = rewrite().program
    if len(program.states) != states:
        raise SystemExit(f"{len(program.states)} states were found, not {states}")
    for kind in ("prim::If", "prim::Loop"):
        if not jit.has_kind(program.graph, kind):
            raise SystemExit(f"the rewritten graph has no {kind}: this would measure too little")
    equality = check_equal(program, reference, plan, corner_sizes(axes)[:2], STEPS)
    if not equality.bitwise:
        raise SystemExit(f"{states} states: differs from eager by {equality.max_abs_error:.2g}")
    return rewrite


def seconds(action: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def exported(states: int, folder: Path) -> Callable[[], object]:
    path, module = folder / f"{states}.onnx", Row(states).eval()
    dynamic = {"x": {0: "time"}}
    return lambda: sp.export_onnx(
        module, (example(),), path, dynamic_axes=dynamic, frontend="torchscript"
    )


def line(what: str, few: float, many: float) -> str:
    return f"{what}: 100 states {few:.2f} s, 1,000 states {many:.2f} s, ratio {many / few:.1f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=3, help="timed rewritings of each")
    options.add_argument("--export", action="store_true", help="time export_onnx too, once each")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    contenders = {states: prepared(states) for states in COUNTS}
    print(f"both equal eager PyTorch bit for bit; recursion limit {sys.getrecursionlimit()}")
    times: dict[int, list[float]] = {states: [] for states in COUNTS}
    for _ in range(chosen.repeats):
        for states, rewrite in contenders.items():
            times[states].append(seconds(rewrite))
    few, many = (statistics.median(times[states]) for states in COUNTS)
    where = f"Python {platform.python_version()}, torch {torch.__version__}, one thread"
    print(f"{line('rewriting', few, many)} (limit {LIMIT:g}; medians of {chosen.repeats}; {where})")
    if chosen.export:
        with tempfile.TemporaryDirectory() as folder:
            whole = [seconds(exported(states, Path(folder))) for states in COUNTS]
        print(line("export_onnx, end to end", *whole))
    sys.exit(many / few > LIMIT)


if __name__ == "__main__":
    main()
