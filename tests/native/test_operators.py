"""What TorchScript takes an operator on an object for: by how its schema came to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stateful_pipeline.libraries import LoadedLibrary

Script = Callable[[Any], Any]


def test_operator_whose_schema_is_inferred_may_change_its_argument(
    counter: LoadedLibrary, script: Script
) -> None:
    def ignoring(c: torch.classes.counting.Counter) -> int:
        torch.ops.counting.bump(c)
        return c.next()

    scripted = script(ignoring)
    assert [scripted(torch.classes.counting.Counter(0)) for _ in range(3)] == [2, 2, 2]


def test_operator_whose_schema_is_written_is_left_out_where_nobody_reads_its_result(
    counter: LoadedLibrary, script: Script
) -> None:
    """PyTorch's own doing, and why the examples register by a bare name."""

    def ignoring(c: torch.classes.counting.Counter) -> int:
        torch.ops.counting.bump_declared(c)
        return c.next()

    assert ignoring(torch.classes.counting.Counter(0)) == 2
    scripted = script(ignoring)
    assert scripted(torch.classes.counting.Counter(0)) == 1
    assert "bump_declared" not in str(scripted.graph)
