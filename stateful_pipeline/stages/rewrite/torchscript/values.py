"""What a value of the old graph stands for while the new graph is written.

A *root* is a tensor object (or a list, or a dict): something that can be written to, and that
several names may mean.  A *reference* is a root and the chain of view operators that leads from the
whole tensor to the part of it that is meant; an empty chain means the object itself.  Two values
are the same memory if they are the same reference.  Where a branch decides which object a name
means, the base of the reference is a *choice* instead of a root; where a loop decides, it is a new
root that lists the roots it may be one of (its *sources*): writing to one of them then makes what
is known of the others *stale*, and reading a stale root is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from stateful_pipeline.errors import Place
from stateful_pipeline.model.jit import Value

if TYPE_CHECKING:
    from stateful_pipeline.stages.rewrite.torchscript.aliases import Family
    from stateful_pipeline.stages.rewrite.torchscript.scope import Scope


@dataclass(frozen=True)
class Known:
    """A number, a string, a flag or None whose value is known while rewriting."""

    value: Any

    def __eq__(self, other: object) -> bool:
        """Compare types too: True is not 1."""
        return (
            isinstance(other, Known)
            and type(other.value) is type(self.value)
            and bool(other.value == self.value)
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, eq=False)
class Plain:
    """A number or flag that the new graph computes.

    ``fake`` is a symbolic integer or truth value, where one is known; ``scope`` where it was made.
    """

    value: Value
    scope: Scope
    fake: Any = None


@dataclass(frozen=True)
class Object:
    """A module, by its path below the root module; what it is comes from there."""

    path: str


@dataclass(eq=False)
class Root:
    """A tensor, list or dict object.

    Attributes:
        origin: What it is, in words, for messages.
        scope: The block in which it came to be.
        sources: Roots of which it may be another name.
        parts: For a list that is one value: the roots of the tensors in it.
        element: For a list: the graph type of its items.
        limit: For a deque: the most items that it keeps.
        family: What it belongs to if it stands for a name in a loop; see :mod:`.aliases`.
    """

    origin: str
    scope: Scope
    sources: frozenset[Root] = frozenset()
    parts: frozenset[Root] = frozenset()
    element: Any = None
    limit: int | None = None
    family: Family | None = None


@dataclass(frozen=True, eq=False)
class Choice:
    """One of two references, by a condition that the new graph computes."""

    condition: Plain
    left: Ref
    right: Ref


@dataclass(frozen=True)
class Listing:
    """A list of numbers that is an argument, as it was when the operator was called."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Link:
    """A view operator: its arguments, with None for the tensor that it takes, at ``position``.

    ``item`` chooses one of the views where the operator gives a list of ``count``.
    """

    kind: str
    overload: str
    arguments: tuple[Any, ...]
    position: int
    item: int | None = None
    count: int = 0


@dataclass(frozen=True)
class Ref:
    """A tensor: a base, and the views that lead from it to what is meant."""

    base: Root | Choice
    chain: tuple[Link, ...] = ()


@dataclass(frozen=True)
class Sequence:
    """A list object."""

    root: Root

    @property
    def element(self) -> Any:
        """The graph type of its items."""
        return self.root.element


@dataclass(frozen=True)
class Table:
    """A dict object."""

    root: Root


@dataclass(frozen=True)
class Group:
    """A tuple."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Undefined:
    """What a variable is on a path that never reads it; ``type`` is its graph type."""

    type: Any = field(compare=False)


@dataclass(frozen=True, eq=False)
class Unusable:
    """What has no form in a graph, and is refused where it is used; ``reason`` says why."""

    reason: str
    place: Place | None = None


@dataclass(frozen=True, eq=False)
class Held:
    """What a tensor object holds: a value of the new graph, and a fake tensor like it.

    ``real`` is the tensor itself where it depends on weights and constants alone.
    """

    value: Value
    fake: torch.Tensor | None
    real: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Elements:
    """What a list (or, with ``keys``, a dict) holds, where its length is known."""

    items: tuple[Any, ...]
    keys: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Opaque:
    """What a list holds, as one value of the new graph; ``fake`` is like each of its tensors."""

    value: Value
    fake: torch.Tensor | None = None


def roots_of(base: Root | Choice) -> Iterator[Root]:
    """Yield the roots that a base may be."""
    pending: list[Root | Choice] = [base]
    while pending:
        current = pending.pop()
        if isinstance(current, Root):
            yield current
        else:
            pending += [current.left.base, current.right.base]
