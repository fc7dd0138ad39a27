"""Infers dtypes and symbolic sizes with PyTorch's fake tensors while the graph is rewritten.

Each dynamic axis is one symbolic integer with the axis's range, so that a test of a rank, a dtype
or a size that no size can change is decided here, and any other stays in the graph.  An operator
that cannot be evaluated so gives no fake tensor, and nothing is decided from it.  Nor is where its
result has another form at other sizes (``chunk``, ``squeeze``, ``contiguous``): what holds at the
sizes at which operators are tried need not hold at all of the axes' sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    StrictMinMaxConstraint,
    statically_known_true,
)
from torch.utils._sympy.value_ranges import ValueRanges

from stateful_pipeline.contract import Axis
from stateful_pipeline.dimensions import Shape
from stateful_pipeline.errors import StateError
from stateful_pipeline.model import jit
from stateful_pipeline.model.torch_internals import WatchedSizes, symbolic_shapes

_LARGEST = 2**31 - 1
_QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class _OtherFormError(GuardOnDataDependentSymNode):
    """What an operator gives has another form at other sizes."""


class _Sizes(WatchedSizes):
    """Symbols for axes, of which nothing is assumed that some size does not fulfil.

    Attributes:
        trials: Sizes of all symbols, at which an assumption is tried.
    """

    trials: list[dict[Any, int]]

    def assume(self, expression: Any, value: Any) -> None:
        """Refuse what does not hold at some sizes.

        That an axis has one size is let pass, and refused when the graph is complete.
        """
        known = not self.trials or expression.free_symbols <= self.trials[0].keys()
        if known and not (
            self._fixes_an_axis(expression, value) or self._is_always(expression, value)
        ):
            raise _OtherFormError(expression, f"{expression} is not always {value}")

    def _fixes_an_axis(self, expr: Any, truth: Any) -> bool:
        if not isinstance(expr, sympy.Eq) or truth is not sympy.true:
            return False
        return {side.is_Symbol for side in expr.args} == {True, False} and any(
            side.is_number for side in expr.args
        )

    def _is_always(self, expr: Any, value: Any) -> bool:
        tried = (expr.xreplace(sizes) for sizes in self.trials)
        return all(result == value for result in tried)


class Sizes:
    """Fake tensors whose sizes are symbols for axes.

    Args:
        axes: The dynamic axes; those that only states have (they grow) may be missing.
        hints: Axis name to the size at which operators are tried.
    """

    def __init__(self, axes: Sequence[Axis], hints: Mapping[str, int]) -> None:
        self._axes = {axis.name: axis for axis in axes}
        self._hints = hints
        self._env = _Sizes(specialize_zero_one=False, duck_shape=False)
        self._env.trials = []
        self._mode = FakeTensorMode(shape_env=self._env)
        self._symbols: dict[str, Any] = {}
        self._any: set[str] = set()
        self._ranges: dict[Any, tuple[int, int, int | None]] = {}
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
        log = logging.getLogger("torch._subclasses.fake_tensor")
        level = log.level
        log.setLevel(logging.CRITICAL)  # it prints what an operator refuses
        try:
            with torch.no_grad(), symbolic_shapes(), enable_python_dispatcher():
                yield
        finally:
            log.setLevel(level)

    def tensor(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Return a fake tensor of a shape with named axes."""
        _refuse_quantized(dtype)
        sizes = [self._symbol(dim) if isinstance(dim, str) else dim for dim in shape]
        with self._mode:
            return torch.empty(sizes, dtype=dtype)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor like a real one."""
        _refuse_quantized(tensor.dtype)
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
            result = self._evaluated(function, arguments)
        except Exception:  # noqa: BLE001 - an operator may refuse fake tensors in any way
            return None
        if isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor):
            return self.like(result)  # an operator that makes a tensor from numbers
        return result

    def _evaluated(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return what ``function`` gives for fake tensors; it has that form at all sizes.

        Where PyTorch asks for a size, often to see how tensors lie in memory, the form of the
        result is compared with that at other sizes.
        """
        with self._mode:
            try:
                return function(*arguments)
            except _OtherFormError:
                with self._env.suppress_guards():
                    result = function(*arguments)
        tried = 0
        for sizes in self._env.trials:
            real = _tried_at(sizes, function, arguments, {})
            if real is not None:
                tried += 1
                if not _has_form(real[0], result, sizes):
                    raise _OtherFormError(None, "its form depends on sizes")
        if tried < 2:
            raise _OtherFormError(None, "it runs at the example's sizes alone")
        return result

    def may_be_one(self, size: Any) -> bool:
        """Whether a size is 1 for some sizes of the axes, and not for all."""
        if not isinstance(size, torch.SymInt):
            return False
        expression = size.node.expr
        ones = [expression.xreplace(sizes) == 1 for sizes in self._env.trials]
        unknown = not expression.free_symbols <= self._ranges.keys()
        return unknown or (any(ones) and not all(ones))

    def shares_in_eager(
        self, function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> Sharing:
        """Return which tensors' memory eager PyTorch gives back, tried at several sizes.

        Fake tensors do not tell: what an operator is made of here may copy where eager does not
        (``dropout`` in eval mode).  So the operator itself runs, on tensors without data.

        Args:
            function: The operator.
            arguments: Its arguments by position, with fake tensors; a list of tensors counts as
                many.
            keywords: The others.
        """
        trials = self._env.trials if _has_symbols(arguments) else []
        found = [_shared_at(sizes, function, arguments, keywords) for sizes in trials or [{}]]
        known = [positions for positions in found if positions is not None]
        positions = sorted(set().union(*known))
        return Sharing(positions, all(set(each) == set(positions) for each in known))

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
            self._ranges[symbol] = (self._hints.get(name, max(low, 2)), low, high)
            self._env.trials = list(_trials(self._ranges))
        return self._symbols[name]


def _trials(ranges: Mapping[Any, tuple[int, int, int | None]]) -> Iterator[dict[Any, int]]:
    """Yield sizes of all axes: the example's, then one axis at its ends, then all at their ends."""
    example = {symbol: sympy.Integer(hint) for symbol, (hint, _, _) in ranges.items()}
    yield example
    ends = {symbol: _ends(*spans) for symbol, spans in ranges.items()}
    for symbol, sizes in ends.items():
        yield from ({**example, symbol: size} for size in sizes)
    for index in (0, -1):
        yield {symbol: sizes[index] for symbol, sizes in ends.items()}


def _ends(hint: int, low: int, high: int | None) -> list[Any]:
    """Return sizes of an axis with ``low`` first and the largest last."""
    top = high if high is not None else max(hint, low) + 61
    middle = {low + 1, low + 2, hint - 1, hint + 1, top - 1}
    inside = sorted(size for size in middle if low < size < top)
    return [sympy.Integer(size) for size in (low, *inside, top)]


@dataclass(frozen=True)
class Sharing:
    """The positions of the tensors whose memory an operator gives back.

    ``certain`` says whether it does so at all sizes.
    """

    positions: list[int]
    certain: bool


def _tried_at(
    sizes: Mapping[Any, int],
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> tuple[Any, list[torch.Tensor]] | None:
    """Return what eager PyTorch gives for tensors without data, and these; None if it raises."""
    made: list[torch.Tensor] = []

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape = [_at(sizes, size) for size in value.shape]
            strides = [_at(sizes, stride) for stride in value.stride()]
            made.append(torch.empty_strided(shape, strides, dtype=value.dtype, device="meta"))
            return made[-1]
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return _at(sizes, value)

    with torch._C._DisablePythonDispatcher():
        try:
            return function(*map(plain, arguments), **keywords), made
        except Exception:  # noqa: BLE001 - it may refuse sizes, which are only examples
            return None


def _shared_at(
    sizes: Mapping[Any, int],
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> list[int] | None:
    """Return the positions of the tensors whose memory an operator gives back; None: unknown."""
    tried = _tried_at(sizes, function, arguments, keywords)
    if tried is None:
        return None
    results, made = tried
    several = results if isinstance(results, list | tuple) else [results]
    given = [tensor.untyped_storage()._cdata for tensor in made]
    return [
        index
        for result in several
        if isinstance(result, torch.Tensor)
        for index, storage in enumerate(given)
        if result.untyped_storage()._cdata == storage
    ]


def _has_form(real: Any, fake: Any, sizes: Mapping[Any, int]) -> bool:
    """Whether what an operator gives at ``sizes`` has the form that is known of it."""
    if isinstance(real, list | tuple):
        alike = isinstance(fake, list | tuple) and len(real) == len(fake)
        return alike and all(_has_form(r, f, sizes) for r, f in zip(real, fake, strict=True))
    if not isinstance(real, torch.Tensor):
        return bool(real == _at(sizes, fake))
    if not isinstance(fake, torch.Tensor) or fake.dtype != real.dtype:
        return False
    return tuple(real.shape) == tuple(_at(sizes, size) for size in fake.shape)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    if isinstance(value, list | tuple):
        return any(map(_has_symbols, value))
    return isinstance(value, torch.SymInt)


def _at(sizes: Mapping[Any, int], value: Any) -> Any:
    """Return what a symbolic number is at ``sizes``; 2 where it depends on values."""
    if not isinstance(value, torch.SymInt):
        return value
    expression = value.node.expr.xreplace(sizes)
    return int(expression.xreplace(dict.fromkeys(expression.free_symbols, sympy.Integer(2))))


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


def _refuse_quantized(dtype: torch.dtype) -> None:
    if dtype in _QUANTIZED:
        raise StateError(
            f"a tensor of {dtype} has no ONNX form",
            hint="keep the integers and their scale in two tensors",
        )
