"""Writes operators of the new graph, and keeps account of what tensor objects hold.

Every operator that is written here is pure.  Reading a reference gives the value that it has *now*:
where its root was written to since its views were last computed, they are computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from stateful_pipeline.errors import PipelineError, Place, StageError, StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import Block, Graph, Node, Value
from stateful_pipeline.stages.rewrite.torchscript.aliases import Aliases
from stateful_pipeline.stages.rewrite.torchscript.scope import Scope
from stateful_pipeline.stages.rewrite.torchscript.sizes import Sizes
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Choice,
    Elements,
    Group,
    Held,
    Known,
    Link,
    Listing,
    Object,
    Opaque,
    Plain,
    Ref,
    Root,
    Table,
    Undefined,
    Unusable,
    roots_of,
)
from stateful_pipeline.stages.rewrite.torchscript.values import (
    Sequence as List,
)

_JOINS = frozenset({"aten::stack", "aten::cat", "aten::concat"})
"""Operators on a list of tensors whose result is as long along a dimension as the list."""
_MOST_COMPUTED = 1 << 20
"""Elements of weights beyond which nothing is computed from them here."""
_RESHAPES = {
    ("aten::view", ""): ("aten::reshape", ""),
    ("aten::view_as", ""): ("aten::reshape_as", ""),
}
"""What gives the same elements, however the value that takes a tensor's place lies in memory."""
_FROM_NUMBERS = frozenset({"aten::tensor", "aten::as_tensor"})


def _as_number(fake: Any) -> Any:
    """Return a number in place of a symbolic one, for operators that take no symbols."""
    if isinstance(fake, list):
        return [_as_number(item) for item in fake]
    return 1 if isinstance(fake, torch.SymInt) else fake


def _has_float(arguments: Sequence[Any]) -> bool:
    """Whether one of some arguments is a float that the graph computes."""
    return any(isinstance(what, Plain) and str(what.value.type()) == "float" for what in arguments)


class UnknownFakeError(Exception):
    """An argument of which not enough is known to try an operator, or to compute it."""


