"""Carries through a ``prim::Loop`` what its body changes.

What a body changes is known only after it was written, and what it writes depends on what is
carried.  So the body is written with as little carried as possible, and anew with more until it
changes nothing else: a fixpoint, which is reached since what is carried only grows.  A name that
means the same object at the end of the body as at its start needs no carrying: only what the object
holds does.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stateful_pipeline.errors import Place
from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Value
from stateful_pipeline.stages.rewrite.torchscript.scope import Scope, Slot
from stateful_pipeline.stages.rewrite.torchscript.sizes import same_shape
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Held,
    Known,
    Opaque,
    Plain,
    Ref,
    Root,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

MOST_PASSES = 64
MOST_UNROLLED = 256

Body = Callable[[Any, list[Any]], tuple[Any, list[Any]]]
"""Writes the body for the number of the iteration and the variables: ``(go on, variables)``."""
Name = int | Slot
"""One of the loop's own variables, or an attribute."""


class NeedsUnrollingError(Exception):
    """The body can be written only if the number of the iteration is known."""


@dataclass
class _Carried:
    """What is carried, as far as it was found out.

    Attributes:
        names: Names that mean something new in each iteration, with the objects they may mean.
        contents: Objects that hold something new in each iteration.
        stale: Objects that are stale at the start of an iteration.
        fakes: What is known of a carried tensor, where it is less than at first.
        tokens: A stand-in for the object that several names mean, if it is made in the body.
    """

    names: dict[Name, frozenset[Root]] = field(default_factory=dict)
    contents: dict[Root, None] = field(default_factory=dict)
    stale: dict[Root, Place | None] = field(default_factory=dict)
    fakes: dict[Any, torch.Tensor | None] = field(default_factory=dict)
    tokens: dict[frozenset[Any], Root] = field(default_factory=dict)

    def all(self) -> list[Name | Root]:
        """Return everything that is carried, in a fixed order."""
        return [*self.names, *self.contents]


def loop(writer: Writer, trips: Any, start: Any, initial: Sequence[Any], body: Body) -> list[Any]:
    """Write a loop and return what its variables mean afterwards.

    Args:
        writer: The new graph.
        trips: The largest number of iterations.
        start: Whether the first one happens.
        initial: What the variables mean at first.
        body: Writes the body.
    """
    if start == Known(False) or (isinstance(trips, Known) and trips.value <= 0):
        return list(initial)
    carried = _Carried()
    for _ in range(MOST_PASSES):
        attempt = _Attempt(writer, trips, start, list(initial), carried)
        try:
            done = attempt.write(body)
        except NeedsUnrollingError:
            attempt.node.destroy()
            if isinstance(trips, Known) and start == Known(True) and trips.value <= MOST_UNROLLED:
                return _unrolled(writer, trips.value, list(initial), body)
            raise
        if done:
            return attempt.finish()
        attempt.node.destroy()
    raise writer.refusal("what this loop carries from one iteration to the next has no end")


def _unrolled(writer: Writer, trips: int, variables: list[Any], body: Body) -> list[Any]:
    for index in range(trips):
        go_on, variables = body(Known(index), variables)
        if go_on == Known(False) or writer.scope.dead:
            break
        if go_on != Known(True):
            raise NeedsUnrollingError
    return variables


