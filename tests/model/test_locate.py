from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from stateful_pipeline.model.locate import change_places, is_user_file, user_place


class Helper:
    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys

    def update(self, x: torch.Tensor) -> None:
        self.keys.add_(x)  # line A


class Changes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2))
        self.register_buffer("h", torch.zeros(2))
        self.register_buffer("constant", torch.zeros(2))
        self.helper = Helper(self.keys)
        self.items = [torch.zeros(2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.helper.update(x)
        self.h = self.h + x  # line B
        self.items[0] = x  # line C
        return x


def lines() -> dict[str, int]:
    with Path(__file__).open() as file:
        return {
            line.split("# line ")[1].strip(): number
            for number, line in enumerate(file, 1)
            if "# line " in line and "split" not in line and "if" not in line
        }


def test_each_change_is_found_at_its_line_and_undone() -> None:
    module = Changes()
    paths = ["keys", "h", "items.0", "constant"]
    found = change_places(module, lambda: module(torch.ones(2)), paths)
    at = lines()
    assert {path: place.line for path, place in found.items()} == {
        "keys": at["A"],
        "h": at["B"],
        "items.0": at["C"],
    }
    assert {place.file for place in found.values()} == {__file__}
    assert module.h.tolist() == [0.0, 0.0]


def test_an_error_is_blamed_on_the_innermost_line_of_the_user() -> None:
    def fails() -> None:
        torch.zeros(2).reshape(3)  # line D

    with pytest.raises(RuntimeError) as caught:
        fails()
    assert user_place(caught.value).line == lines()["D"]


def test_libraries_are_not_the_user() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(torch.__file__)
    assert not is_user_file("<string>")
    assert not is_user_file(change_places.__code__.co_filename)


mode = "idle"


class Elsewhere(nn.Module):
    frames = 0

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[()]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global mode
        mode = "busy"  # line E
        Elsewhere.frames += 1  # line F
        self.log.append(())  # line G
        return x + torch.rand(1)  # line H


def test_changes_outside_the_module_are_found_as_well() -> None:
    module = Elsewhere()
    outside = {f"<global {__name__}.mode>": "E", "<class Elsewhere>.frames": "F"}
    marks = {**outside, "log": "G", "<random generator of torch>": "H"}
    found = change_places(module, lambda: module(torch.ones(2)), list(marks))
    assert {path: place.line for path, place in found.items()} == {
        path: lines()[mark] for path, mark in marks.items()
    }
    assert (mode, Elsewhere.frames) == ("idle", 0)
