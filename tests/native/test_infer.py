"""Saved models in a C++ process, against eager PyTorch."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stateful_pipeline.errors import StageError, TargetError
from stateful_pipeline.libraries import (
    LoadedLibrary,
    build,
    infer_program,
    missing_tools,
    run_infer,
    run_text,
    save,
)
from stateful_pipeline.libraries.infer import SOURCE

Script = Callable[[Any], Any]
Infer = Callable[..., subprocess.CompletedProcess[str]]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = torch.classes.my_classes.MyStackClass(["hi", "mom"])

    def forward(self, x: str) -> str:
        other = torch.classes.my_classes.MyStackClass([self.stack.pop()])
        other.merge(torch.classes.my_classes.MyStackClass([x]))
        last = other.pop()
        return other.pop() + last


class Smoother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, -1.0]))
        self.ring = torch.classes.stateful.TensorRing(3, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.ring.push(x * self.scale)
        return self.ring.mean(), self.ring.window()

    @torch.jit.export
    def forget(self) -> None:
        self.ring.reset()


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = torch.classes.counting.Counter(10)

    def forward(self, x: int) -> int:
        return self.counter.next() * x


class Plain(nn.Module):
    """State that is no C++ object, changed and returned, and inputs of many types."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))
        self.seen = 0

    def forward(
        self,
        xs: list[torch.Tensor],
        scales: dict[str, float],
        pair: tuple[int, str],
        bias: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        self.seen += pair[0]
        for x in xs:
            self.total += x * scales["a"]
            x.zero_()
        if bias is not None:
            self.total += bias
        return {"total": self.total, "seen": torch.tensor(self.seen), pair[1]: self.total.double()}


def frames(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, generator=generator) for _ in range(count)]


@pytest.fixture
def smoother(ring: LoadedLibrary, script: Script, tmp_path: Path) -> Path:
    save(script(Smoother()), tmp_path / "smoother.pt")
    return tmp_path / "smoother.pt"


@pytest.fixture
def plain(script: Script, tmp_path: Path) -> Path:
    save(script(Plain()), tmp_path / "plain.pt")
    return tmp_path / "plain.pt"


def test_stack_of_words_answers_a_string(
    stack: LoadedLibrary, script: Script, tmp_path: Path, cache: Path, infer: Infer
) -> None:
    save(script(Words()), tmp_path / "words.pt")
    assert run_text(tmp_path / "words.pt", [stack.path], "foobarbaz", cache=cache) == "momfoobarbaz"
    model = (tmp_path / "words.pt", "--library", stack.path, "--string", "foobarbaz")
    assert infer(*model).stdout == "momfoobarbaz\n"
    assert infer(*model, "--steps", 2).stdout == "momfoobarbaz\nhifoobarbaz\n"


@pytest.mark.parametrize("named", [False, True])
def test_ring_wraps_as_it_does_in_eager(
    smoother: Path, ring: LoadedLibrary, cache: Path, named: bool
) -> None:
    eager, steps = Smoother(), frames(11)
    inputs = [{"x": x} if named else (x,) for x in steps]
    done = run_infer(smoother, [ring.path], inputs, cache=cache)
    for got, x in zip(done.outputs, steps, strict=True):
        assert all(map(torch.equal, got, eager(x)))
    assert len(done.nanoseconds) == len(steps)
    assert min(*done.nanoseconds, done.load_nanoseconds) > 0


@pytest.mark.parametrize("method", [None, "forget"])
def test_reset_goes_back_to_the_initial_state(
    smoother: Path, ring: LoadedLibrary, cache: Path, method: str | None
) -> None:
    steps = frames(7)
    done = run_infer(
        smoother,
        [ring.path],
        [(x,) for x in steps],
        steps=15,
        reset_every=4,
        reset_method=method,
        cache=cache,
    )
    assert len(done.outputs) == 15
    eager = Smoother()
    for i, got in enumerate(done.outputs):
        if i % 4 == 0:
            eager = Smoother()
        assert all(map(torch.equal, got, eager(steps[i % 7])))


def test_reset_by_loading_gives_the_state_that_was_saved(
    ring: LoadedLibrary, script: Script, tmp_path: Path, cache: Path
) -> None:
    module = script(Smoother())
    module(torch.ones(2))
    save(module, tmp_path / "warm.pt")
    inputs = [(torch.zeros(2),)]
    done = run_infer(tmp_path / "warm.pt", [ring.path], inputs, steps=2, reset_every=1, cache=cache)
    for _, window in done.outputs:
        assert torch.equal(window, torch.tensor([[2.0, -1.0], [0.0, 0.0]]))


@pytest.mark.parametrize("method", [None, "forget"])
def test_reset_at_steps_comes_beside_that_every_so_many(
    smoother: Path, ring: LoadedLibrary, cache: Path, method: str | None
) -> None:
    steps = frames(9)
    done = run_infer(
        smoother,
        [ring.path],
        [(x,) for x in steps],
        reset_every=4,
        reset_at=[3, 7],
        reset_method=method,
        cache=cache,
    )
    eager = Smoother()
    for i, got in enumerate(done.outputs):
        eager = Smoother() if i in (3, 4, 7, 8) else eager
        assert all(map(torch.equal, got, eager(steps[i])))


