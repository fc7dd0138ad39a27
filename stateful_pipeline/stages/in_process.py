"""A built target of LibTorch: its files, and its runs in a C++ process without Python.

The states stay inside the module.  A model file holds them at the sizes that they have in Python,
most often 1 along a batch axis, and nothing expands them: what runs is the file that is shipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from stateful_pipeline.errors import StageError
from stateful_pipeline.libraries import Inference, run_infer
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.locate import user_place
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.reference import Tensors
from stateful_pipeline.model.scripted_types import fitted_argument
from stateful_pipeline.model.subject import KeywordCall
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild

MODEL = "model.pt"
PROGRAM = "infer"
_TRACE = re.compile(
    r"The following operation failed in the TorchScript interpreter\.\n"
    r"Traceback of TorchScript.*\n(?=\w+: )",
    re.DOTALL,
)


class InProcess:
    """A target, ready to run.

    Args:
        artifacts: What earlier stages have left.
        build: The target, built.
        stage: The stage for which it runs.
    """

    def __init__(self, artifacts: Artifacts, build: TargetBuild, stage: str) -> None:
        assert build.artifact is not None
        self._model, self._stage = build.artifact, stage
        spec = artifacts.spec
        folder = self._model.parent
        self._libraries = [
            folder / name for name in artifacts.notes["build"]["libtorch"][build.name]["libraries"]
        ]
        self._method = spec.source.method
        self._threads = spec.targets[build.name].threads
        subject = artifacts.need("subject", stage)
        assert isinstance(subject.call, KeywordCall)
        self._constants = {
            name: self._fitted(name, value) for name, value in subject.call.constants.items()
        }
        discovery = artifacts.discovery
        self._reference = None if discovery is None else discovery.reference
        # What the spec says of initial values comes after the method.
        decided = any("init" in state.model_fields_set for state in spec.states.values())
        reset = artifacts.notes["script"]["scripted"]["reset"]
        self._reset = None if decided or spec.attributes else reset

    def _fitted(self, name: str, value: Any) -> Any:
        """Return what an argument is fixed to, of the type that compiled code takes: 2 as 2.0."""
        try:
            return fitted_argument(self._loaded(), self._method, name, value)
        except TypeError as error:
            raise StageError(
                f"{self._method} takes a {error} as '{name}', which {value!r} is not",
                stage=self._stage,
            ) from error

    def _loaded(self) -> Any:
        with quiet_scripting():
            return torch.jit.load(self._model)  # type: ignore[no-untyped-call]

    def sized_otherwise(self, sizes: Mapping[str, int]) -> str | None:
        """Return which states the file holds at other sizes than the reference has, in words.

        Args:
            sizes: Axis name to size.
        """
        reference = self._reference
        if reference is None:
            return None
        initial = reference.initial(sizes)
        # A state that the first call creates has the right size by itself.
        held = (
            reference.states_in(0) if isinstance(reference, PhasedReference) else reference.states
        )
        others = [
            f"state '{state.name}' has size {list(state.initial.shape)} in {MODEL}, where eager "
            f"PyTorch begins with {list(initial[state.name].shape)}"
            for state in held
            if initial[state.name].shape != state.initial.shape
        ]
        return "; ".join(others) or None

    def run(
        self,
        inputs: Sequence[Tensors],
        *,
        steps: int | None = None,
        reset_at: Sequence[int] = (),
        reset_every: int | None = None,
        reset_by_method: bool = True,
    ) -> Inference:
        """Run the model from its initial state, which it goes back to as often as is asked.

        Args:
            inputs: The inputs of each step, by name.
            steps: How many steps, from the first input again after the last.
            reset_at: Steps before which it is reset.
            reset_every: After how many steps it is reset.
            reset_by_method: Whether it is reset by its own method, where it has one; else it is
                loaded again.

        Raises:
            StageError: The process ends with an error.
        """
        resets = bool(reset_at) or reset_every is not None
        try:
            return run_infer(
                self._model,
                self._libraries,
                [{**given, **self._constants} for given in inputs],
                steps=steps,
                method=self._method,
                reset_at=reset_at,
                reset_every=reset_every,
                reset_method=self._reset if reset_by_method and resets else None,
                threads=self._threads,
                program=self._model.with_name(PROGRAM),
            )
        except StageError as error:
            message, place = error.message.removeprefix(f"{error.stage}: "), user_place(error)
            if place is not None:  # all that the interpreter's trace says to a user
                message = _TRACE.sub("", message)
            raise StageError(message, stage=self._stage, place=place, hint=error.hint) from error
