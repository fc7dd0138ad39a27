"""The private parts of PyTorch that this project relies on, all in one file.

Tried on torch 2.13.  :func:`require_supported` fails clearly on versions where a part is missing.

Recurrent layers (``nn.LSTM``, ``nn.GRU``, ``nn.RNN``) reach the tracer as one composite operator,
whose shape is computed by running its decomposition: a Python loop over time, which pins the
number of time steps to that of the example.  While a graph is captured or decomposed,
:func:`symbolic_shapes` gives these operators shape functions instead, so that ``time`` stays
symbolic and the graph keeps one node.
"""

from __future__ import annotations

import copy
import functools
import importlib
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from stateful_pipeline.errors import StageError

_BUILDING = "torch.onnx._internal.exporter._building"
_REGISTRATION = "torch.onnx._internal.exporter._registration"
TRIED_ON = ("2.13",)
NUMBER = "stateful_pipeline.number"
"""The key under which :func:`numbers_kept` notes Python's floats."""


def require_supported() -> None:
    """Raise :class:`StageError` if this torch lacks a private part that is used here."""
    missing = [
        name
        for name, present in {
            "torch._decomp.global_decomposition_table": hasattr(
                torch._decomp, "global_decomposition_table"
            ),
            "torch.fx.experimental._config.backed_size_oblivious": hasattr(
                torch.fx.experimental._config, "backed_size_oblivious"
            ),
            "ExportedProgram._guards_code": "_guards_code"
            in torch.export.ExportedProgram.__annotations__,
            "OpOverload.py_kernels": hasattr(torch.ops.aten.lstm.input, "py_kernels"),
        }.items()
        if not present
    ]
    refuse_missing(missing, "script")


def missing_of_sizes() -> list[str]:
    """Return the parts of :class:`WatchedSizes` that this torch lacks.

    Without them, what is assumed of sizes would go unseen.
    """
    methods = ("_check_frozen", "_suppress_guards_tls", "suppress_guards")
    missing = [f"ShapeEnv.{m}" for m in methods if not hasattr(ShapeEnv, m)]
    if not hasattr(torch._C, "_DisablePythonDispatcher"):
        missing.append("torch._C._DisablePythonDispatcher")
    return missing


class WatchedSizes(ShapeEnv):
    """Symbolic sizes that are asked before something is assumed of them.

    PyTorch runs operators on tensors of symbolic sizes, and where it has to know, say, whether a
    size is 1, takes what the example's size says.
    """

    def assume(self, expression: Any, value: Any) -> None:
        """Look at what is about to be assumed: that ``expression`` is ``value``; raise to refuse.

        Args:
            expression: A sympy expression of sizes.
            value: What it is at the example's sizes.
        """
        raise NotImplementedError

    def _check_frozen(self, expr: Any, concrete_val: Any) -> None:
        """Ask; PyTorch calls this where it is about to note an assumption."""
        if not self._suppress_guards_tls():
            self.assume(expr, concrete_val)
            super()._check_frozen(expr, concrete_val)


def refuse_missing(parts: Sequence[str], stage: str) -> None:
    """Raise :class:`StageError` if there are ``parts`` of torch that this one lacks."""
    if parts:
        raise StageError(
            f"torch {torch.__version__} lacks {', '.join(parts)}",
            stage=stage,
            hint=f"install a torch this was tried on: {', '.join(TRIED_ON)}",
        )


def guards_of(exported: torch.export.ExportedProgram) -> list[str]:
    """Return the conditions on sizes under which the program was traced, as Python expressions.

    Sizes are written ``L['states'][0].size()[1]``.
    """
    return list(exported._guards_code or ())


def _rnn_output(
    sequence: torch.Tensor, hidden: int, bidirectional: bool, batch_first: bool
) -> torch.Tensor:
    directions = 2 if bidirectional else 1
    del batch_first  # the first two dimensions keep their order
    return sequence.new_empty((*sequence.shape[:2], hidden * directions))


