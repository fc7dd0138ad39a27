import math
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.log import LogResult, artifacts, log_summary
from stateful_pipeline.stages.log.records import child_record

FIXED = ["contract.json", "error_per_step.svg", "latency.svg", "report.json"]


def logged(
    summary: dict[str, Any], build: Path, database: Path, **more: Any
) -> tuple[MlflowClient, LogResult, Any, dict[str, Any]]:
    """Log a summary; return a client, the result, the parent run and the nested runs by target."""
    options = {"experiment": "lstm", "tracking_uri": None, "default_store": database, **more}
    result = log_summary(summary, build, **options)
    assert result.warning is None
    client = MlflowClient(tracking_uri=result.tracking_uri)
    runs = client.search_runs([str(result.experiment_id)])
    nested = {
        run.data.tags["target"]: run
        for run in runs
        if run.data.tags.get("mlflow.parentRunId") == result.run_id
    }
    return client, result, client.get_run(str(result.run_id)), nested


def test_a_good_run_is_a_finished_parent_with_a_nested_run_for_each_target(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    client, result, parent, nested = logged(summary, build, database)
    assert result.tracking_uri == f"sqlite:///{database}"
    program, _, arguments = str(result.ui_command).partition(" ")
    assert program.endswith("mlflow")
    assert arguments == f"ui --backend-store-uri sqlite:///{database}"
    assert result.url is not None
    assert f"#/experiments/{result.experiment_id}/runs/{result.run_id}?" in result.url
    assert parent.info.status == "FINISHED"
    assert parent.info.end_time - parent.info.start_time >= 60_000
    assert parent.data.tags["verdict"] == "PASSED"
    assert parent.data.tags["spec_digest"] == "d" * 64
    assert parent.data.tags["version.torch"] == "2.13.0"
    assert "| cpu | PASSED | 3 | 2e-07 |" in parent.data.tags["mlflow.note.content"]
    assert parent.data.params == {"verify.steps": "3", "states__cells.0.h__.init": "zeros"}
    assert parent.data.metrics["passed"] == 1
    cpu = nested["cpu"]
    assert cpu.info.status == "FINISHED"
    assert cpu.data.metrics["passed"] == 1
    assert cpu.data.metrics["p50_ms"] == 0.5
    assert cpu.data.metrics["eager_p99_ms"] == 2.0
    assert cpu.data.metrics["max_abs_error/h"] == 2e-7
    assert cpu.data.metrics["log10_max_abs_error"] == pytest.approx(math.log10(2e-7))
    curve = client.get_metric_history(cpu.info.run_id, "abs_error")
    assert sorted((point.step, point.value) for point in curve) == [(0, 0), (1, 1e-7), (2, 2e-7)]
    assert mlflow.active_run() is None


def test_artifacts_have_fixed_names_at_the_root_of_every_nested_run(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    summary["targets"]["gpu"] = {"passed": None, "owed": ["no CUDA device"], "optional": True}
    client, _, parent, nested = logged(summary, build, database)
    for run in nested.values():
        assert sorted(file.path for file in client.list_artifacts(run.info.run_id)) == FIXED
    root = Path(parent.info.artifact_uri.removeprefix("file://"))
    assert root.is_relative_to(database.parent / "mlartifacts")
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*.*")) == [
        "export/model.onnx",
        "report.html",
        "rewrite/lstm/after.py",
        "script/before.py",
        "verify/report.json",
    ]
    assert parent.info.status == nested["gpu"].info.status == "FINISHED"
    assert nested["gpu"].data.tags["verdict"] == "OWED"
    assert nested["gpu"].data.tags["owed"] == "no CUDA device"
    assert "passed" not in nested["gpu"].data.metrics


@pytest.mark.parametrize(
    ("run", "target", "expected"),
    [
        ("passed", {"passed": None, "owed": ["no GPU"], "optional": True}, "FINISHED"),
        ("owed", {"passed": None, "owed": ["no GPU"], "optional": False}, "FAILED"),
        ("owed", {"passed": None}, "FINISHED"),
        ("built", {"passed": None}, "FINISHED"),
        ("failed", {"passed": None}, "FAILED"),
        ("refused", {"passed": None, "error": "state 'h': it is float64"}, "FAILED"),
        ("interrupted", {"passed": None}, "KILLED"),
        ("failed", {"passed": False}, "FAILED"),
        ("failed", {"passed": True}, "FINISHED"),
    ],
)
def test_a_target_fails_in_mlflow_where_it_makes_the_run_fail(
    summary: dict[str, Any], run: str, target: dict[str, Any], expected: str
) -> None:
    summary = {**summary, "status": run, "targets": {"one": target}}
    assert child_record(summary, "one").status == expected


def test_a_large_file_stays_in_the_build_and_is_named(
    summary: dict[str, Any], build: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "MAX_BYTES", 50)
    (build / "export" / "model.onnx").write_bytes(b"0" * 51)
    client, _, parent, _ = logged(summary, build, database)
    assert parent.data.tags["left_out"] == "export/model.onnx"
    assert "export" not in [file.path for file in client.list_artifacts(parent.info.run_id)]


@pytest.mark.parametrize(
    ("status", "expected", "verdict"),
    [
        ("failed", "FAILED", "FAILED"),
        ("refused", "FAILED", "FAILED"),
        ("owed", "FAILED", "OWED"),
        ("interrupted", "KILLED", "INTERRUPTED"),
    ],
)
def test_a_run_that_did_not_pass_says_so(
    status: str,
    expected: str,
    verdict: str,
    summary: dict[str, Any],
    tmp_path: Path,
    database: Path,
) -> None:
    error = "export: no such operator <x>\n  try: another opset"
    early = {
        **summary,
        "status": status,
        "contract": None,
        "targets": {},
        "stages": {"export": {"status": "failed", "seconds": 0.1, "error": error}},
    }
    _, _, parent, nested = logged(early, tmp_path / "nothing here", database)
    assert parent.info.status == expected
    assert parent.data.tags["verdict"] == verdict
    assert parent.data.tags["error"] == f"export: {error}"
    assert "    " + error.splitlines()[0] in parent.data.tags["mlflow.note.content"]
    assert nested == {}


def test_a_target_that_differs_fails_alone(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    bad = {
        "passed": False,
        "verify": {"per_step": [1e-7, float("nan")], "max_abs_error": "nan", "atol": 1e-5},
    }
    summary["targets"]["bad"] = bad
    summary["status"] = "failed"
    client, _, parent, nested = logged(summary, build, database)
    assert parent.info.status == "FAILED"
    assert nested["cpu"].info.status == "FINISHED"
    assert nested["bad"].info.status == "FAILED"
    assert nested["bad"].data.metrics["passed"] == 0
    assert math.isnan(client.get_metric_history(nested["bad"].info.run_id, "abs_error")[-1].value)


def test_long_and_odd_values_are_logged_too(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    summary["params"] = {f"p{i}": i for i in range(250)}
    summary["params"] |= {"long": "x" * 20_000, "a[0]": 1, "a(0)": 2, "../up": 3}
    summary["targets"]["cpu"]["verify"]["per_step"] = [1e-7] * 1500
    summary["targets"]["cpu"]["verify"]["rollouts"] = [{"tensors": {"h<0>": 1e-7}}]
    client, _, parent, nested = logged(summary, build, database)
    assert len(parent.data.params) == 254
    assert (parent.data.params["a_0_"], parent.data.params["a_0__2"]) == ("1", "2")
    assert len(client.get_metric_history(nested["cpu"].info.run_id, "log10_abs_error")) == 1500


def test_the_environment_names_the_store_unless_the_spec_does(
    summary: dict[str, Any],
    build: Path,
    database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    _, result, *_ = logged(summary, build, tmp_path / "unused.db")
    assert result.tracking_uri == f"sqlite:///{database}"
    assert not (tmp_path / "unused.db").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////nowhere/mlflow.db")
    _, result, *_ = logged(
        summary, build, tmp_path / "unused.db", tracking_uri=f"sqlite:///{database}"
    )
    assert result.tracking_uri == f"sqlite:///{database}"


def test_a_deleted_experiment_is_a_warning_that_says_what_to_do(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    client, result, *_ = logged(summary, build, database)
    client.delete_experiment(str(result.experiment_id))
    again = log_summary(
        summary, build, experiment="lstm", tracking_uri=None, default_store=database
    )
    assert "the MLflow experiment 'lstm' was deleted" in str(again.warning)
    assert "mlflow experiments restore" in str(again.warning)


def test_runs_that_cannot_be_finished_are_closed_and_the_reason_is_told(
    summary: dict[str, Any], build: Path, database: Path
) -> None:
    (database.parent / "mlartifacts").write_text("a file where a folder should be")
    result = log_summary(
        summary, build, experiment="lstm", tracking_uri=None, default_store=database
    )
    assert "Error" in str(result.warning)
    assert "mlartifacts" in str(result.warning)
    assert result.run_id is None
    client = MlflowClient(tracking_uri=result.tracking_uri)
    experiment = client.get_experiment_by_name("lstm")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FAILED"]
    with pytest.raises(StageError, match="mlartifacts"):
        log_summary(
            summary,
            build,
            experiment="lstm",
            tracking_uri=None,
            default_store=database,
            required=True,
        )
