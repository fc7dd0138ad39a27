"""Carries through a ``prim::Loop`` what its body changes.

What a body changes is known only after it was written, and what it writes depends on what is
carried.  So the body is written with as little carried as possible, and anew with more until it
changes nothing else: a fixpoint, which is reached since what is carried only grows.  A name that
means the same object at the end of the body as at its start needs no carrying: only what the object
holds does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Value
from stateful_pipeline.stages.rewrite.torchscript.aliases import Family
from stateful_pipeline.stages.rewrite.torchscript.carried import (
    Carried,
    Meanings,
    Name,
    base_of,
)
from stateful_pipeline.stages.rewrite.torchscript.scope import Scope
from stateful_pipeline.stages.rewrite.torchscript.sizes import same_shape
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Elements,
    Held,
    Known,
    Opaque,
    Plain,
    Ref,
    Root,
    Undefined,
)
from stateful_pipeline.stages.rewrite.torchscript.values import Sequence as List
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

MOST_PASSES = 64
MOST_UNROLLED = 256

Body = Callable[[Any, list[Any]], tuple[Any, list[Any]]]
"""Writes the body for the number of the iteration and the variables: ``(go on, variables)``."""


class NeedsUnrollingError(Exception):
    """The body is better written with the number of the iteration known."""


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
    carried = Carried()
    for _ in range(MOST_PASSES):
        attempt = _Attempt(writer, trips, start, list(initial), carried)
        try:
            with writer.inside_loop():
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
        self, writer: Writer, trips: Any, start: Any, initial: list[Any], carried: Carried
    ) -> None:
        self._writer, self._initial, self._carried = writer, initial, carried
        self._outer = self._scope = writer.scope
        self._meanings = Meanings(writer, carried, self._before)
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
        self._begun = writer.moment()
        self._starts: dict[Any, Any] = {}  # what is carried, to its content in the body
        self._ends: dict[Name, Any] = {}  # what names mean at the end

    def _content_of(self, what: Name | Root) -> Any:
        """Return, as one value, what an object or a name holds before the loop."""
        if isinstance(what, Root):
            return self._as_one(what, self._outer.content(what))
        return self._content_meant(self._before(what), self._carried.shapes.get(what))

    def _before(self, name: Name) -> Any:
        """Return what a name means before the loop."""
        if isinstance(name, int):
            return self._initial[name]
        if isinstance(name[0], Root):
            content: Any = self._outer.content(name[0])
            return content.items[name[1]]
        return self._outer.pointer(name)

    def _typed(self, what: Name | Root, content: Any) -> Any:
        """Return a list that is empty at first as a list of what it will hold."""
        fake = self._carried.fakes.get(what)
        if isinstance(content, Opaque) and content.fake is None and fake is not None:
            typed = self._writer.list_value([], jit.tensor_type_of(fake.dtype))
            plain = jit.list_type(jit.TENSOR)
            return Opaque(self._writer.node_of("prim::unchecked_cast", [typed], [plain])[0])
        return content

    def _content_meant(self, meant: Any, like: torch.Tensor | None = None) -> Any:
        if isinstance(meant, Undefined):
            meant = self._writer.placeholder(meant.type, like)
        if isinstance(meant, Held):
            return meant
        if isinstance(meant, Ref):
            return self._writer.read(meant)
        if isinstance(meant, List):
            return self._as_one(meant.root, self._writer.content(meant.root))
        if isinstance(meant, Known | Plain):
            return Plain(self._writer.value(meant), self._writer.scope)
        raise self._writer.refusal("a variable of a loop is neither a tensor, a list nor a number")

    def _as_one(self, root: Root, content: Any) -> Any:
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
        element = values[0].type() if values and not refs else root.element
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
        before = self._before(what)
        meaning = content
        if not isinstance(content, Plain):
            sources = self._carried.names[what]
            if not isinstance(before, Undefined):
                sources |= self._writer.sources_of(base_of(before))
            root = self._writer.new_root(content, _origin(before), sources)
            root.family = self._meanings.family
            self._meanings.own[what] = root
            meaning = Ref(root)
            if isinstance(before, List):
                root.element, root.limit = before.element, before.root.limit
                meaning = List(root)
        if isinstance(what, int):
            variables[what] = meaning
        elif isinstance(what[0], Root):
            held = scope.content(what[0])
            assert isinstance(held, Elements)
            items = (*held.items[: what[1]], meaning, *held.items[int(what[1]) + 1 :])
            scope.contents[what[0]] = Elements(items, held.keys)
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
                if isinstance(end, Ref):
                    self._carried.shapes[index] = self._writer.read(end).fake
                done = False
        named: list[tuple[Name, Any]] = list(self._scope.pointers.items())
        for root, content in self._scope.contents.items():
            if isinstance(content, Elements) and self._by_item(root, content):
                named += [((root, index), item) for index, item in enumerate(content.items)]
        for name, end in named:
            self._ends[name] = end
            if name not in self._carried.names and end != self._before(name):
                self._carried.names[name] = frozenset()
                done = False
        return self._meanings.note(self._ends, self._scope) and done

    def _by_item(self, root: Root, content: Any) -> bool:
        """Whether a list keeps its length in the loop, so that its items are carried one by one."""
        if not self._outer.sees(root.scope) or root in self._carried.contents:
            return False
        before = self._outer.content(root)
        if not isinstance(before, Elements) or not isinstance(content, Elements):
            return False
        return len(before.items) == len(content.items) and before.keys == content.keys

    def _note_contents(self) -> bool:
        """Note objects that hold something else at the end; return whether all were carried."""
        done = True
        for root, content in self._scope.contents.items():
            known = not self._outer.sees(root.scope) or root in self._carried.contents
            if known or self._by_item(root, content):
                continue
            if content is not self._outer.content(root):
                self._carried.contents[root] = None
                for name in [
                    n for n in self._carried.names if isinstance(n, tuple) and n[0] is root
                ]:
                    del self._carried.names[name]
                done = False
        return done

    def _note_stale(self) -> bool:
        """Note objects that are stale at the end; return whether that changes the body.

        It does not where the body never reads them: the next iteration does not either.
        """
        done = True
        for root, (stale, place) in self._scope.stale.items():
            if stale and self._outer.sees(root.scope) and root not in self._carried.stale:
                self._carried.stale[root] = place
                done = done and not self._writer.was_read_since(root, self._begun)
        return done

    def _end(self) -> bool:
        """Register what the next iteration gets; return whether it is like what this one got."""
        done, values = True, []
        for what in self._carried.all():
            content = (
                self._as_one(what, self._scope.content(what))
                if isinstance(what, Root)
                else self._content_meant(
                    self._ends[what], getattr(self._starts[what], "fake", None)
                )
            )
            values.append(content.value)
            start = self._starts[what]
            if isinstance(start, Plain) or self._carried.fakes.get(what, start) is None:
                continue
            fake = self._writer.sizes.join(start.fake, content.fake)
            if isinstance(start, Opaque) and start.fake is None:
                fake = content.fake  # the list was empty
            if fake is not start.fake and not _same(fake, start.fake):
                self._carried.fakes[what] = fake
                done = False
        for value in values:
            self._block.registerOutput(value)
        return done

    # --- after the loop ----------------------------------------------------------------------

    def finish(self) -> list[Any]:
        """Complete the node; return what the loop's variables mean after it."""
        variables = list(self._initial)
        self._meanings.family = Family(self._meanings.family.tokens)
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


def _fake(content: Any) -> torch.Tensor | None:
    return None if isinstance(content, Plain) else content.fake


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and same_shape(a, b)


def _origin(meant: Any) -> str:
    base = None if isinstance(meant, Undefined) else base_of(meant)
    return base.origin if isinstance(base, Root) else "a tensor"
