"""How a session of ONNX Runtime is set up: what a deployment may ask for, in ONNX Runtime's words.

TF32 multiplies float32 with 10 bits of the fraction and is off unless asked for.  ONNX Runtime's
CUDA provider has a switch for it.  Its TensorRT provider has none, and TensorRT's own default is to
use it; only the environment variable ``NVIDIA_TF32_OVERRIDE=0``, which holds for the whole process,
forbids it there.  So without ``tf32`` that variable is required and never set in passing.

There is one range of shapes for TensorRT.  The provider takes several, by naming an input again,
but nothing says that it goes from one to another between steps.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stateful_pipeline.errors import SpecError, TargetError
from stateful_pipeline.runtime.ort_provider import PROVIDERS, Provider

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The least, the usual and the largest shape of a graph input."""

_LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

_NO_TF32 = "NVIDIA_TF32_OVERRIDE"

_RAISED_NOT_PRINTED = 4
"""Log level ``fatal``: errors are raised, so that printing them would say them twice; the warnings,
repeated at each step, are of shapes, which the runner checks itself."""


@dataclass(frozen=True)
class SessionOptions:
    """What a session is to be like, beside its provider and its threads.

    Attributes:
        graph_optimization: How far ONNX Runtime rewrites the graph when it loads it.
        arena: Whether freed memory is kept for later steps.
        gpu: The number of the GPU, for the providers that use one.
        tf32: Lets a GPU multiply float32 in TF32.
        ranges: For TensorRT, the shapes that its engine is built for, by graph input, states
            included.  Without them it builds another engine whenever a step has a new shape.
    """

    graph_optimization: Literal["none", "basic", "extended", "all"] = "all"
    arena: bool = True
    gpu: int = 0
    tf32: bool = False
    ranges: Mapping[str, Shapes] | None = None


def check_threads(threads: int | None) -> None:
    """Check a number of threads.

    Raises:
        SpecError: It is neither None nor a number from 1.
    """
    good = threads is None or (isinstance(threads, int) and threads >= 1)
    if not good or isinstance(threads, bool):
        raise SpecError(f"threads is {threads!r}", hint="a number from 1, or None", key="threads")


def check_options(options: SessionOptions) -> None:
    """Check what a deployment has written into its options.

    Raises:
        SpecError: It is of another type, or no value that the option can have.
    """
    if not isinstance(options, SessionOptions):
        raise SpecError(f"options is {options!r}", hint="SessionOptions(...)", key="options")
    levels = f"one of: {', '.join(_LEVELS)}"
    for key, good, hint in (
        ("graph_optimization", options.graph_optimization in _LEVELS, levels),
        ("arena", isinstance(options.arena, bool), "True or False"),
        ("gpu", type(options.gpu) is int and options.gpu >= 0, "a number from 0"),
        ("tf32", isinstance(options.tf32, bool), "True or False"),
    ):
        if not good:
            raise SpecError(f"{key} is {getattr(options, key)!r}", hint=hint, key=key)


def session_options(
    ort: Any, provider: Provider, threads: int | None, options: SessionOptions
) -> Any:
    """Return ONNX Runtime's own ``SessionOptions``.

    The options have been checked (:func:`check_options`).
    """
    theirs = ort.SessionOptions()
    theirs.inter_op_num_threads = 1
    theirs.log_severity_level = _RAISED_NOT_PRINTED
    if threads is not None:
        theirs.intra_op_num_threads = threads
    level = _LEVELS[options.graph_optimization]
    theirs.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    theirs.enable_cpu_mem_arena = options.arena
    if provider.device is not None:
        theirs.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return theirs


def run_options(ort: Any, provider: Provider, options: SessionOptions) -> Any | None:
    """Return ONNX Runtime's own ``RunOptions``, or None for its defaults.

    A GPU's arena cannot be switched off: without ``arena`` it is emptied after each step.
    """
    if options.arena or provider.device != "cuda":
        return None
    theirs = ort.RunOptions()
    theirs.add_run_config_entry("memory.enable_memory_arena_shrinkage", f"gpu:{options.gpu}")
    return theirs


def provider_chain(provider: Provider, options: SessionOptions) -> list[tuple[str, dict[str, str]]]:
    """Return the providers of a session, by precedence, with their options.

    What TensorRT does not take falls to CUDA, as ONNX Runtime's documentation has it.

    Raises:
        TargetError: TensorRT would use TF32, which was not asked for.
        SpecError: A graph input has a name that TensorRT's options cannot hold.
    """
    if provider.device != "cuda":
        return [(provider.ort_name, {})]
    device_id = str(options.gpu)
    cuda = {"device_id": device_id, "use_tf32": str(int(options.tf32))}
    if not options.arena:
        cuda["arena_extend_strategy"] = "kSameAsRequested"
    chain = [(PROVIDERS["cuda"].ort_name, cuda)]
    if provider.ort_name == PROVIDERS["tensorrt"].ort_name:
        _require_no_tf32(options)
        ranges = _range_options(options.ranges or {})
        chain.insert(0, (provider.ort_name, {"device_id": device_id, **ranges}))
    return chain


def _require_no_tf32(options: SessionOptions) -> None:
    if not options.tf32 and os.environ.get(_NO_TF32) != "0":
        raise TargetError(
            "TensorRT would multiply float32 in TF32, and ONNX Runtime has no option against it",
            target="tensorrt",
            hint=f"set {_NO_TF32}=0 for this process, or allow it: `tf32: true`",
        )


def _range_options(ranges: Mapping[str, Shapes]) -> dict[str, str]:
    """Return the ranges as ``name:1x20x40,other:2x1``; what has no dimension has no range.

    Raises:
        SpecError: A name has a character that separates entries.
    """
    for given in ranges:
        if set(given) & set(":,"):
            raise SpecError(
                f"the graph input '{given}' has a ':' or ',' in its name, which the options of "
                "ONNX Runtime's TensorRT provider cannot hold",
                hint="rename it, or use the runtime tensorrt",
            )
    texts: dict[str, str] = {}
    for index, kind in enumerate(("min", "opt", "max")):
        entries = [
            f"{given}:{'x'.join(map(str, shapes[index]))}"
            for given, shapes in ranges.items()
            if shapes[index]
        ]
        if entries:
            texts[f"trt_profile_{kind}_shapes"] = ",".join(entries)
    return texts
