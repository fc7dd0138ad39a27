"""The log stage's one boundary: whatever MLflow raises ends here, as a warning or a StageError."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.stages.log.result import LogResult
from stateful_pipeline.stages.log.server import probe, short_limits
from stateful_pipeline.stages.log.store import Store, resolve_store

_MAX_MESSAGE = 2000


def log_summary(
    summary: Mapping[str, Any],
    folder: Path,
    *,
    experiment: str,
    tracking_uri: str | None,
    default_store: Path,
    required: bool = False,
) -> LogResult:
    """Log a run to MLflow: a parent run for the spec and a nested one for each target.

    Args:
        summary: The run's summary; parts that a failed stage left out may be missing.
        folder: The build's folder, whose files become artifacts.
        experiment: The experiment's name; it is created if need be.
        tracking_uri: MLflow's tracking URI; None for ``MLFLOW_TRACKING_URI`` or else
            ``default_store``.
        default_store: The SQLite file of the default store.
        required: Whether a failure is an error rather than a warning.

    Returns:
        Where the run was logged; on failure its ``warning`` says why it was not.

    Raises:
        StageError: Logging failed and is ``required``; its cause is what MLflow raised.
    """
    store = resolve_store(tracking_uri, default_store)
    try:
        return _log(store, summary, folder, experiment)
    except PipelineError as error:
        problem = error
    except Exception as error:  # noqa: BLE001 - MLflow raises whatever its backends raise
        problem = StageError(_told(error, store.shown), stage="log")
        problem.__cause__ = error
    if required:
        raise problem
    return LogResult(store.shown, warning=str(problem))


def prepare(tracking_uri: str | None, default_store: Path) -> None:
    """Load MLflow and open an SQLite store, so that a later :func:`log_summary` finds both ready.

    Does nothing over the network.  Raises what MLflow raises.
    """
    store = resolve_store(tracking_uri, default_store)
    with short_limits(), _quiet():
        _import_mlflow()
        if store.database is not None:
            from stateful_pipeline.stages.log.store import open_store

            open_store(store)


def _log(store: Store, summary: Mapping[str, Any], folder: Path, experiment: str) -> LogResult:
    probe(store)
    with short_limits(), _quiet():
        _import_mlflow()
        from stateful_pipeline.stages.log.reap import reap
        from stateful_pipeline.stages.log.runs import write_runs
        from stateful_pipeline.stages.log.store import find_experiment, open_store

        client = open_store(store)
        experiment_id = find_experiment(client, store, experiment)
        reap(client, experiment_id)
        run_id = write_runs(client, experiment_id, summary, folder)
    url = store.run_url(experiment_id, run_id)
    return LogResult(store.shown, experiment_id, run_id, url, store.ui_command)


def _import_mlflow() -> None:
    try:
        import mlflow  # noqa: F401
    except ImportError as error:
        raise StageError(
            f"MLflow cannot be imported: {error}", stage="log", hint="pip install mlflow"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's notes about creating tables off the user's terminal; warnings still show."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "mlflow.store.db.utils", "alembic")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _told(error: Exception, shown: str) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    text = f"MLflow at {shown} failed: {type(error).__name__}: {error}{notes}"
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + " ..."