class Shared(nn.Module):
    """Two attributes that are one memory, in a module within a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.register_buffer("all", torch.zeros(2, 3))
        self.register_buffer("row", self.inner.all[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.row += x
        return self.inner.all * 1


def test_what_shares_memory_does_so_after_a_reset(
    script: Script, tmp_path: Path, cache: Path
) -> None:
    save(script(Shared()), tmp_path / "shared.pt")
    inputs = [torch.full((3,), float(i + 1)) for i in range(4)]
    done = run_infer(tmp_path / "shared.pt", [], inputs, reset_every=2, cache=cache)
    assert [output[0, 0].item() for output in done.outputs] == [1.0, 3.0, 3.0, 7.0]
    assert all(output[1].eq(0).all() for output in done.outputs)


class Tally:
    def __init__(self) -> None:
        self.count = 0


class Tallying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tally = Tally()

    def forward(self, x: int) -> int:
        self.tally.count += x
        return self.tally.count


def test_object_of_a_class_of_torchscript_is_new_after_a_reset(
    script: Script, reload: Script, tmp_path: Path, cache: Path
) -> None:
    script(Tally)
    reload(script(Tallying()))
    done = run_infer(tmp_path / "reloaded.pt", [], [1, 2, 3], reset_every=2, cache=cache)
    assert done.outputs == [1, 3, 3]


def test_program_runs_wherever_it_was_copied_to(
    smoother: Path, ring: LoadedLibrary, cache: Path
) -> None:
    folder = smoother.parent / "elsewhere"
    folder.mkdir()
    program, library = (
        Path(shutil.copy2(path, folder)) for path in (infer_program(cache), ring.path)
    )
    inputs = [(x,) for x in frames(2)]
    done = run_infer(smoother, [library], inputs, program=program)
    assert len(done.outputs) == 2


def test_machine_without_a_compiler_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_tools() is None
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TargetError, match="no C\\+\\+ compiler 'no-such-compiler'") as caught:
        infer_program(tmp_path)
    assert "apt install g++" in str(caught.value)
    assert str(missing_tools()) == str(caught.value)


def test_program_that_does_not_compile_is_no_missing_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CMakeLists.txt").write_text("message(FATAL_ERROR no)\n")
    monkeypatch.setattr("stateful_pipeline.libraries.infer.SOURCE", tmp_path)
    with pytest.raises(StageError, match="cannot be built"):
        infer_program(tmp_path / "cache")


def test_class_that_the_program_has_never_heard_of_runs_by_the_same_binary(
    counter: LoadedLibrary, ring: LoadedLibrary, script: Script, tmp_path: Path, cache: Path
) -> None:
    save(script(Counting()), tmp_path / "counting.pt")
    before = build(SOURCE, cache)
    # A library that the model does not use does no harm.
    libraries = [ring.path, counter.path]
    done = run_infer(tmp_path / "counting.pt", libraries, [1, (2,), {"x": 3}], cache=cache)
    assert done.outputs == [11, 24, 39]
    assert build(SOURCE, cache) == before
    assert not before.compiled


def test_inputs_of_every_type_and_outputs_that_are_state(plain: Path, cache: Path) -> None:
    eager = Plain()

    def inputs() -> list[Any]:
        xs = frames(2)
        return [
            (xs, {"a": 0.5}, (2, "wide")),
            {"xs": [xs[0]], "scales": {"a": 2.0}, "pair": (1, "w"), "bias": torch.ones(2)},
            ([], {"a": 1.0}, (0, "empty"), None),
        ]

    done = run_infer(plain, [], inputs(), steps=6, cache=cache)
    for i, got in enumerate(done.outputs):
        step = inputs()[i % 3]
        want = eager(**step) if isinstance(step, dict) else eager(*step)
        assert got.keys() == want.keys()
        assert all(torch.equal(got[key], want[key]) for key in want)
        assert all(got[key].dtype == want[key].dtype for key in want)


def test_times_are_written_as_json(smoother: Path, ring: LoadedLibrary, infer: Infer) -> None:
    folder = smoother.parent
    torch.save([(x,) for x in frames(3)], folder / "in.pt")
    done = infer(smoother, "--library", ring.path, "--inputs", folder / "in.pt",
        "--time", folder / "times.json", "--steps", 5, "--threads", 1,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    times = json.loads((folder / "times.json").read_text())
    assert len(times["nanoseconds"]) == 5
    assert sorted(p.name for p in folder.iterdir()) == ["in.pt", "smoother.pt", "times.json"]


def test_help_says_every_option(infer: Infer) -> None:
    done = infer("--help")
    assert done.returncode == 0
    for option in ("--library", "--inputs", "--string", "--outputs", "--steps", "--reset-at"):
        assert option in done.stdout
    assert "torch.load(FILE, weights_only=False)" in done.stdout
