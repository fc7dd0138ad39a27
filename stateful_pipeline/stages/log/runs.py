"""Writes the MLflow runs: a parent for the spec, and a nested one for each target.

Everything goes through one client, with each run's numbers in one batch (a thousand single calls
take seconds).  Nothing global in MLflow is touched: no active run, no tracking URI.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stateful_pipeline.stages.log.artifacts import child_files, parent_files
from stateful_pipeline.stages.log.reap import process_tags
from stateful_pipeline.stages.log.records import Record, child_record, parent_record

if TYPE_CHECKING:
    from mlflow import MlflowClient

_Item = TypeVar("_Item")
_MAX_METRICS, _MAX_PARAMS, _MAX_TAGS = 1000, 100, 100


def write_runs(
    client: MlflowClient, experiment_id: str, summary: Mapping[str, Any], folder: Path
) -> str:
    """Write all runs of ``summary`` and return the parent's id.

    Args:
        client: The client of the store.
        experiment_id: Where the runs go.
        summary: The run's summary.
        folder: The build's folder; what is missing there is left out.

    Raises:
        mlflow.exceptions.MlflowException: The store refused something.  Runs that were begun are
            closed as FAILED, or KILLED if the process is being stopped.
    """
    begun: list[str] = []
    try:
        return _write(client, experiment_id, summary, folder, begun)
    except BaseException as error:
        _abandon(client, begun, error)
        raise


def _write(
    client: MlflowClient,
    experiment_id: str,
    summary: Mapping[str, Any],
    folder: Path,
    begun: list[str],
) -> str:
    parent = parent_record(summary)
    small, large = parent_files(folder)
    if large:
        parent.tags["left_out"] = ", ".join(str(path) for path in large)
    started = _start_time(summary)
    label = f"{summary.get('name')}-{summary.get('run_id')}"
    parent_id = _begin(client, experiment_id, label, started, {}, begun)
    _log(client, parent_id, parent)
    for path in small:
        inside = None if path.parent == Path() else path.parent.as_posix()
        client.log_artifact(parent_id, str(folder / path), inside)
    children = []
    for name in summary.get("targets") or {}:
        child = child_record(summary, name)
        nested = {"mlflow.parentRunId": parent_id}
        label = f"{name}-{summary.get('run_id')}"
        child_id = _begin(client, experiment_id, label, started, nested, begun)
        _log(client, child_id, child)
        _log_texts(client, child_id, child_files(summary, name))
        children.append((child_id, child.status))
    for run_id, status in [*children, (parent_id, parent.status)]:
        client.set_terminated(run_id, status=status)
        begun.remove(run_id)
    return parent_id


def _begin(
    client: MlflowClient,
    experiment_id: str,
    label: str,
    started: int,
    tags: Mapping[str, str],
    begun: list[str],
) -> str:
    every = {**process_tags(), **tags}
    run = client.create_run(experiment_id, start_time=started, tags=every, run_name=label)
    begun.append(run.info.run_id)
    return str(run.info.run_id)


def _log(client: MlflowClient, run_id: str, record: Record) -> None:
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    metrics = [Metric(point.key, point.value, now, point.step) for point in record.metrics]
    params = [Param(key, value) for key, value in record.params.items()]
    tags = [RunTag(key, value) for key, value in record.tags.items()]
    # The server takes at most 1000 entries in all, whatever their kind, so later pages go alone.
    client.log_batch(run_id, params=params[:_MAX_PARAMS], tags=tags[:_MAX_TAGS])
    for more_params in _pages(params[_MAX_PARAMS:], _MAX_PARAMS):
        client.log_batch(run_id, params=more_params)
    for more_tags in _pages(tags[_MAX_TAGS:], _MAX_TAGS):
        client.log_batch(run_id, tags=more_tags)
    for some_metrics in _pages(metrics, _MAX_METRICS):
        client.log_batch(run_id, metrics=some_metrics)


def _pages(items: Sequence[_Item], size: int) -> list[Sequence[_Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _log_texts(client: MlflowClient, run_id: str, texts: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        client.log_artifacts(run_id, folder)


def _start_time(summary: Mapping[str, Any]) -> int:
    """Return when the stages began, in milliseconds since 1970, so that MLflow shows their time."""
    stages = (summary.get("stages") or {}).values()
    seconds = sum(stage.get("seconds") or 0.0 for stage in stages)
    return int((time.time() - seconds) * 1000)


def _abandon(client: MlflowClient, begun: Sequence[str], error: BaseException) -> None:
    status = "FAILED" if isinstance(error, Exception) else "KILLED"
    for run_id in begun:
        try:
            client.set_terminated(run_id, status=status)
        except Exception as second:  # noqa: BLE001 - told with the first error, which matters more
            error.add_note(f"run {run_id} is still marked RUNNING: {second}")
            return