class _Attempt:
    """One way to write a loop: with certain things carried."""

    def __init__(
        self, writer: Writer, trips: Any, start: Any, initial: list[Any], carried: _Carried
    ) -> None:
        self._writer, self._initial, self._carried = writer, initial, carried
        self._outer = self._scope = writer.scope
        self._first = [self._typed(what, self._content_of(what)) for what in carried.all()]
        values = [writer.value(trips), writer.value(start)]
        values += [content.value for content in self._first]
        self.node = writer.graph.create("prim::Loop", values, 0)
        if writer.node is not None:
            self.node.copyMetadata(writer.node)
        writer.graph.insertNode(self.node)
        self._block = self.node.addBlock()
        self._index = self._block.addInputToBlock()
        self._index.setType(jit.INT)
        self._starts: dict[Any, Any] = {}  # what is carried, to its content in the body
        self._own: dict[Name, Root] = {}  # what carried names mean in the body
        self._ends: dict[Name, Any] = {}  # what names mean at the end
        self._known: list[Any] = []  # what is known of all that is carried, at last

    def _content_of(self, what: Name | Root) -> Any:
        """Return, as one value, what an object or a name holds before the loop."""
        if isinstance(what, Root):
            return self._as_one(what, self._outer.content(what))
        meant = self._initial[what] if isinstance(what, int) else self._outer.pointer(what)
        return self._content_meant(meant)

    def _typed(self, what: Name | Root, content: Any) -> Any:
        """Return a list that is empty at first as a list of what it will hold."""
        fake = self._carried.fakes.get(what)
        if isinstance(content, Opaque) and content.fake is None and fake is not None:
            typed = self._writer.list_value([], jit.tensor_type_of(fake.dtype))
            plain = jit.list_type(jit.TENSOR)
            return Opaque(self._writer.node_of("prim::unchecked_cast", [typed], [plain])[0])
        return content

    def _content_meant(self, meant: Any) -> Any:
        if isinstance(meant, Ref):
            return self._writer.read(meant)
        if isinstance(meant, List):
            return self._as_one(meant.root, self._writer.content(meant.root), meant.element)
        if isinstance(meant, Known | Plain):
            return Plain(self._writer.value(meant), self._writer.scope)
        raise self._writer.refusal("a variable of a loop is neither a tensor, a list nor a number")

    def _as_one(self, root: Root, content: Any, element: Any = jit.TENSOR) -> Any:
        """Return a content as one value; a list of known length becomes one that can grow."""
        if not isinstance(content, Elements):
            return content
        writer = self._writer
        if content.keys:
            raise writer.refusal(
                f"{root.origin} is a dict that changes in a loop", "use one variable for each key"
            )
        refs = [item for item in content.items if isinstance(item, Ref)]
        for item in refs:
            writer.add_parts(root, writer.sources_of(item.base))
        values = [writer.value(item) for item in content.items]
        if values and not refs:
            element = values[0].type()
        fake = writer.read(refs[0]).fake if refs else None
        return Opaque(writer.list_value(values, element), fake)

    # --- the body ----------------------------------------------------------------------------

    def write(self, body: Body) -> bool:
        """Write the body; return whether nothing else turned out to change."""
        writer = self._writer
        with writer.inside(self._block) as scope:
            self._scope = scope
            variables = self._begin()
            index = Plain(self._index, scope, writer.sizes.unknown_size())
            go_on, ends = body(index, list(variables))
            if scope.dead:
                raise writer.refusal("every iteration of a loop raises")
            self._block.registerOutput(writer.value(go_on))
            done = self._note_names(variables, ends)
            done = self._note_contents() and done
            done = self._note_stale() and done
            return done and self._end()

    def _begin(self) -> list[Any]:
        """Let all that is carried be the block's inputs; return what the variables mean."""
        variables = list(self._initial)
        for what, first in zip(self._carried.all(), self._first, strict=True):
            value = self._block.addInputToBlock()
            value.setType(first.value.type())
            content = _with_value(first, value, self._scope)
            if what in self._carried.fakes:
                content = _with_fake(content, self._carried.fakes[what])
            self._starts[what] = content
            self._let(what, content, variables)
        for root, place in self._carried.stale.items():
            self._scope.spoil(root, place)
        return variables

    def _let(self, what: Name | Root, content: Any, variables: list[Any]) -> None:
        """Let ``what`` hold ``content`` in the block that is being written."""
        scope = self._writer.scope
        if isinstance(content, Held):
            content.value.setType(jit.tensor_type(content.fake))
        if isinstance(what, Root):
            scope.contents[what] = content
            return
        before = self._initial[what] if isinstance(what, int) else self._outer.pointer(what)
        meaning = content
        if not isinstance(content, Plain):
            sources = self._carried.names[what] | self._writer.sources_of(_base(before))
            root = self._writer.new_root(content, _origin(before), sources)
            self._own[what] = root
            meaning = List(root, before.element) if isinstance(before, List) else Ref(root)
        if isinstance(what, int):
            variables[what] = meaning
        else:
            scope.pointers[what] = meaning

    # --- what changed ------------------------------------------------------------------------

    def _note_names(self, variables: list[Any], ends: list[Any]) -> bool:
        """Note names that mean something else at the end; return whether all were carried."""
        done = True
        for index, end in enumerate(ends):
            self._ends[index] = end
            if index not in self._carried.names and end != variables[index]:
                self._carried.names[index] = frozenset()
                done = False
        for slot, end in self._scope.pointers.items():
            self._ends[slot] = end
            if slot not in self._carried.names and end != self._outer.pointer(slot):
                self._carried.names[slot] = frozenset()
                done = False
        return self._note_sources() and done

    def _note_sources(self) -> bool:
        """Note what carried names may mean; return whether that was known."""
        shared: dict[Root, set[Any]] = collections.defaultdict(set)
        for name in self._carried.names:
            for root in self._meant_at_end(name):
                shared[root].add(name)
        for root in self._carried.contents:
            if isinstance(self._scope.content(root), Opaque):
                for part in root.parts:
                    shared[part].add(root)
        done = True
        for root, users in shared.items():
            known = root
            if not self._outer.sees(root.scope):
                if len(users) == 1:
                    continue  # nothing else means it
                known = self._token(frozenset(users))
            for user in users - {known}:
                done = self._note_source(user, known) and done
        return done

    def _note_source(self, user: Any, source: Root) -> bool:
        """Note that ``user`` may mean or hold ``source``; return whether that was known."""
        if isinstance(user, Root):
            self._writer.add_parts(user, frozenset([source]))
            return True
        known = source in self._carried.names[user]
        self._carried.names[user] |= {source}
        return known

    def _token(self, users: frozenset[Any]) -> Root:
        return self._carried.tokens.setdefault(users, Root("a tensor", self._outer))

    def _meant_at_end(self, name: Name) -> Iterator[Root]:
        """Yield the objects that a carried name may mean at the end, but for its own."""
        end = self._ends.get(name)
        if isinstance(end, Ref | List):
            own = self._own.get(name)
            yield from (r for r in self._writer.sources_of(_base(end)) if r is not own)

    def _note_contents(self) -> bool:
        """Note objects that hold something else at the end; return whether all were carried."""
        done = True
        for root, content in self._scope.contents.items():
            known = not self._outer.sees(root.scope) or root in self._carried.contents
            if not known and content is not self._outer.content(root):
                self._carried.contents[root] = None
                done = False
        return done

    def _note_stale(self) -> bool:
        done = True
        for root, (stale, place) in self._scope.stale.items():
            if stale and self._outer.sees(root.scope) and root not in self._carried.stale:
                self._carried.stale[root] = place
                done = False
        return done

    def _end(self) -> bool:
        """Register what the next iteration gets; return whether it is like what this one got."""
        done, values = True, []
        for what in self._carried.all():
            content = (
                self._as_one(what, self._scope.content(what))
                if isinstance(what, Root)
                else self._content_meant(self._ends[what])
            )
            values.append(content.value)
            start = self._starts[what]
            if isinstance(start, Plain) or self._carried.fakes.get(what, start) is None:
                continue
            fake = self._writer.sizes.join(start.fake, content.fake)
            if isinstance(start, Opaque) and start.fake is None:
                fake = content.fake  # the list was empty
            if not _same(fake, start.fake):
                self._carried.fakes[what] = fake
                done = False
        for value in values:
            self._block.registerOutput(value)
        return done

    # --- after the loop ----------------------------------------------------------------------

    def finish(self) -> list[Any]:
        """Complete the node; return what the loop's variables mean after it."""
        variables = list(self._initial)
        for what in self._carried.all():
            start = self._starts[what]
            output = self.node.addOutput()
            output.setType(start.value.type())
            self._let(what, _with_value(start, output, self._outer), variables)
        for root, place in self._carried.stale.items():
            if self._scope.is_stale(root):
                self._outer.spoil(root, place)
        return variables


def _with_value(content: Any, value: Value, scope: Scope) -> Any:
    """Return content like ``content`` whose value is another."""
    if isinstance(content, Held):
        return Held(value, content.fake)
    if isinstance(content, Opaque):
        return Opaque(value, content.fake)
    return Plain(value, scope)


def _with_fake(content: Any, fake: torch.Tensor | None) -> Any:
    return type(content)(content.value, fake)


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and same_shape(a, b)


def _base(meant: Any) -> Any:
    return meant.root if isinstance(meant, List) else meant.base


def _origin(meant: Any) -> str:
    base = _base(meant)
    return base.origin if isinstance(base, Root) else "a tensor"
