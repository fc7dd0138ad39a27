"""Every error that the project raises on purpose, on one screen.

::

    PipelineError                 base: message, and optionally where and what to try
    ├── SpecError                 the spec or the call is wrong (file, line, column, key)
    │   └── SourceError           the model's source cannot be found, imported or constructed
    ├── StateError                a state would be lost or is not supported (attribute, file, line)
    ├── StageError                a stage of the pipeline failed (stage)
    ├── TargetError               a runtime, provider or device is not available here (target)
    └── ContractError             an array, a state or a file does not fit the contract

Exit codes are decided in ``outcome.py``, not here.  Foreign exceptions are translated where they
are caught, with ``raise ... from``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ContractError",
    "PipelineError",
    "Place",
    "SourceError",
    "SpecError",
    "StageError",
    "StateError",
    "TargetError",
]


@dataclass(frozen=True)
class Place:
    """A position in a text file; ``line`` and ``column`` count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file, *(str(n) for n in (self.line, self.column) if n is not None)]
        return ":".join(parts)


class PipelineError(Exception):
    """Base of every error of this project.

    Args:
        message: What is wrong, in one or a few lines.
        place: Where, if a file is to blame.
        hint: What to try.
    """

    def __init__(
        self, message: str, *, place: Place | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint

    def __str__(self) -> str:
        text = self.message if self.place is None else f"{self.place}: {self.message}"
        return text if self.hint is None else f"{text}\n  try: {self.hint}"

    @property
    def file(self) -> str | None:
        """The file to blame, or None."""
        return None if self.place is None else self.place.file

    @property
    def line(self) -> int | None:
        """The line to blame, counted from 1, or None."""
        return None if self.place is None else self.place.line


class SpecError(PipelineError):
    """The spec, an override or the command line is wrong.

    ``key`` is the dotted path of the offending key.  Where one file has several faults, the
    first is raised and ``others`` holds the rest.
    """

    def __init__(
        self,
        message: str,
        *,
        place: Place | None = None,
        hint: str | None = None,
        key: str | None = None,
        others: tuple[SpecError, ...] = (),
    ) -> None:
        super().__init__(message, place=place, hint=hint)
        self.key = key
        self.others = others

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(str(other) for other in self.others)])


class SourceError(SpecError):
    """The model named by ``source`` cannot be found, imported, constructed or loaded."""


class StateError(PipelineError):
    """A state of the model would be lost, or cannot be made explicit.

    Args:
        reason: Why, in one sentence.
        attribute: The dotted path of the state, as in ``encoder.cells.0.h``.
        place: The line of the user's code that changes it, where known.
        hint: What to do about it.
    """

    def __init__(
        self,
        reason: str,
        *,
        attribute: str | None = None,
        place: Place | None = None,
        hint: str | None = None,
    ) -> None:
        named = reason if attribute is None else f"state '{attribute}': {reason}"
        super().__init__(named, place=place, hint=hint)
        self.reason = reason
        self.attribute = attribute


class StageError(PipelineError):
    """A stage failed for a reason that is not a lost state."""

    def __init__(
        self, message: str, *, stage: str, place: Place | None = None, hint: str | None = None
    ) -> None:
        super().__init__(f"{stage}: {message}", place=place, hint=hint)
        self.stage = stage


class TargetError(PipelineError):
    """A target's runtime, provider or device is not available on this machine."""

    def __init__(self, message: str, *, target: str | None = None, hint: str | None = None) -> None:
        super().__init__(message if target is None else f"target '{target}': {message}", hint=hint)
        self.target = target


class ContractError(PipelineError):
    """An input, a state or a model file does not fit the state contract."""

    @classmethod
    def in_file(cls, path: str | Path, message: str, hint: str | None = None) -> ContractError:
        """Build the error for the model or state file at ``path``."""
        return cls(message, place=Place(str(path)), hint=hint)
