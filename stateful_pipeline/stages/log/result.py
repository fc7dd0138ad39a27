"""What the log stage tells its caller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LogResult:
    """Where a run was logged, or why it was not.

    Attributes:
        tracking_uri: The store that was used, without any password in it.
        experiment_id: The experiment's id, or None if nothing was logged.
        run_id: The parent run's id, or None if nothing was logged.
        url: The parent run's page in MLflow's UI, or None if nothing was logged.
        ui_command: The command that serves ``url``, or None where a server does already.
        warning: What went wrong, or None.
    """

    tracking_uri: str
    experiment_id: str | None = None
    run_id: str | None = None
    url: str | None = None
    ui_command: str | None = None
    warning: str | None = None
