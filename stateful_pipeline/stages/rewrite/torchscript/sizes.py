"""Infers dtypes and symbolic sizes with PyTorch's fake tensors while the graph is rewritten.

Each dynamic axis is one symbolic integer with the axis's range, so that a test of a rank, a dtype
or a size that no size can change is decided here, and any other stays in the graph.  An operator
that cannot be evaluated so gives no fake tensor, and nothing is decided from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StrictMinMaxConstraint,
    statically_known_true,
)
from torch.utils._sympy.value_ranges import ValueRanges

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.model import jit
from stateful_pipeline.model.torch_internals import symbolic_shapes

_LARGEST = 2**31 - 1


class Sizes:
    """Fake tensors whose sizes are symbols for axes.

    Args:
        axes: The dynamic axes; those that only states have (they grow) may be missing.
        hints: Axis name to the size at which operators are tried.
    """

    def __init__(self, axes: Sequence[Axis], hints: Mapping[str, int]) -> None:
        self._axes = {axis.name: axis for axis in axes}
        self._hints = hints
        self._env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self._mode = FakeTensorMode(shape_env=self._env)
        self._symbols: dict[str, Any] = {}
        self._any: set[str] = set()
        self.names: dict[str, str] = {}
        """Symbol to axis name."""

    def specialized(self) -> dict[str, int]:
        """Return the axes that an operator allows only one size, with it."""
        found = {}
        for axis, symint in self._symbols.items():
            expression = self._env.simplify(symint.node.expr)
            if expression.is_number:
                found[axis] = int(expression)
        return found

    @contextmanager
    def active(self) -> Iterator[None]:
        """Evaluate operators on fake tensors, without special cases for the sizes 0 and 1."""
        with torch.no_grad(), symbolic_shapes(), enable_python_dispatcher():
            yield

    def tensor(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Return a fake tensor of a shape with named axes."""
        sizes = [self._symbol(dim) if isinstance(dim, str) else dim for dim in shape]
        with self._mode:
            return torch.empty(sizes, dtype=dtype)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor like a real one."""
        with self._mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def from_numbers(self, data: Any, code: int | None) -> torch.Tensor | None:
        """Return a fake tensor like ``torch.tensor(data)``, in the dtype that ``code`` names."""
        if not _are_numbers(data) or not isinstance(code, int | None):
            return None
        return self.like(torch.tensor(data, dtype=None if code is None else jit.dtype_of(code)))

    def unknown_size(self) -> Any:
        """Return a symbolic integer, 0 or more, that depends on values."""
        symbol = self._env.create_unbacked_symint()
        torch._check(symbol >= 0)  # type: ignore[no-untyped-call]
        return symbol

    def unknown_number(self) -> Any:
        """Return a symbolic integer that depends on values."""
        return self._env.create_unbacked_symint()

    def run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return what ``function`` gives for fake tensors, or None if it cannot be evaluated so."""
        try:
            with self._mode:
                result = function(*arguments)
        except Exception:  # noqa: BLE001 - an operator may refuse fake tensors in any way
            return None
        if isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor):
            return self.like(result)  # an operator that makes a tensor from numbers
        return result

    def shares_in_eager(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> list[int] | None:
        """Return the positions of the tensors whose memory eager PyTorch gives back; None: unknown.

        Fake tensors do not tell: what an operator is made of here may copy where eager does not
        (``dropout`` in eval mode).  So the operator itself runs, on tensors without data.

        Args:
            function: The operator.
            arguments: Its arguments by position, with fake tensors; a list of tensors counts as
                many.
            keywords: The others.
        """
        made: list[torch.Tensor] = []

        def plain(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                sizes = [_hint(size) for size in value.shape]
                strides = [_hint(stride) for stride in value.stride()]
                made.append(torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta"))
                return made[-1]
            if isinstance(value, list | tuple):
                return [plain(item) for item in value]
            return _hint(value)

        with torch._C._DisablePythonDispatcher():
            try:
                results = function(*map(plain, arguments), **keywords)
            except Exception:  # noqa: BLE001 - it may refuse sizes, which are only examples
                return None
        several = results if isinstance(results, list | tuple) else [results]
        given = [tensor.untyped_storage()._cdata for tensor in made]
        return [
            index
            for result in several
            if isinstance(result, torch.Tensor)
            for index, storage in enumerate(given)
            if result.untyped_storage()._cdata == storage
        ]

    def compute(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return what ``function`` gives for real tensors, or None if it raises."""
        try:
            return function(*arguments)
        except Exception:  # noqa: BLE001 - eager raises it too, if it ever gets there
            return None

    def join(self, a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
        """Return a fake tensor that stands for either: sizes that differ become unknown.

        A size of ``a`` that became unknown here stays what it is: it stands for any size.
        """
        if a is None or b is None or a.dtype != b.dtype or a.dim() != b.dim():
            return None
        pairs = list(zip(a.shape, b.shape, strict=True))
        if all(self._is_any(x) or same_size(x, y) for x, y in pairs):
            return a
        sizes = [x if self._is_any(x) or same_size(x, y) else self._any_size() for x, y in pairs]
        with self._mode:
            return a.new_empty(sizes)

    def _any_size(self) -> Any:
        size = self.unknown_size()
        self._any.add(str(size.node.expr))
        return size

    def _is_any(self, size: Any) -> bool:
        """Whether ``size`` is one that :meth:`join` made, for whatever comes."""
        return not isinstance(size, int) and str(size.node.expr) in self._any

    def with_unknown(self, fake: torch.Tensor, dim: int) -> torch.Tensor:
        """Return a fake tensor like ``fake`` whose size along ``dim`` depends on values."""
        sizes = list(fake.shape)
        sizes[dim] = self.unknown_size()
        with self._mode:
            return fake.new_empty(sizes)

    def _symbol(self, name: str) -> Any:
        if name not in self._symbols:
            axis = self._axes.get(name)
            low, high = (0, None) if axis is None else (axis.min, axis.max)
            source = ConstantSource(f"size_{len(self._symbols)}")
            symbol = self._env.create_symbol(
                self._hints.get(name, max(low, 2)),
                source,
                dynamic_dim=DimDynamic.DYNAMIC,
                constraint_dim=StrictMinMaxConstraint(
                    warn_only=False, vr=ValueRanges(low, high or _LARGEST)
                ),
            )
            self._symbols[name] = self._env.create_symintnode(
                symbol, hint=self._hints.get(name, max(low, 2)), source=source
            )
            self.names[str(symbol)] = name
        return self._symbols[name]


def _hint(value: Any) -> Any:
    """Return a number that a symbolic one may be."""
    if not isinstance(value, torch.SymInt):
        return value
    known = value.node.maybe_as_int()
    hint = value.node.hint if known is None and value.node.has_hint() else known
    return 2 if hint is None else int(hint)


def _are_numbers(data: Any) -> bool:
    if isinstance(data, list):
        return all(map(_are_numbers, data))
    return isinstance(data, bool | int | float)


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are sure to be the same."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(statically_known_true(a == b))


def same_shape(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors are sure to have the same shape."""
    if a is None or b is None or a.dim() != b.dim():
        return False
    return all(same_size(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def decided(truth: Any) -> bool | None:
    """Return what ``truth`` is at all sizes, or None if that depends on sizes or values."""
    if isinstance(truth, bool):
        return truth
    if isinstance(truth, torch.SymBool):
        if statically_known_true(truth):
            return True
        negated: Any = torch.sym_not(truth)  # type: ignore[no-untyped-call]
        if statically_known_true(negated):
            return False
    return None


def shares_memory(a: torch.Tensor | None, b: torch.Tensor | None) -> bool | None:
    """Whether ``a`` is a view of ``b``; None where that cannot be told."""
    if a is None or b is None:
        return None
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)
