"""Every method of ``my_classes.MyStackClass``, from Python and from TorchScript."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stateful_pipeline.libraries import LoadedLibrary

Script = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _loaded(stack: LoadedLibrary) -> None:
    """The class is there in every test."""


def make(*items: str) -> Any:
    return torch.classes.my_classes.MyStackClass(list(items))


def items(stack: Any) -> list[str]:
    copied = stack.clone()
    found: list[str] = []
    while copied.__getstate__()[0]:
        found.insert(0, copied.pop())
    return found


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stack = torch.classes.my_classes.MyStackClass(["hi", "mom"])

    def forward(self, x: str) -> str:
        return self.stack.pop() + x

    @torch.jit.export
    def add(self, x: str) -> None:
        self.stack.push(x)


def test_library_says_what_it_registered(stack: LoadedLibrary) -> None:
    assert stack.classes == ("my_classes.MyStackClass",)
    assert stack.operators == ("my_classes::manipulate_instance",)


def test_top_is_the_last_item_and_stays() -> None:
    stack = make("a", "b")
    assert stack.top() == "b"
    assert items(stack) == ["a", "b"]


def test_push_then_pop_gives_the_same_back() -> None:
    stack = make()
    stack.push("a")
    stack.push("b")
    assert (stack.pop(), stack.pop()) == ("b", "a")


@pytest.mark.parametrize("method", ["top", "pop"])
def test_empty_stack_has_no_top(method: str) -> None:
    with pytest.raises(RuntimeError, match=rf"{method}\(\) of an empty MyStackClass"):
        getattr(make(), method)()


def test_clone_shares_nothing() -> None:
    stack = make("a")
    other = stack.clone()
    other.push("b")
    assert items(stack) == ["a"]
    assert items(other) == ["a", "b"]


def test_merge_puts_the_other_on_top_and_leaves_it() -> None:
    stack, other = make("a"), make("b", "c")
    stack.merge(other)
    assert items(stack) == ["a", "b", "c"]
    assert items(other) == ["b", "c"]


def test_stack_merges_with_itself() -> None:
    stack = make("a", "b")
    stack.merge(stack)
    assert items(stack) == ["a", "b", "a", "b"]


def test_operator_pops_and_returns_the_very_instance() -> None:
    stack = make("a", "b")
    returned = torch.ops.my_classes.manipulate_instance(stack)
    assert items(stack) == ["a"]
    returned.push("c")
    assert items(stack) == ["a", "c"]


def test_stack_is_pickled_copied_and_saved(tmp_path: Path) -> None:
    stack = make("a", "b")
    assert items(pickle.loads(pickle.dumps(stack))) == ["a", "b"]
    other = copy.deepcopy(stack)
    other.pop()
    assert items(stack) == ["a", "b"]
    torch.save({"stack": stack}, tmp_path / "stack.pt")
    assert items(torch.load(tmp_path / "stack.pt", weights_only=False)["stack"]) == ["a", "b"]


def test_scripted_function_takes_and_returns_a_stack(script: Script) -> None:
    def swapped(
        stack: torch.classes.my_classes.MyStackClass,
    ) -> torch.classes.my_classes.MyStackClass:
        top, below = stack.pop(), stack.pop()
        stack.push(top)
        stack.push(below)
        return stack

    stack = make("a", "b", "c")
    returned = script(swapped)(stack)
    assert items(returned) == ["a", "c", "b"]
    assert items(stack) == ["a", "c", "b"]


def test_scripted_function_calls_every_method(script: Script) -> None:
    def every(words: list[str]) -> tuple[str, str, int]:
        stack = torch.classes.my_classes.MyStackClass(words)
        other = stack.clone()
        other.push("end")
        stack.merge(other)
        top = stack.top()
        count = 0
        last = ""
        while stack.top() != words[0]:
            last = stack.pop()
            count += 1
        return top, last, count

    assert script(every)(["a", "b"]) == ("end", "b", 2)


def test_operator_whose_result_nobody_reads_still_runs(script: Script) -> None:
    def ignoring(stack: torch.classes.my_classes.MyStackClass) -> str:
        torch.ops.my_classes.manipulate_instance(stack)
        return stack.top()

    scripted = script(ignoring)
    for _ in range(3):  # the optimizer has its say from the second call on
        assert scripted(make("a", "b", "c")) == "b"


def test_attribute_of_a_module_keeps_its_state(script: Script) -> None:
    module = script(Holder())
    module.add("dad")
    assert [module("!"), module("!"), module("!")] == ["dad!", "mom!", "hi!"]
    with pytest.raises(RuntimeError, match="empty MyStackClass"):
        module("!")


def test_saved_module_goes_on_from_the_state_it_was_saved_in(
    script: Script, reload: Script
) -> None:
    module = script(Holder())
    assert module("!") == "mom!"
    again = reload(module)
    assert again("?") == "hi?"
    assert module("!") == "hi!"  # what is loaded shares nothing with what was saved
