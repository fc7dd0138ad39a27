import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.log import LogWorker


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_worker_logs_while_this_process_does_other_things(
    summary: dict[str, Any], build: Path, tmp_path: Path
) -> None:
    database = tmp_path / "fresh" / "mlflow.db"
    with LogWorker(None, database) as worker:
        assert worker.wait_ready(60)
        assert database.exists()
        result = worker.log(summary, build, experiment="lstm")
    assert result.warning is None
    client = MlflowClient(tracking_uri=result.tracking_uri)
    assert client.get_run(str(result.run_id)).info.status == "FINISHED"
    assert gone(worker.pid)


def test_a_worker_that_is_not_ready_yet_logs_all_the_same(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    summary["targets"]["cpu"]["verify"]["per_step"] = [float("nan")] * 5000
    with LogWorker(None, database) as worker:
        assert worker.log(summary, build, experiment="lstm").warning is None


def test_a_worker_reports_what_went_wrong(
    summary: dict[str, Any], build: Path, tmp_path: Path
) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 100)
    for required in (False, True):
        with LogWorker(None, tmp_path / "mlflow.db") as worker:
            if required:
                with pytest.raises(
                    StageError, match=r"^log: the MLflow store .* cannot be written"
                ):
                    worker.log(summary, build, experiment="lstm", required=True)
            else:
                result = worker.log(summary, build, experiment="lstm")
                assert str(result.warning).startswith("log: the MLflow store")
                assert result.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"


def test_a_worker_that_was_killed_is_a_warning(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    with LogWorker(None, database) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        result = worker.log(summary, build, experiment="lstm")
    assert "the process that logs has ended with code -9" in str(result.warning)


def test_a_store_whose_creation_was_killed_is_made_anew(
    summary: dict[str, Any], build: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "store" / ".mlflow.db.part"
    with LogWorker(None, tmp_path / "store" / "mlflow.db") as worker:
        deadline = time.monotonic() + 60
        while not partial.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert partial.exists()
    with LogWorker(None, tmp_path / "store" / "mlflow.db") as worker:
        assert worker.log(summary, build, experiment="lstm").warning is None
    assert not partial.exists()


def test_closing_an_unused_worker_leaves_no_process_and_takes_no_time(database: Path) -> None:
    began = time.monotonic()
    with LogWorker(None, database) as worker:
        pass
    assert gone(worker.pid)
    assert time.monotonic() - began < 1