def _lstm_shapes(
    sequence: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h, c = hx
    output = _rnn_output(sequence, h.shape[2], bidirectional, batch_first)
    return output, h.new_empty(h.shape), c.new_empty(c.shape)


def _rnn_shapes(
    sequence: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    output = _rnn_output(sequence, hx.shape[2], bidirectional, batch_first)
    return output, hx.new_empty(hx.shape)


_SHAPE_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.lstm.input: _lstm_shapes,
    torch.ops.aten.gru.input: _rnn_shapes,
    torch.ops.aten.rnn_tanh.input: _rnn_shapes,
    torch.ops.aten.rnn_relu.input: _rnn_shapes,
}


@contextmanager
def symbolic_shapes() -> Iterator[None]:
    """Trace with symbolic time in recurrent layers and without special sizes 0 and 1."""
    registry = torch._decomp.global_decomposition_table["post_autograd"]
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    saved = {op: (registry.get(op), op.py_kernels.get(key)) for op in _SHAPE_FUNCTIONS}
    try:
        for op, function in _SHAPE_FUNCTIONS.items():
            registry[op] = function
            op.py_kernels[key] = function
            op._dispatch_cache.clear()
        with torch.fx.experimental._config.patch(  # type: ignore[attr-defined]  # set at run time
            backed_size_oblivious=True
        ):
            yield
    finally:
        for op, (decomposition, kernel) in saved.items():
            _put_back(registry, op, decomposition)
            _put_back(op.py_kernels, key, kernel)
            op._dispatch_cache.clear()


@contextmanager
def numbers_kept() -> Iterator[None]:
    """Let the ONNX exporter note, at each constant that it makes from a Python float, this float.

    It is in ``value.meta[NUMBER]`` of the constant's value.
    """
    building: Any = importlib.import_module(_BUILDING)  # it loads onnxscript
    original = building._get_or_create_constant

    def noting(farm: Any, number: Any, dtype: Any, opset: Any) -> Any:
        made = original(farm, number, dtype, opset)
        if isinstance(number, float):
            made.meta[NUMBER] = number
        return made

    try:
        building._get_or_create_constant = noting
        yield
    finally:
        building._get_or_create_constant = original


def positional_names(module: torch.fx.GraphModule) -> tuple[str, ...]:
    """Return the names of what an exported program's module takes by position alone.

    It wants its arguments as they were given when it was exported.
    """
    info: Any = getattr(module.graph._codegen, "pytree_info", None)
    parts = [f"pytree_info.{n}" for n in ("orig_args", "in_spec") if not hasattr(info, n)]
    refuse_missing(parts, "script")
    by_position, _ = info.in_spec.children()
    return tuple(info.orig_args[: by_position.num_children])


def exporters_form(overload: Any) -> Callable[..., Any]:
    """Return the form that the ONNX exporter itself has for an operator, ``aten.add.Tensor``.

    Raises:
        RuntimeError: It has none.
    """
    forms = _exporters_forms().get_decomps(overload)
    if not forms:
        raise RuntimeError(f"there is no ONNX form of {overload} with these arguments")
    form: Callable[..., Any] = forms[0].onnx_function
    return form


def has_form(overload: Any) -> bool:
    """Whether the ONNX exporter itself has a form for an operator."""
    return bool(_exporters_forms().get_decomps(overload))


@contextmanager
def forms_read_once() -> Iterator[None]:
    """Let the ONNX exporter take its forms of operators from what this process read before.

    For each model, it parses the source of a thousand functions anew, which takes longer than
    the conversion of a small model.
    """
    registry = _registry()
    own = registry.__dict__["from_torchlib"]
    read = own.__get__(None, registry)

    def from_torchlib(*args: Any, **named: Any) -> Any:
        kept = _forms(read, *args, **named)
        made = copy.copy(kept)
        made.functions = {target: list(forms) for target, forms in kept.functions.items()}
        return made

    try:
        registry.from_torchlib = staticmethod(from_torchlib)  # the exporter asks an instance
        yield
    finally:
        registry.from_torchlib = own


@contextmanager
def lookups_kept() -> Iterator[None]:
    """Let a decomposition look up once what takes it longer than the work on a small program.

    That is which composite operators exist, listed for each namespace, and the type of a
    decorator's result, written out for each of thousands of kernels.
    """
    with ExitStack() as put_back:
        for module, name, instead in (
            (importlib.import_module("torch._export.utils"), "_materialize_cpp_cia_ops", _once),
            (torch._ops, "Callable", lambda _: typing.Callable),  # it keeps what it has made
        ):
            original = getattr(module, name, None)
            if original is not None:
                put_back.callback(setattr, module, name, original)
                setattr(module, name, instead(original))
        yield


def _once(function: Callable[[], None]) -> Callable[[], None]:
    return functools.cache(function)


def _exporters_forms() -> Any:
    return _forms(_registry().from_torchlib)


@functools.cache
def _forms(read: Callable[..., Any], *args: Any, **named: Any) -> Any:
    return read(*args, **named)


def _registry() -> Any:
    registry: Any = getattr(importlib.import_module(_REGISTRATION), "ONNXRegistry", None)
    methods = [m for m in ("from_torchlib", "get_decomps") if not hasattr(registry, m)]
    refuse_missing([f"ONNXRegistry.{method}" for method in methods], "export")
    return registry


def _put_back(table: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
