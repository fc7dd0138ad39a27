"""Runs a saved model in a C++ process without Python: the program ``native/infer``, built once."""

from __future__ import annotations

import json
import pickle
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit import _pickle

from stateful_pipeline.errors import StageError, TargetError
from stateful_pipeline.libraries.building import build, default_cache
from stateful_pipeline.libraries.toolchain import STAGE, cmake, compiler, ninja

SOURCE = Path(__file__).parents[1] / "native" / "infer"
_TYPED = (
    _pickle.restore_type_tag,
    _pickle.build_tensorlist,
    _pickle.build_intlist,
    _pickle.build_doublelist,
    _pickle.build_boollist,
)
"""What TorchScript's pickles call, for the types of lists and dicts."""


@dataclass(frozen=True)
class Inference:
    """What a model gave in a C++ process.

    Attributes:
        outputs: What each step returned.
        nanoseconds: How long each step took, without copies of inputs and outputs.
        load_nanoseconds: How long loading the model took.
    """

    outputs: list[Any]
    nanoseconds: list[int]
    load_nanoseconds: int


def run_infer(
    model: Path,
    libraries: Sequence[Path],
    inputs: Sequence[Any],
    *,
    steps: int | None = None,
    method: str = "forward",
    reset_every: int | None = None,
    reset_at: Sequence[int] = (),
    reset_method: str | None = None,
    threads: int | None = None,
    cache: Path | None = None,
    program: Path | None = None,
) -> Inference:
    """Run a saved model step after step in a C++ process.

    Args:
        model: What ``torch.jit.save`` wrote.
        libraries: The shared libraries of its classes and operators.
        inputs: One element per step: a tuple of arguments, a dict of arguments by name, or the only
            argument.
        steps: How many steps, from the first input again after the last; one per input by default.
        method: The method that is one step.
        reset_every: After how many steps the model goes back to its initial state.
        reset_at: Steps before which it goes back to it, too, counted from 0.
        reset_method: The method that does so; the model is loaded again by default.
        threads: How many threads PyTorch computes with.
        cache: Where the program is built.
        program: The program, where it has been built.

    Raises:
        StageError: The program cannot be built, ends with an error, or gives what cannot be read.
    """
    options = {
        "--steps": steps,
        "--reset-every": reset_every,
        "--reset-method": reset_method,
        "--threads": threads,
    }
    with tempfile.TemporaryDirectory() as name:
        given, outputs, times = (Path(name) / part for part in ("inputs", "outputs", "times"))
        torch.save(list(inputs), given)
        arguments = ["--inputs", given, "--outputs", outputs, "--time", times, "--method", method]
        for option, value in options.items():
            arguments += [] if value is None else [option, value]
        for step in reset_at:
            arguments += ["--reset-at", step]
        _run(program or _built(cache), model, libraries, arguments)
        if not (outputs.is_file() and times.is_file()):
            raise StageError(
                "the C++ process ended by itself, without an error and before its last step",
                stage=STAGE,
                hint="the model or one of its libraries calls exit()",
            )
        measured = json.loads(times.read_text(encoding="utf-8"))
        returned = _read(outputs)
    return Inference(returned, measured["nanoseconds"], measured["load_nanoseconds"])


def _read(outputs: Path) -> list[Any]:
    try:
        with torch.serialization.safe_globals(list(_TYPED)):
            read: list[Any] = torch.load(outputs, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, TypeError) as error:
        raise StageError(
            f"what the model returned in a C++ process cannot be read: {error}",
            stage=STAGE,
            hint="return dense tensors, numbers and strings, and lists, tuples and dicts of them",
        ) from error
    return read


def run_text(
    model: Path, libraries: Sequence[Path], text: str, *, cache: Path | None = None
) -> str:
    """Return what a saved model, whose argument and result are strings, makes of ``text``.

    Raises:
        StageError: The program cannot be built, or ends with an error.
    """
    return _run(_built(cache), model, libraries, ["--string", text]).removesuffix("\n")


def infer_program(cache: Path | None = None) -> Path:
    """Return the program ``infer``, built unless the cache has it.

    Raises:
        TargetError: This machine has no tools to build it with.
        StageError: It cannot be built for another reason.
    """
    try:
        return _built(cache)
    except StageError as error:
        raise missing_tools() or error from error


def missing_tools() -> TargetError | None:
    """Return the error for a machine on which nothing of C++ can be built; None where it can."""
    try:
        compiler()
        cmake()
        ninja()
    except StageError as error:
        reason = error.message.removeprefix(f"{STAGE}: ")
        return TargetError(f"libtorch runs models in a C++ program: {reason}", hint=error.hint)
    return None


def _built(cache: Path | None) -> Path:
    [program] = build(SOURCE, cache or default_cache()).programs
    return program


def _run(program: Path, model: Path, libraries: Sequence[Path], arguments: Sequence[Any]) -> str:
    given = [word for library in libraries for word in ("--library", library)]
    command = [str(word) for word in (program, model, *given, *arguments)]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        said = done.stderr.strip() or f"ended with code {done.returncode} and said nothing"
        raise StageError(said, stage=STAGE)
    return done.stdout