class Writer:
    """The new graph, the block that is being written, and what is known in it.

    Attributes:
        graph: The new graph.
        sizes: Infers dtypes and sizes.
        scope: What is known in the block that is being written.
        aliases: Which objects may be the same.
        written_at: The first line that writes in place to an object.
        node: The node of the old graph that is being rewritten.
        unrolls: Whether loops are unrolled where that makes an index of a list known.
        has_fast_path: Whether the old graph has fused kernels of Transformer layers, which no
            exporter knows; PyTorch takes the plain operators beside them where gradients flow.
    """

    def __init__(self, sizes: Sizes, *, has_fast_path: bool = False, unrolls: bool = False) -> None:
        self.has_fast_path = has_fast_path
        self._unrolls, self._loops = unrolls, 0
        self.graph: Graph = jit.new_graph()
        self.sizes = sizes
        self.scope = Scope()
        self.node: Node | None = None
        self.aliases = Aliases()
        self.written_at: dict[Root, Place | None] = {}
        self._moment = 0
        self._last_read: dict[Root, int] = {}

    # --- places and refusals -----------------------------------------------------------------

    @property
    def place(self) -> Place | None:
        """The line of the user's code that is being rewritten, or the last one before it.

        What TorchScript itself wrote has no file: ``a // b`` calls a function from a string.
        """
        return None if self.node is None else jit.written_place_of(self.node)

    def refusal(
        self, reason: str, hint: str | None = None, place: Place | None = None
    ) -> PipelineError:
        """Return the error for what this front end cannot follow, here or at ``place``."""
        return StageError(reason, stage="rewrite", place=place or self.place, hint=hint)

    # --- blocks ------------------------------------------------------------------------------

    @contextmanager
    def inside(self, block: Block) -> Iterator[Scope]:
        """Write into ``block``, with a scope of its own."""
        outer, self.scope = self.scope, Scope(self.scope)
        try:
            with self.graph.insert_point_guard(block):
                yield self.scope
        finally:
            self.scope = outer

    @contextmanager
    def at(self, block: Block, scope: Scope) -> Iterator[None]:
        """Go on writing at the end of a block that was left before."""
        outer, self.scope = self.scope, scope
        try:
            with self.graph.insert_point_guard(block):
                yield
        finally:
            self.scope = outer

    @contextmanager
    def inside_loop(self) -> Iterator[None]:
        """Write the body of a loop."""
        self._loops += 1
        try:
            yield
        finally:
            self._loops -= 1

    @property
    def may_unroll(self) -> bool:
        """Whether a loop is being written that may be unrolled instead."""
        return self._unrolls and self._loops > 0

    # --- operators ---------------------------------------------------------------------------

    def node_of(self, kind: str, values: Sequence[Value], types: Sequence[Any]) -> list[Value]:
        """Write a node and return its outputs, which get ``types``."""
        node = self.graph.create(kind, list(values), len(types))
        if self.node is not None:
            node.copyMetadata(self.node)
        self.graph.insertNode(node)
        outputs = list(node.outputs())
        for output, kind_ in zip(outputs, types, strict=True):
            output.setType(kind_)
        return outputs

    def constant(self, value: Any) -> Value:
        """Write a constant; a list becomes a list of constants, which exporters understand."""
        if isinstance(value, list):
            items = [self.constant(item) for item in value]
            return self.list_value(items, items[0].type() if items else jit.INT)
        return self.graph.insertConstant(value)

    def tensor_constant(self, value: torch.Tensor) -> Held:
        """Write a constant tensor."""
        return Held(self.graph.insertConstant(value), self.sizes.like(value), real=value)

    def list_value(self, items: Sequence[Value], element: Any) -> Value:
        """Write a list."""
        return self.node_of("prim::ListConstruct", items, [jit.list_type(element)])[0]

    def tensor_op(self, kind: str, overload: str, *arguments: Any) -> Held:
        """Write an operator that gives one tensor; arguments are abstract values."""
        values = [self.value(argument) for argument in arguments]
        fake = self.try_out(kind, overload, arguments)
        fake = fake if isinstance(fake, torch.Tensor) else None
        [output] = self.node_of(kind, values, [jit.tensor_type(fake)])
        return Held(output, fake, self.computed(kind, overload, arguments))

    def computed(self, kind: str, overload: str, arguments: Sequence[Any]) -> torch.Tensor | None:
        """Return the tensor that an operator gives, where weights and constants determine it."""
        function = jit.operator(kind, overload)
        if function is None:
            return None
        try:
            given = [self.known(argument) for argument in arguments]
        except UnknownFakeError:
            return None
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        if not tensors or sum(tensor.numel() for tensor in tensors) > _MOST_COMPUTED:
            return None
        positional, keywords = jit.split_arguments(kind, overload, given)
        made = self.sizes.compute(lambda *each: function(*each, **keywords), positional)
        return made if isinstance(made, torch.Tensor) else None

    def known(self, what: Any) -> Any:
        """Return the number, the list or the tensor that ``what`` always is.

        Raises:
            UnknownFakeError: It depends on inputs or states.
        """
        if isinstance(what, Known):
            return what.value
        if isinstance(what, Listing):
            return [self.known(item) for item in what.items]
        if isinstance(what, List) and isinstance(self.content(what.root), Elements):
            return [self.known(item) for item in self.content(what.root).items]
        held = self.read(what) if isinstance(what, Ref) else what
        if isinstance(held, Held) and held.real is not None:
            return held.real
        raise UnknownFakeError

    def number(self, kind: str, held: Held) -> Plain:
        """Write an operator that gives an integer about a tensor."""
        [output] = self.node_of(kind, [held.value], [jit.INT])
        fake = held.fake.numel() if kind == "aten::numel" and held.fake is not None else None
        return Plain(output, self.scope, fake)

    def try_out(self, kind: str, overload: str, arguments: Sequence[Any]) -> Any:
        """Return what an operator gives for fake tensors, or None if that is not known."""
        function = jit.operator(kind, overload)
        if function is None:
            return None
        try:
            fakes = [self.fake(argument) for argument in arguments]
        except UnknownFakeError:
            return None
        if kind in _FROM_NUMBERS:
            return self.sizes.from_numbers(_as_number(fakes[0]), fakes[1])
        if not jit.takes_symbols(kind, overload):
            return None
        if kind == "aten::squeeze" and self._may_keep_its_rank(*fakes):
            return None
        positional, keywords = jit.split_arguments(kind, overload, fakes)
        made = self.sizes.run(lambda *given: function(*given, **keywords), positional)
        if isinstance(made, torch.Tensor) and kind in _JOINS and self._grows(arguments[0]):
            return self.sizes.with_unknown(made, fakes[1])
        if isinstance(made, torch.Tensor) and kind == "aten::arange" and _has_float(arguments):
            return self.sizes.with_unknown(made, 0)
        return made

    def _may_keep_its_rank(self, fake: torch.Tensor, dims: Any = None) -> bool:
        """Whether the sizes of the axes decide which dimensions ``squeeze`` takes away."""
        if dims is None:
            dims = range(fake.dim())
        each = dims if isinstance(dims, list | tuple | range) else [dims]
        return any(self.sizes.may_be_one(fake.shape[dim]) for dim in each)

    def _grows(self, what: Any) -> bool:
        """Whether ``what`` is a list whose length is not known."""
        return isinstance(what, List) and isinstance(self.content(what.root), Opaque)

    # --- abstract values ---------------------------------------------------------------------

    def value(self, what: Any) -> Value:
        """Return a value of the new graph for an abstract value.

        Raises:
            StateError: It is a tensor of which the content is not known any more.
        """
        if isinstance(what, Held | Plain | Opaque):
            return what.value
        if isinstance(what, Known):
            return self.constant(what.value)
        if isinstance(what, Ref):
            return self.read(what).value
        if isinstance(what, List):
            return self.list_content(what)
        if isinstance(what, Listing):
            return self.list_value([self.value(item) for item in what.items], jit.INT)
        if isinstance(what, Group):
            values = [self.value(item) for item in what.items]
            kind = jit.tuple_type([value.type() for value in values])
            return self.node_of("prim::TupleConstruct", values, [kind])[0]
        if isinstance(what, Undefined):
            return self.node_of("prim::Uninitialized", [], [what.type])[0]
        if isinstance(what, Unusable):
            raise StageError(
                what.reason,
                stage="rewrite",
                place=self.place or what.place,
                hint="let it be a tensor or a number of one kind in both branches",
            )
        assert isinstance(what, Object | Table)
        text = "a module" if isinstance(what, Object) else "a dict"
        raise self.refusal(f"{text} is used as a value that an exported graph has no form for")

    def placeholder(self, kind: Any, fake: torch.Tensor | None) -> Any:
        """Return something of the graph type ``kind`` for where nobody reads the value.

        A tensor is like ``fake``, with 1 where a size is not known.
        """
        if jit.is_tensor_type(kind) and fake is not None:
            sizes = [size if isinstance(size, int) else 1 for size in fake.shape]
            no = Known(None)
            code = Known(jit.dtype_code(fake.dtype))
            listing = Listing(tuple(Known(size) for size in sizes))
            return self.tensor_op("aten::zeros", "", listing, code, no, no, no)
        empty: dict[str, Any] = {"int": 0, "float": 0.0, "bool": False}
        if str(kind) in empty:
            return Known(empty[str(kind)])
        return Undefined(kind)

    def list_content(self, what: List) -> Value:
        """Return a list as a value of the new graph."""
        content = self.content(what.root)
        if isinstance(content, Opaque):
            return content.value
        assert isinstance(content, Elements)
        return self.list_value([self.value(item) for item in content.items], what.element)

    def fake(self, what: Any) -> Any:
        """Return what to try an operator with for an abstract value.

        Raises:
            UnknownFakeError: There is nothing.
        """
        if isinstance(what, Known):
            return what.value
        if isinstance(what, Plain):
            return self._fake_number(what)
        if isinstance(what, Listing):
            return [self.fake(item) for item in what.items]
        if isinstance(what, List):
            content = self.content(what.root)
            if isinstance(content, Elements):
                return [self.fake(item) for item in content.items]
            if isinstance(content, Opaque) and content.fake is not None:
                return [content.fake, content.fake]  # as many as show that it is a list
            raise UnknownFakeError
        held = self.read(what) if isinstance(what, Ref) else what
        if not isinstance(held, Held) or held.fake is None:
            raise UnknownFakeError
        return held.fake

    def _fake_number(self, what: Plain) -> Any:
        if what.fake is not None and not isinstance(what.fake, torch.SymBool):
            return what.fake
        kind = str(what.value.type())
        if kind == "int":
            return self.sizes.unknown_number()
        if kind == "float":
            return 1.0  # no dtype depends on it, and no size but that of a range
        raise UnknownFakeError

    # --- tensor objects ----------------------------------------------------------------------

    def new_tensor(self, held: Held, origin: str = "a tensor") -> Ref:
        """Return a reference to a new tensor object that holds ``held``."""
        return Ref(self.new_root(held, origin))

    def new_root(self, content: Any, origin: str, sources: frozenset[Root] = frozenset()) -> Root:
        """Return a new object; writing to any of its sources makes it stale, and it them."""
        root = Root(origin, self.scope, sources)
        self.scope.contents[root] = content
        self.aliases.note(root, sources)
        return root

    def new_list(self, content: Any, element: Any, sources: frozenset[Root] = frozenset()) -> List:
        """Return a new list object; ``element`` is the graph type of its items."""
        root = self.new_root(content, "a list", sources)
        root.element = element
        return List(root)

    def add_parts(self, root: Root, parts: frozenset[Root]) -> None:
        """Note what is in a list that is one value: writing to a part makes the list stale."""
        root.parts |= parts - {root}
        self.aliases.note(root, parts)

    def add_sources(self, root: Root, sources: frozenset[Root]) -> None:
        """Note what else ``root`` may be."""
        root.sources |= sources
        self.aliases.note(root, sources)

    def sources_of(self, base: Root | Choice) -> frozenset[Root]:
        """Return every root that a base may be."""
        return frozenset(roots_of(base))

    def content(self, root: Root) -> Any:
        """Return what an object holds now.

        Raises:
            StateError: That is not known, since what may be another name of it was written to.
        """
        if self.scope.is_stale(root):
            since = self.scope.stale_since(root)
            raise StateError(
                f"{root.origin} is read after a write to what may be the same tensor, depending on "
                "which way a loop or a branch went" + (f" ({since})" if since else ""),
                place=self.place or since,
                hint="clone() what is kept, or store with an assignment instead of in place",
            )
        self._last_read[root] = self._moment
        return self.scope.content(root)

    def moment(self) -> int:
        """Return a moment for :meth:`was_read_since`."""
        self._moment += 1
        return self._moment

    def was_read_since(self, root: Root, moment: int) -> bool:
        """Whether the content of ``root`` was asked for since ``moment``."""
        return self._last_read.get(root, -1) >= moment

    def read(self, ref: Ref) -> Held:
        """Return what a reference holds now."""
        held = self._base(ref.base)
        for index in range(len(ref.chain)):
            key = (ref.base, ref.chain[: index + 1])
            cached = self.scope.cached(key)
            if cached is not None and cached[0] is held:
                held = cached[1]
            else:
                made = self.follow(held, ref.chain[index])
                self.scope.cache[key] = (held, made)
                held = made
        return held

    def _base(self, base: Root | Choice) -> Held:
        if isinstance(base, Root):
            held: Held = self.content(base)
            return held
        left, right = self.read(base.left), self.read(base.right)
        cached = self.scope.cached(base)
        if cached is not None and cached[0] == (left, right):
            return cached[1]
        made = self.select(base.condition, left, right)
        self.scope.cache[base] = ((left, right), made)
        return made

    def select(self, condition: Plain, left: Held, right: Held) -> Held:
        """Write a branch that gives one of two values."""
        fake = self.sizes.join(left.fake, right.fake)
        node = self.graph.create("prim::If", [condition.value], 1)
        self.graph.insertNode(node)
        for held in (left, right):
            node.addBlock().registerOutput(held.value)
        output = next(iter(node.outputs()))
        output.setType(jit.tensor_type(fake))
        return Held(output, fake)

    def follow(self, held: Held, link: Link) -> Held:
        """Write a view operator."""
        arguments = list(link.arguments)
        arguments[link.position] = held
        if link.item is None:
            kind, overload = _RESHAPES.get((link.kind, link.overload), (link.kind, link.overload))
            return self.tensor_op(kind, overload, *arguments)
        fakes = self.try_out(link.kind, link.overload, arguments)
        values = [self.value(argument) for argument in arguments]
        [listed] = self.node_of(link.kind, values, [jit.list_type(jit.TENSOR)])
        fake = fakes[link.item] if fakes is not None else None
        outputs = self.node_of("prim::ListUnpack", [listed], [jit.TENSOR] * link.count)
        output = outputs[link.item]
        output.setType(jit.tensor_type(fake))
        return Held(output, fake)

    def store(self, root: Root, content: Any) -> None:
        """Let an object hold something else; what may be the same object becomes stale."""
        self.scope.contents[root] = content
        self.written_at.setdefault(root, self.place)
        self.scope.refresh(root)
        for other in self.aliases.affected(root):
            self.scope.spoil(other, self.place)


Action = Callable[[], list[Any]]
"""Writes into the current block and returns abstract values."""
