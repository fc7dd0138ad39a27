import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from stateful_pipeline.stages.log import log_summary
from stateful_pipeline.stages.log.reap import process_tags
from stateful_pipeline.stages.log.store import Store, resolve_store

LOG = """
import json, sys
from pathlib import Path
from stateful_pipeline.stages.log import log_summary
summary, folder, database = json.loads(sys.argv[1])
result = log_summary(summary, Path(folder), experiment="lstm", tracking_uri=None,
                     default_store=Path(database))
print(result.warning or result.run_id)
"""

HOLD = """
import sys, time
from mlflow import MlflowClient
from stateful_pipeline.stages.log.reap import process_tags
client = MlflowClient(tracking_uri=sys.argv[1])
print(client.create_run(sys.argv[2], tags=process_tags()).info.run_id, flush=True)
time.sleep(60)
"""


def start(code: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def log(summary: dict[str, Any], build: Path, database: Path, experiment: str = "lstm") -> Any:
    return log_summary(
        summary, build, experiment=experiment, tracking_uri=None, default_store=database
    )


def test_two_processes_may_first_open_a_fresh_store_together(
    summary: dict[str, Any], build: Path, tmp_path: Path
) -> None:
    database = tmp_path / "fresh" / "mlflow.db"
    argument = json.dumps([summary, str(build), str(database)])
    processes = [start(LOG, argument) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    assert {client.get_run(answer).info.status for answer in answers} == {"FINISHED"}
    left = {path.name for path in database.parent.iterdir()}
    assert left == {"mlflow.db", ".mlflow.db.lock", "mlartifacts"}


def test_the_run_of_a_killed_process_is_closed_and_that_of_a_live_one_is_not(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment = client.create_experiment("lstm", artifact_location=str(build.parent / "a"))
    process = start(HOLD, f"sqlite:///{database}", experiment)
    try:
        assert process.stdout is not None
        run_id = process.stdout.readline().strip()
        assert log(summary, build, database).warning is None
        assert client.get_run(run_id).info.status == "RUNNING"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert log(summary, build, database).warning is None
    assert client.get_run(run_id).info.status == "KILLED"


def test_a_later_process_with_the_same_id_does_not_keep_a_run_alive(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment = client.create_experiment("lstm", artifact_location=str(build.parent / "a"))
    tags = process_tags()
    earlier = {**tags, "stateful_pipeline.pid": f"{os.getpid()}:1"}
    old = client.create_run(experiment, tags=earlier).info.run_id
    elsewhere = {**tags, "stateful_pipeline.host": "another", "stateful_pipeline.pid": "1:1"}
    other = client.create_run(experiment, tags=elsewhere).info.run_id
    assert log(summary, build, database).warning is None
    assert client.get_run(old).info.status == "KILLED"
    assert client.get_run(other).info.status == "RUNNING"


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, None])
def test_a_store_that_cannot_be_opened_is_a_quick_warning(
    content: bytes | None, summary: dict[str, Any], build: Path, tmp_path: Path
) -> None:
    database = tmp_path / "mlflow.db"
    if content is None:
        database.mkdir()
    else:
        database.write_bytes(content)
    began = time.monotonic()
    result = log(summary, build, database)
    assert time.monotonic() - began < 6
    assert f"the MLflow store {database} cannot be written" in str(result.warning)
    assert "try: " in str(result.warning)


def test_a_path_that_a_database_uri_cannot_have_is_refused(
    summary: dict[str, Any], build: Path, tmp_path: Path
) -> None:
    result = log(summary, build, tmp_path / "what?" / "mlflow.db")
    assert "has a '?' in its path" in str(result.warning)
    assert [path.name for path in tmp_path.iterdir()] == ["build"]


def test_a_folder_with_spaces_is_quoted_in_the_command_to_start_the_ui(tmp_path: Path) -> None:
    store = resolve_store(None, tmp_path / "my runs" / "mlflow.db")
    assert f"'sqlite:///{tmp_path}/my runs/mlflow.db'" in str(store.ui_command)


def test_a_relative_store_is_absolute_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = resolve_store("sqlite:///runs.db", Path("unused.db"))
    assert store.uri == f"sqlite:///{tmp_path}/runs.db"
    assert store.artifacts == f"file://{tmp_path}/mlartifacts"


def test_a_server_gives_its_own_links_and_no_password() -> None:
    store = Store("https://me:secret@tracking.example/mlflow/")
    assert store.ui_command is None
    assert store.shown == "https://tracking.example/mlflow/"
    url = "https://tracking.example/mlflow/#/experiments/1/runs/abc?workflowType=machine_learning"
    assert store.run_url("1", "abc") == url


def test_without_mlflow_the_warning_names_what_to_install(
    summary: dict[str, Any], build: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    result = log(summary, build, tmp_path / "mlflow.db")
    assert "pip install mlflow" in str(result.warning)
    assert result.url is None


def test_importing_the_stage_imports_no_mlflow() -> None:
    code = "import sys, stateful_pipeline.stages.log; print('mlflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
