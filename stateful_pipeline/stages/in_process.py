"""A built target of LibTorch: its files, and its runs in a C++ process without Python.

The states stay inside the module.  A model file holds them at the sizes that they have in Python,
most often 1 along a batch axis; what runs at other sizes holds the initial values of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from stateful_pipeline.errors import StageError
from stateful_pipeline.libraries import Inference, run_infer, save
from stateful_pipeline.model.cpp_objects import give_written
from stateful_pipeline.model.holders import read
from stateful_pipeline.model.jit import quiet_scripting
from stateful_pipeline.model.phased_reference import PhasedReference
from stateful_pipeline.model.reference import StateDef, Tensors, put
from stateful_pipeline.model.scripted_types import fitted_argument
from stateful_pipeline.model.subject import KeywordCall
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild

MODEL = "model.pt"
PROGRAM = "infer"


class InProcess:
    """A target, ready to run.

    Args:
        artifacts: What earlier stages have left.
        build: The target, built.
        scratch: A folder for models whose states have other sizes.
        stage: The stage for which it runs.
    """

    def __init__(self, artifacts: Artifacts, build: TargetBuild, scratch: Path, stage: str) -> None:
        assert build.artifact is not None
        self._model = build.artifact
        self._scratch, self._stage = scratch, stage
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
        self._sized: dict[tuple[Any, ...], Path] = {}

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

    @property
    def states(self) -> str:
        """Where the states are, in words, as far as runs have shown."""
        made = ", where initial values of other sizes are put" if self._sized else ""
        return f"inside the module{made}"

    def run(
        self,
        inputs: Sequence[Tensors],
        sizes: Mapping[str, int],
        *,
        steps: int | None = None,
        reset_at: Sequence[int] = (),
        reset_every: int | None = None,
        reset_by_method: bool = True,
    ) -> Inference:
        """Run the model from its initial state, which it goes back to as often as is asked.

        Args:
            inputs: The inputs of each step, by name.
            sizes: Axis name to size, for the initial states.
            steps: How many steps, from the first input again after the last.
            reset_at: Steps before which it is reset.
            reset_every: After how many steps it is reset.
            reset_by_method: Whether it is reset by its own method, where it has one and holds the
                state that this restores; else it is loaded again.

        Raises:
            StageError: The process ends with an error.
        """
        model = self._model_at(sizes)
        by_method = reset_by_method and model == self._model
        resets = bool(reset_at) or reset_every is not None
        try:
            return run_infer(
                model,
                self._libraries,
                [{**given, **self._constants} for given in inputs],
                steps=steps,
                method=self._method,
                reset_at=reset_at,
                reset_every=reset_every,
                reset_method=self._reset if by_method and resets else None,
                threads=self._threads,
                program=self._model.with_name(PROGRAM),
            )
        except StageError as error:
            message = error.message.removeprefix(f"{error.stage}: ")
            raise StageError(message, stage=self._stage, hint=error.hint) from error

    def _model_at(self, sizes: Mapping[str, int]) -> Path:
        """Return the model, or one whose states have other sizes where the axes ask for it."""
        reference = self._reference
        if reference is None:
            return self._model
        initial = reference.initial(sizes)
        # A state that the first call creates has the right size by itself.
        held = (
            reference.states_in(0) if isinstance(reference, PhasedReference) else reference.states
        )
        others = [s for s in held if initial[s.name].shape != s.initial.shape]
        if not others:
            return self._model
        key = tuple((state.name, *initial[state.name].shape) for state in others)
        if key not in self._sized:
            self._sized[key] = self._write_sized(others, initial)
        return self._sized[key]

    def _write_sized(self, states: Sequence[StateDef], initial: Tensors) -> Path:
        """Write a model that holds other initial values of some states."""
        module = self._loaded()
        for state in states:
            try:
                held = [read(module, path) for path in state.paths]
            except KeyError as error:
                raise StageError(
                    f"state '{state.name}' is not where it is in Python: it cannot be given the "
                    f"size {list(initial[state.name].shape)}",
                    stage=self._stage,
                ) from error
            if any(isinstance(value, torch.Tensor) for value in held):
                put(module, state, initial[state.name])
        give_written()
        path = self._scratch / f"{len(self._sized)}.pt"
        save(module, path)
        return path
