"""Saving scripted modules whose state is in C++ objects."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stateful_pipeline.errors import StageError, StateError
from stateful_pipeline.libraries import LoadedLibrary, save
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.outcome import Exit, code_of

Script = Callable[[Any], Any]


class Counting(nn.Module):
    def __init__(self, counter: Any) -> None:
        super().__init__()
        self.counter = counter

    def forward(self, x: int) -> int:
        return self.counter.next() * x


class Outer(nn.Module):
    def __init__(self, counter: Any) -> None:
        super().__init__()
        self.inner = Counting(counter)

    def forward(self, x: int) -> int:
        return self.inner(x)


class Mixed(nn.Module):
    """Values that a comparison may trip over."""

    words: list[str]
    table: dict[str, list[float]]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nan", torch.tensor([float("nan"), -0.0]))
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("complex", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("missing", None)
        self.words = ["a"]
        self.table = {"a": [1.0, float("nan")]}
        self.number = float("nan")
        self.counter = torch.classes.counting.Counter(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.nan * self.counter.next()


def load(path: Path) -> Any:
    with quiet_scripting():
        return torch.jit.load(path)


def test_saved_state_comes_back(counter: LoadedLibrary, script: Script, tmp_path: Path) -> None:
    module = script(Outer(torch.classes.counting.Counter(5)))
    assert module(1) == 6
    save(module, tmp_path / "counting.pt")
    assert [load(tmp_path / "counting.pt")(1), module(1)] == [7, 7]


def test_values_of_every_kind_are_compared(
    counter: LoadedLibrary, script: Script, tmp_path: Path
) -> None:
    save(script(Mixed()), tmp_path / "mixed.pt")
    assert load(tmp_path / "mixed.pt").words == ["a"]


def test_class_that_does_not_say_how_it_is_saved_is_named(
    counter: LoadedLibrary, script: Script, tmp_path: Path
) -> None:
    module = script(Outer(torch.classes.counting.Unsaved()))
    assert module(1) == 1  # it runs
    (tmp_path / "m.pt").write_text("the last good one")
    with pytest.raises(StateError, match=r"C\+\+ class counting\.Unsaved does not say") as caught:
        save(module, tmp_path / "m.pt")
    assert caught.value.attribute == "inner.counter"
    assert caught.value.hint is not None
    assert ".def_pickle(" in caught.value.hint
    assert "counting.Unsaved" in caught.value.hint
    assert code_of(caught.value) == Exit.FAILED
    assert (tmp_path / "m.pt").read_text() == "the last good one"
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


def test_object_in_a_list_is_found_too(
    counter: LoadedLibrary, script: Script, tmp_path: Path
) -> None:
    class Listed(nn.Module):
        counters: list[torch.classes.counting.Unsaved]

        def __init__(self, counters: Any) -> None:
            super().__init__()
            self.counters = counters

        def forward(self, x: int) -> int:
            return self.counters[0].next() * x

    module = script(Listed([torch.classes.counting.Unsaved()]))
    with pytest.raises(StateError, match=r"'counters': the C\+\+ class counting\.Unsaved"):
        save(module, tmp_path / "m.pt")


def test_class_that_forgets_its_state_is_refused(
    counter: LoadedLibrary, script: Script, tmp_path: Path
) -> None:
    module = script(Outer(torch.classes.counting.Forgetful(5)))
    with pytest.raises(StateError, match="is another after saving and loading") as caught:
        save(module, tmp_path / "m.pt")
    assert caught.value.attribute == "inner.counter"
    assert list(tmp_path.iterdir()) == []
    save(script(Outer(torch.classes.counting.Forgetful(0))), tmp_path / "m.pt")  # nothing to forget


def test_file_says_nothing_of_how_it_was_written(
    counter: LoadedLibrary, script: Script, tmp_path: Path
) -> None:
    module = script(Counting(torch.classes.counting.Counter(5)))
    with quiet_scripting():
        torch.jit.save(module, tmp_path / "m.pt")
    expected = (tmp_path / "m.pt").read_bytes()
    save(module, tmp_path / "m.pt")
    assert (tmp_path / "m.pt").read_bytes() == expected


def test_module_that_calls_python_cannot_be_saved(script: Script, tmp_path: Path) -> None:
    @torch.jit.ignore
    def ask(x: int) -> int:
        return x + 1

    class Asking(nn.Module):
        def forward(self, x: int) -> int:
            return ask(x)

    with pytest.raises(StageError, match="cannot be saved: Could not export Python function"):
        save(script(Asking()), tmp_path / "m.pt")
    assert list(tmp_path.iterdir()) == []
