"""The overloads of ``to`` that TorchScript alone has.

Nothing tells the dtype of what they give, nor whether that is the tensor itself.  It is where its
dtype stays as it is, for there is one device here.
"""

from __future__ import annotations

from typing import Any

from stateful_pipeline.model import jit
from stateful_pipeline.stages.rewrite.torchscript.values import Known, Ref
from stateful_pipeline.stages.rewrite.torchscript.writer import Writer

_DTYPE = {"prim_Device": 2, "prim_dtype": 1, "prim_other": None}
"""Where the dtype is among the arguments, by overload."""


def converted(writer: Writer, overload: str, inputs: list[Any]) -> Ref | None:
    """Return what ``to`` gives, or None where it is one of the usual overloads.

    Args:
        writer: The new graph.
        overload: The name of the overload.
        inputs: The tensor, perhaps a device and a dtype, and then ``non_blocking`` and ``copy``.
    """
    if overload not in _DTYPE or not isinstance(inputs[0], Ref):
        return None
    held, position = writer.read(inputs[0]), _DTYPE[overload]
    if held.fake is None:
        return None
    wanted = Known(None) if position is None else inputs[position]
    if wanted == Known(None):
        wanted = Known(jit.dtype_code(held.fake.dtype))
    same = wanted == Known(jit.dtype_code(held.fake.dtype))
    if not isinstance(wanted, Known) or inputs[-1] not in (Known(False), Known(True)):
        return None
    if same and inputs[-1] == Known(False):
        return inputs[0]
    no = Known(False)
    return writer.new_tensor(
        writer.tensor_op("aten::to", "dtype", held, wanted, no, inputs[-1], Known(None))
    )
