"""The editor: what each key does, the same in TorchScript, and again after a reset."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stateful_pipeline
from stateful_pipeline.libraries import build, default_cache, load
from stateful_pipeline.zoo.word_stack import BACKSPACE, COPY, KEYS, PASTE, SPACE, WordStack

STACK = Path(stateful_pipeline.__file__).parent / "native" / "stack"


@pytest.fixture(autouse=True, scope="module")
def _stack() -> None:
    load(build(STACK, default_cache()).path)


def keys(text: str) -> list[int]:
    special = {" ": SPACE, "<": BACKSPACE, "^": COPY, "!": PASTE}
    return [special[letter] if letter in special else ord(letter) - ord("a") for letter in text]


def typed(model: torch.nn.Module, text: str) -> list[tuple[str, int]]:
    """Return the word on top and the number of words after each key."""
    shown = []
    for key in keys(text):
        out = model(torch.tensor([key]))
        shown.append(("".join(map(chr, out["word"].tolist())), int(out["depth"])))
    return shown


def test_letters_make_a_word_and_space_begins_the_next() -> None:
    assert typed(WordStack(), "hi yo") == [("h", 1), ("hi", 1), ("", 2), ("y", 2), ("yo", 2)]


def test_backspace_takes_letters_then_the_word_and_leaves_the_last_one() -> None:
    assert typed(WordStack(), "a b<<<<")[3:] == [("", 2), ("a", 1), ("", 1), ("", 1)]


def test_paste_brings_back_what_was_copied_and_the_word_before_stays_below() -> None:
    assert typed(WordStack(), "ab^ c!x<<<<")[5:] == [
        ("ab", 3),
        ("abx", 3),
        ("ab", 3),
        ("a", 3),
        ("", 3),
        ("c", 2),
    ]
    assert typed(WordStack(), "!!") == [("word", 2), ("word", 3)]


def test_a_key_may_have_no_dimension_and_codes_are_whole_numbers() -> None:
    out = WordStack()(torch.tensor(3))
    assert {name: (value.dtype, value.shape) for name, value in out.items()} == {
        "word": (torch.int64, torch.Size([1])),
        "depth": (torch.int64, torch.Size([])),
    }


def test_reset_restores_the_initial_state() -> None:
    model = WordStack()
    first = typed(model, "ab c^!")
    model.reset_states()
    assert typed(model, "ab c^!") == first


def test_torchscript_does_the_same(scripted) -> None:
    generator = torch.Generator().manual_seed(0)
    stream = torch.randint(0, KEYS, (400, 1), generator=generator)
    eager, script = WordStack(), scripted(WordStack())
    for key in stream:
        expected, got = eager(key), script(key)
        assert expected.keys() == got.keys()
        assert all(torch.equal(expected[name], got[name]) for name in expected)
