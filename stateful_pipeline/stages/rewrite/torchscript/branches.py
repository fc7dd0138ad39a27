"""Joins what two branches did: whatever differs becomes an output of the ``prim::If``.

A name that means one object in one branch and another in the other means a *choice* of both
afterwards, so that a later write goes to the right one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Block, Node, Value
from stateful_pipeline.stages.rewrite.torchscript.aliases import Family
from stateful_pipeline.stages.rewrite.torchscript.scope import Scope
from stateful_pipeline.stages.rewrite.torchscript.sizes import same_size
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Choice,
    Elements,
    Group,
    Held,
    Known,
    Link,
    Listing,
    Opaque,
    Plain,
    Ref,
    Root,
    Table,
    Undefined,
    Unusable,
)
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Sequence as List,
)
from stateful_pipeline.stages.rewrite.torchscript.writer import Action, Writer

PLAIN = (Known, Plain)


@dataclass
class Side:
    """A branch that was written."""

    block: Block
    scope: Scope
    results: list[Any] = field(default_factory=list)


def choose(writer: Writer, condition: Plain, then: Action, other: Action) -> list[Any]:
    """Write both actions as the branches of a ``prim::If`` and return what they give, joined.

    A branch that always raises is left out: an engine cannot raise, and eager never goes on.
    """
    node = writer.graph.create("prim::If", [condition.value], 0)
    if writer.node is not None:
        node.copyMetadata(writer.node)
    writer.graph.insertNode(node)
    sides = []
    for action in (then, other):
        block = node.addBlock()
        with writer.inside(block) as scope:
            sides.append(Side(block, scope, action()))
    left, right = sides
    if left.scope.dead or right.scope.dead:
        node.destroy()
        if left.scope.dead and right.scope.dead:
            writer.scope.dead = True
            return []
        return other() if left.scope.dead else then()
    return _Join(writer, condition, node, left, right).results()


class _Join:
    """One ``prim::If`` that is being completed."""

    def __init__(
        self, writer: Writer, condition: Plain, node: Node, left: Side, right: Side
    ) -> None:
        self._writer, self._condition, self._node = writer, condition, node
        self._left, self._right = left, right
        self._outer = writer.scope
        self._uses: Counter[Root] = Counter()
        self._choices: list[tuple[Choice, Held]] = []
        self._made: dict[tuple[Any, Any], Any] = {}
        self._outer_roots: dict[Root, Root] = {}
        self._either: dict[Root, tuple[Ref, Ref]] = {}

    def results(self) -> list[Any]:
        """Join contents, pointers and results, and return the results.

        What is known outside changes only when all is joined: until then the branches still read
        what was known before them.
        """
        left, right = self._left, self._right
        slots = dict.fromkeys([*left.scope.pointers, *right.scope.pointers])
        pairs = [(left.scope.pointer(slot), right.scope.pointer(slot)) for slot in slots]
        pairs += list(zip(left.results, right.results, strict=True))
        self._uses = Counter(
            ref.base
            for pair in dict.fromkeys(p for p in pairs if _is_hashable(p))
            for ref in dict.fromkeys(pair)
            if isinstance(ref, Ref) and isinstance(ref.base, Root)
        )
        contents = self._contents()
        joined = [self.join(a, b) for a, b in pairs]
        self._keep_apart()
        self._outer.contents |= contents
        self._outer.pointers |= dict(zip(slots, joined, strict=False))
        self._staleness()
        for choice, held in self._choices:
            now = (self._writer.read(choice.left), self._writer.read(choice.right))
            self._outer.cache[choice] = (now, held)
        return joined[len(slots) :]

    # --- what objects hold -------------------------------------------------------------------

    def _contents(self) -> dict[Root, Any]:
        left, right = self._left.scope, self._right.scope
        return {
            root: self._content(root, left.content(root), right.content(root))
            for root in dict.fromkeys([*left.contents, *right.contents])
            if self._outer.sees(root.scope)
        }

    def _staleness(self) -> None:
        left, right = self._left.scope, self._right.scope
        for root in dict.fromkeys([*left.stale, *right.stale]):
            if self._outer.sees(root.scope):
                spoilt = next((s for s in (left, right) if s.is_stale(root)), None)
                if spoilt is None:
                    self._outer.refresh(root)
                else:
                    self._outer.spoil(root, spoilt.stale_since(root))

    def _content(self, root: Root, a: Any, b: Any) -> Any:
        if a is b:
            return a
        if isinstance(a, Held) and isinstance(b, Held):
            return self._held(a, b)
        if isinstance(a, Elements) and isinstance(b, Elements) and _alike(a, b):
            items = [self.join(x, y) for x, y in zip(a.items, b.items, strict=True)]
            return Elements(tuple(items), a.keys)
        if (isinstance(a, Elements) and a.keys) or (isinstance(b, Elements) and b.keys):
            raise self._writer.refusal(
                f"{root.origin} has other keys in one branch",
                "let it have the same keys on every path",
                self._writer.written_at.get(root),
            )
        left = self._as_list(self._left, a, root.element)
        right = self._as_list(self._right, b, root.element)
        fakes = [content.fake for content in (left, right) if content.fake is not None]
        fake = self._writer.sizes.join(fakes[0], fakes[-1]) if fakes else None
        return Opaque(self._output(left.value, right.value), fake)

    def _as_list(self, side: Side, content: Any, element: Any) -> Opaque:
        if isinstance(content, Opaque):
            return content
        with self._writer.at(side.block, side.scope):
            values = [self._writer.value(item) for item in content.items]
            refs = [item for item in content.items if isinstance(item, Ref)]
            if values and not refs:
                element = values[0].type()
            fake = self._writer.read(refs[0]).fake if refs else None
            return Opaque(self._writer.list_value(values, element), fake)

    def _held(self, a: Held, b: Held) -> Held:
        if a.value is b.value:
            return a
        fake = self._writer.sizes.join(a.fake, b.fake)
        output = self._output(a.value, b.value)
        output.setType(jit.tensor_type(fake))
        return Held(output, fake)

    def _output(self, a: Value, b: Value) -> Value:
        self._left.block.registerOutput(a)
        self._right.block.registerOutput(b)
        output = self._node.addOutput()
        output.setType(a.type())
        return output

    # --- what names mean ---------------------------------------------------------------------

    def join(self, a: Any, b: Any) -> Any:
        """Return what means ``a`` if the condition holds and ``b`` otherwise."""
        if a is None or b is None:  # an attribute that one branch alone looked at
            return a if b is None else b
        if not _is_hashable((a, b)):
            return self._join(a, b)
        if (a, b) not in self._made:
            self._made[a, b] = self._join(a, b)
        return self._made[a, b]

    def _join(self, a: Any, b: Any) -> Any:
        if isinstance(a, Unusable) or isinstance(b, Unusable):
            return a if isinstance(a, Unusable) else b
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return self._undefined(a, b)
        if a == b and self._is_visible(a):
            return a
        if isinstance(a, Ref) and isinstance(b, Ref):
            return self._tensors(a, b)
        if isinstance(a, PLAIN) and isinstance(b, PLAIN):
            return self._plain(a, b)
        if isinstance(a, List) and isinstance(b, List):
            return List(self._containers(a.root, b.root))
        if isinstance(a, Table) and isinstance(b, Table):
            return Table(self._containers(a.root, b.root))
        if isinstance(a, Group) and isinstance(b, Group) and len(a.items) == len(b.items):
            return Group(tuple(self.join(x, y) for x, y in zip(a.items, b.items, strict=True)))
        return self._unlike(_words(a), _words(b))

    def _unlike(self, a: str, b: str) -> Unusable:
        text = f"a variable is {a} in one branch and {b} in the other: a graph has no form for that"
        return Unusable(text, self._writer.place)

    def _undefined(self, a: Any, b: Any) -> Any:
        """Join with a side on which nobody reads the value."""
        if isinstance(a, Undefined) and isinstance(b, Undefined):
            return a
        defined = b if isinstance(a, Undefined) else a
        if isinstance(defined, Known) or (isinstance(defined, Ref) and self._is_visible(defined)):
            return defined
        mine, yours = (self._left, self._right) if defined is a else (self._right, self._left)
        with self._writer.at(mine.block, mine.scope):
            value = self._writer.value(defined)
            fake = self._writer.read(defined).fake if isinstance(defined, Ref) else None
        with self._writer.at(yours.block, yours.scope):
            other = self._writer.value(self._writer.placeholder(value.type(), fake))
        output = self._output(*((value, other) if mine is self._left else (other, value)))
        output.setType(value.type())
        if isinstance(defined, Ref):
            return self._writer.new_tensor(Held(output, fake))
        if isinstance(defined, List):
            return self._writer.new_list(Opaque(output), defined.element)
        return Plain(output, self._outer)

    def _plain(self, a: Known | Plain, b: Known | Plain) -> Any:
        if isinstance(a, Known) and isinstance(b, Known):
            kinds = {type(a.value), type(b.value)}
            if type(None) in kinds or str in kinds or len(kinds) > 1:
                return self._unlike(repr(a.value), repr(b.value))
        values = []
        for side, what in ((self._left, a), (self._right, b)):
            with self._writer.at(side.block, side.scope):
                values.append(self._writer.value(what))
        fakes = [x.value if isinstance(x, Known) else x.fake for x in (a, b)]
        same = all(_is_size(x) for x in fakes) and same_size(*fakes)
        return Plain(self._output(*values), self._outer, fakes[0] if same else None)

    def _containers(self, a: Root, b: Root) -> Root:
        content = self._content(a, self._left.scope.content(a), self._right.scope.content(b))
        sources = self._writer.sources_of(a) | self._writer.sources_of(b)
        root = self._writer.new_root(content, a.origin, sources)
        root.element = a.element
        return root

    def _tensors(self, a: Ref, b: Ref) -> Ref:
        """Return a reference that is ``a`` or ``b``."""
        with self._writer.at(self._left.block, self._left.scope):
            left = self._writer.read(a)
        with self._writer.at(self._right.block, self._right.scope):
            right = self._writer.read(b)
        held = self._held(left, right)
        if self._is_private(a) and self._is_private(b):
            return self._writer.new_tensor(held, a.base.origin if isinstance(a.base, Root) else "")
        mine, yours = self._outside(a, held), self._outside(b, held)
        if mine is None or yours is None:
            sources = self._writer.sources_of(a.base) | self._writer.sources_of(b.base)
            root = self._writer.new_root(held, "a tensor", sources)
            self._either[root] = (a, b)
            return Ref(root)
        choice = Choice(self._condition, mine, yours)
        self._choices.append((choice, held))
        return Ref(choice)

    def _keep_apart(self) -> None:
        """Let names that mean different objects on both sides be different objects after them."""
        family, aliases = Family(), self._writer.aliases
        users: dict[Root, list[Root]] = defaultdict(list)
        for root in self._either:
            root.family = family
            for source in aliases.above(root):
                users[source].append(root)
        seen: set[frozenset[Root]] = set()
        for together in users.values():
            for one, other in itertools.combinations(together, 2):
                pair = frozenset((one, other))
                sides = zip(self._either[one], self._either[other], strict=True)
                if pair not in seen and any(aliases.may_be_same(x, y) for x, y in sides):
                    token = Root("a tensor", self._outer)
                    family.tokens.add(token)
                    self._writer.add_sources(one, frozenset({token}))
                    self._writer.add_sources(other, frozenset({token}))
                seen.add(pair)

    def _is_private(self, ref: Ref) -> bool:
        """Whether nothing else that is visible outside means the same tensor."""
        base = ref.base
        return (
            isinstance(base, Root)
            and not self._outer.sees(base.scope)
            and self._uses[base] == 1
            and not base.sources
        )

    def _outside(self, ref: Ref, held: Held) -> Ref | None:
        """Return ``ref`` as it is known outside of the branch, or None if it cannot be."""
        if self._is_visible(ref):
            return ref
        if ref.chain or not isinstance(ref.base, Root) or ref.base.sources:
            return None
        if self._outer.sees(ref.base.scope):
            return ref
        if ref.base not in self._outer_roots:
            self._outer_roots[ref.base] = self._writer.new_root(held, ref.base.origin)
        return Ref(self._outer_roots[ref.base])

    def _is_visible(self, what: Any) -> bool:
        if isinstance(what, Ref):
            return self._base_is_visible(what.base) and all(map(self._is_visible, what.chain))
        if isinstance(what, Link):
            return all(self._is_visible(argument) for argument in what.arguments)
        if isinstance(what, Listing | Group):
            return all(self._is_visible(item) for item in what.items)
        if isinstance(what, List | Table):
            return self._outer.sees(what.root.scope)
        return self._outer.sees(what.scope) if isinstance(what, Plain) else True

    def _base_is_visible(self, base: Root | Choice) -> bool:
        if isinstance(base, Root):
            return self._outer.sees(base.scope)
        return all(self._is_visible(x) for x in (base.condition, base.left, base.right))


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _is_hashable(pair: Any) -> bool:
    try:
        hash(pair)
    except TypeError:
        return False
    return True


def _alike(a: Elements, b: Elements) -> bool:
    return len(a.items) == len(b.items) and a.keys == b.keys


def _words(what: Any) -> str:
    names = {Known: "a constant", Plain: "a number", Ref: "a tensor", List: "a list"}
    if isinstance(what, Known) and what.value is None:
        return "None"
    return names.get(type(what), "a module or a dict")
