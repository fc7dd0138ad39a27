"""What a run tells while it runs; the command line shows it, others may not care."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears what a run does."""

    def begin(self, stage: str) -> None:
        """Hear that ``stage`` begins."""
        ...

    def say(self, text: str) -> None:
        """Hear what is going on within a stage."""
        ...

    def end(self, stage: str, status: str, seconds: float, error: str | None) -> None:
        """Hear that ``stage`` ended: ``done``, ``reused``, ``refused``, ``failed`` or ``skipped``.

        ``refused`` means that another front end will be tried.
        """
        ...


class Silent:
    """Hears and says nothing."""

    def begin(self, stage: str) -> None:
        """Do nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def end(self, stage: str, status: str, seconds: float, error: str | None) -> None:
        """Do nothing."""
