"""The walk through the stages: what is reused, what a failure stops, and what is logged."""

import json
import shutil
import time

import numpy as np
import pytest

from stateful_pipeline.runner import STAGES, run_spec
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages import model_files
from stateful_pipeline.stages.log import log
from stateful_pipeline.stages.log.store import resolve_store

TWO = """\
targets:
  one: {runtime: onnxruntime, threads: 1}
  two: {runtime: onnxruntime, threads: 1}
"""

IMPORTING = """\
import torch
from torch import nn

import {helper}


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = {helper}.mix(self.h, x)
        return self.h
"""

LAZY = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        from {helper}.inner import mix

        self.h = mix(self.h, x)
        return self.h
"""

MIX = "def mix(h, x):\n    return 0.5 * h + x\n"

REFUSED = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.h + (lambda v: v)(x)  # no TorchScript
        return self.h if self.h.sum() > 0 else x
"""


def statuses(ran):
    return ran.lines[-1]["stages"]


# --- reuse


def test_the_stages_are_one_tuple_in_the_order_of_a_run():
    assert STAGES == ("script", "rewrite", "export", "build", "verify", "benchmark", "log")


def test_a_second_run_of_the_same_reuses_the_export_and_verifies_again(project):
    spec = project.spec()
    first = project.run(spec, "--json")
    second = project.run(spec, "--json")
    assert statuses(first)["export"] == "done"
    reused = {name for name, status in statuses(second).items() if status == "reused"}
    assert reused == {"script", "rewrite", "export"}
    assert statuses(second)["verify"] == "done"
    assert "reused" in second.err
    one, two = (build / "export" / "model.onnx" for build in project.builds())
    assert one.read_bytes() == two.read_bytes()


def test_force_reuses_nothing(project):
    spec = project.spec()
    project.run(spec)
    assert "reused" not in statuses(project.run(spec, "--force", "--json")).values()


def change_the_models_file(project, spec):
    model = project.folder / "model.py"
    model.write_text(model.read_text().replace("2 * self.h", "20 * self.h"))
    return []


def change_the_constructors_arguments(project, spec):
    return ["--set", "source.kwargs.decay=0.25"]


def change_the_opset(project, spec):
    return ["--set", "export.opset=19"]


def change_an_axis(project, spec):
    return ["--set", "dynamic_axes.batch.max=9"]


def damage_the_earlier_model(project, spec):
    model = project.out / "leaky" / "export" / "model.onnx"
    model.write_bytes(model.read_bytes() + b"x")
    return []


@pytest.mark.parametrize(
    "change",
    [
        change_the_models_file,
        change_the_constructors_arguments,
        change_the_opset,
        change_an_axis,
        damage_the_earlier_model,
    ],
)
def test_what_decides_the_model_is_not_reused_once_it_has_changed(project, change):
    spec = project.spec()
    project.run(spec)
    options = change(project, spec)
    ran = project.run(spec, "--json", *options)
    assert ran.code == 0
    assert statuses(ran)["export"] == "done"


def test_a_change_of_the_tolerance_alone_is_verified_on_the_reused_model(project):
    spec = project.spec()
    project.run(spec)
    ran = project.run(spec, "--json", "--set", "verify.steps=7")
    assert statuses(ran)["export"] == "reused"
    assert ran.lines[0]["targets"]["cpu"]["steps"] == 7


@pytest.mark.parametrize("lazy", [False, True])
def test_a_change_in_a_module_that_the_model_imports_is_noticed(project, lazy):
    helper = f"helper_{'lazy' if lazy else 'eager'}"
    spec = project.spec(model=(LAZY if lazy else IMPORTING).format(helper=helper))
    source = project.write(f"lib/{helper}.py" if not lazy else f"lib/{helper}/inner.py", MIX)
    if lazy:
        project.write(f"lib/{helper}/__init__.py", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(project.folder / "lib"))
        assert project.run(spec).code == 0
        assert statuses(project.run(spec, "--json"))["export"] == "reused"
        source.write_text(MIX.replace("0.5", "0.25"))
        assert statuses(project.run(spec, "--json"))["export"] == "done"


def test_a_change_of_weights_or_of_recorded_input_is_noticed(project):
    from safetensors.numpy import save_file

    save_file({"h": np.zeros((1, 3), np.float32)}, "weights.safetensors")
    np.savez("data.npz", x=np.zeros((40, 1, 3), np.float32))
    spec = project.spec(
        source='source: {file: "model.py:Leaky", weights: weights.safetensors}',
        inputs="inputs: {x: {shape: [batch, 3], data: {npz: data.npz, key: x}}}",
        **{"  x": ""},
    )
    assert project.run(spec).code == 0
    assert statuses(project.run(spec, "--json"))["export"] == "reused"
    save_file({"h": np.ones((1, 3), np.float32)}, "weights.safetensors")
    assert statuses(project.run(spec, "--json"))["export"] == "done"
    assert statuses(project.run(spec, "--json"))["export"] == "reused"
    np.savez("data.npz", x=np.ones((40, 1, 3), np.float32))
    assert statuses(project.run(spec, "--json"))["export"] == "done"


def test_what_a_failed_stage_left_is_not_reused(project, monkeypatch):
    import stateful_pipeline.stages.export.run as export_stage

    def write_and_fail(*args, **kwargs):
        exported = real(*args, **kwargs)
        raise RuntimeError(f"after {exported.model.name} was written")

    spec = project.spec()
    real = export_stage.export_program
    with monkeypatch.context() as patch:
        patch.setattr(export_stage, "export_program", write_and_fail)
        assert project.run(spec).code == 3
    assert (project.builds()[0] / "export" / "model.onnx").is_file()
    ran = project.run(spec, "--json")
    assert ran.code == 0
    assert statuses(ran)["export"] == "done"


def test_from_takes_what_came_before_and_does_the_rest(project):
    spec = project.spec(benchmark="benchmark: {steps: 5, warmup: 1}")
    project.run(spec, "--to", "verify")
    ran = project.run(spec, "--from", "benchmark", "--json")
    assert ran.code == 0
    assert statuses(ran) == {
        **dict.fromkeys(STAGES[:5], "reused"),
        "benchmark": "done",
        "log": "not asked",
    }
    assert ran.lines[0]["targets"]["cpu"]["passed"] is True
    assert ran.lines[0]["targets"]["cpu"]["p50_ms"] > 0


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "verify.atol=0"],
        ["--set", "targets.cpu.verify.rtol=0"],
        ["--set", "source.kwargs.decay=0.25"],
    ],
)
def test_from_takes_no_verdict_that_was_given_under_other_conditions(project, options):
    spec = project.spec("targets: {cpu: {runtime: onnxruntime, threads: 1}}\n")
    project.run(spec)
    ran = project.run(spec, "--from", "benchmark", *options)
    assert ran.code == 2
    assert "no earlier build" in ran.err


def test_from_takes_nothing_for_a_target_that_was_not_built_then(project):
    spec = project.spec(TWO)
    assert project.run(spec, "--target", "one").code == 0
    assert project.run(spec, "--from", "verify").code == 2
    assert project.run(spec, "--from", "benchmark").code == 2
    assert project.run(spec, "--from", "verify", "--target", "one").code == 0


def test_from_says_why_the_newest_build_of_the_same_model_does_not_fit(project):
    spec = project.spec(TWO)
    assert project.run(spec, "--target", "one").code == 0
    (build,) = project.builds()

    def said(*options):
        ran = project.run(spec, *options)
        assert ran.code == 2
        assert f"that of {build.name} " in ran.err
        return ran.err

    assert "has not built target 'two'" in said("--from", "verify")
    one = ("--from", "verify", "--target", "one")
    assert "has other settings of target 'one'" in said(*one, "--set", "targets.one.threads=2")
    other = said("--from", "build", "--set", "source.kwargs.decay=0.25")
    assert "is of another spec, model, code" in other
    assert "has other settings of `verify`" in said(
        "--from", "benchmark", "--target", "one", "--set", "verify.steps=9"
    )
    (build / "targets" / "one" / "model.onnx").write_bytes(b"")
    assert "is damaged: targets/one/model.onnx is missing or was changed" in said(*one)


def test_from_benchmark_says_that_a_target_was_not_verified(project):
    spec = project.spec()
    assert project.run(spec, "--to", "build").code == 0
    ran = project.run(spec, "--from", "benchmark")
    assert ran.code == 2
    assert "has not done verify: not asked" in ran.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manifest.json", "[]"),
        ("manifest.json", '"x"'),
        ("manifest.json", "{"),
        ("manifest.json", "[" * 100_000),
        ("manifest.json", '{"reuse_key": "x", "stages": {}, "targets": {}, "files": []}'),
        ("manifest.json", '{"reuse_key": "x", "stages": [], "targets": {}, "files": {}}'),
        ("spec.json", "[]"),
        ("timings.json", "{"),
        ("timings.json", "[]"),
    ],
)
def test_a_damaged_earlier_build_is_passed_over_and_named(project, name, text):
    spec = project.spec()
    assert project.run(spec).code == 0
    assert project.run(spec).code == 0
    older, damaged = project.builds()
    (damaged / name).write_text(text)
    assert project.run(spec, "--from", "log").code == 0
    for build in (older, project.builds()[-1]):
        (build / name).write_text(text)
    ran = project.run(spec, "--from", "log")
    assert ran.code == 2
    assert "damaged" in ran.err
    assert name in ran.err
    assert "fault" not in ran.err
    assert project.run(spec).code == 0


def test_a_declared_state_that_there_is_not_is_named_with_its_line(project):
    ran = project.run(project.spec("states: {zz: {init: zeros}}\n"))
    assert ran.code == 2
    assert "leaky.yaml:9:10: the model has no tensor and no number called 'zz'" in ran.text


def test_force_and_from_exclude_each_other(project):
    spec = project.spec()
    project.run(spec)
    ran = project.run(spec, "--from", "verify", "--force")
    assert ran.code == 2
    assert "--force reuses nothing, and --from verify takes earlier stages" in ran.err
    assert len(project.builds()) == 1


# --- failure is local


def cut_short(folder):
    """Return a copyfile that leaves half of the model in target ``folder``, as a full disk does."""

    def copy(source, destination):
        shutil.copyfile(source, destination)
        if destination.parent.name == folder:
            destination.write_bytes(source.read_bytes()[:100])

    return copy


def test_a_target_that_cannot_be_built_does_not_stop_the_other(project, monkeypatch):
    spec = project.spec(TWO)
    monkeypatch.setattr(
        model_files,
        "shutil",
        type("shutil", (), {"copyfile": staticmethod(cut_short("one"))}),
    )
    ran = project.run(spec, "--json")
    assert ran.code == 3
    one, two = (ran.lines[0]["targets"][name] for name in ("one", "two"))
    assert one["passed"] is None
    assert "ONNX Runtime cannot load the model" in one["error"]
    assert two["passed"] is True
    assert two["steps"] == 4
    assert not (project.out / "leaky").exists()
    report = json.loads((project.builds()[0] / "verify" / "report.json").read_text())
    assert report["targets"]["one"]["error"]
    assert report["targets"]["two"]["passed"] is True


def test_a_target_that_is_not_equal_does_not_stop_the_other(project):
    strict = TWO.replace("two: {", "two: {verify: {atol: 0, rtol: 0, reason: exact}, ")
    model = (
        "import torch\nfrom torch import nn\n\n\nclass Leaky(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.cell = nn.Linear(3, 64)\n        self.out = nn.Linear(64, 3)\n"
        '        self.register_buffer("h", torch.zeros(1, 3))\n\n'
        "    def forward(self, x):\n"
        "        self.h = self.out(torch.softmax(self.cell(self.h.tanh() + x), -1))\n"
        "        return self.h\n"
    )
    ran = project.run(project.spec(strict, model=model), "--json")
    assert ran.code == 1
    assert ran.lines[0]["targets"]["one"]["passed"] is True
    assert ran.lines[0]["targets"]["two"]["passed"] is False


def test_a_stage_that_fails_skips_what_depends_on_it(project):
    ran = project.run(project.spec(model=REFUSED), "--json")
    assert ran.code == 3
    assert statuses(ran)["script"] == "failed"
    assert {statuses(ran)[name] for name in STAGES[1:6]} == {"skipped"}
    assert ran.lines[0]["targets"]["cpu"]["passed"] is None


# --- targets that this machine lacks


@pytest.fixture
def _no_cuda():
    """Skip where ONNX Runtime has CUDA."""
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has CUDA")


GPU = """\
targets:
  gpu: {runtime: onnxruntime, provider: cuda, optional: OPTIONAL}
  cpu: {runtime: onnxruntime, provider: cpu, threads: 1}
"""


@pytest.mark.usefixtures("_no_cuda")
def test_a_required_target_that_is_absent_ends_4_and_the_other_is_verified(project):
    ran = project.run(project.spec(GPU.replace("OPTIONAL", "false")), "--json")
    assert ran.code == 4
    line = ran.lines[0]
    assert line["status"] == "owed"
    assert line["targets"]["gpu"]["passed"] is None
    assert "CUDAExecutionProvider" in line["targets"]["gpu"]["owed"][0]
    assert line["targets"]["cpu"]["passed"] is True
    assert "onnxruntime-gpu" in ran.err
    assert not (project.out / "leaky").exists()
    report = json.loads((project.builds()[0] / "verify" / "report.json").read_text())
    assert report["targets"]["gpu"]["passed"] is None
    assert report["targets"]["gpu"]["owed"]


@pytest.mark.usefixtures("_no_cuda")
def test_an_optional_target_that_is_absent_lets_the_run_end_0_and_is_shown(project):
    ran = project.run(project.spec(GPU.replace("OPTIONAL", "true")))
    assert ran.code == 0
    row = next(line for line in ran.out.splitlines() if "gpu" in line and "│" in line)
    assert "owed" in row
    assert "CUDAExecutionProvider" in ran.out
    assert (project.out / "leaky" / "manifest.json").is_file()
    assert project.manifest()["targets"]["gpu"]["owed"]


@pytest.mark.usefixtures("_no_cuda")
def test_nothing_is_called_equal_where_nothing_could_be_checked(project):
    ran = project.run(project.spec(GPU.replace("OPTIONAL", "true")), "--target", "gpu")
    assert ran.code == 0
    assert "equal to eager" not in ran.out
    assert "not verified" in ran.out


@pytest.mark.usefixtures("_no_cuda")
def test_a_target_that_is_wrong_outranks_one_that_is_absent(project, monkeypatch):
    spec = project.spec(GPU.replace("OPTIONAL", "false"))
    monkeypatch.setattr(
        model_files,
        "shutil",
        type("shutil", (), {"copyfile": staticmethod(cut_short("cpu"))}),
    )
    assert project.run(spec).code == 3


# --- MLflow


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    log.prepare(resolve_store(None, path).uri, path)
    return path


def logged_runs(project, empty_store, spec):
    """Run ``spec``, logging to a store that is ready; return how it ran, parents and nested."""
    from mlflow import MlflowClient

    project.out.mkdir(exist_ok=True)
    store = project.out / "mlflow.db"
    if not store.exists():
        shutil.copyfile(empty_store, store)
    ran = project.run(spec)
    client = MlflowClient(tracking_uri=f"sqlite:///{store}")
    experiment = client.get_experiment_by_name("leaky")
    runs = client.search_runs([experiment.experiment_id])
    nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    return ran, parents, nested


def test_a_good_run_is_logged_with_a_nested_run_for_its_target(project, empty_store):
    ran, (parent,), (nested,) = logged_runs(project, empty_store, project.spec(mlflow=""))
    assert ran.code == 0
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["verdict"] == "PASSED"
    assert nested.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert nested.data.tags["target"] == "cpu"
    assert parent.info.run_id in ran.out
    assert f"sqlite:///{project.out / 'mlflow.db'}" in ran.out
    assert project.manifest()["mlflow"]["run_id"] == parent.info.run_id


def test_a_failed_run_is_logged_as_failed(project, empty_store):
    spec = project.spec(model=REFUSED, mlflow="")
    ran, (parent,), _ = logged_runs(project, empty_store, spec)
    assert ran.code == 3
    assert parent.info.status == "FAILED"
    assert parent.data.tags["verdict"] == "FAILED"
    assert project.manifest(project.builds()[0])["stages"]["log"]["status"] == "done"


def test_a_dead_server_costs_seconds_and_a_warning_unless_logging_is_required(project):
    spec = project.spec(mlflow='mlflow: {tracking_uri: "http://127.0.0.1:9"}')
    start = time.monotonic()
    ran = project.run(spec)
    assert ran.code == 0
    assert "not logged" in ran.out
    assert "127.0.0.1:9" in ran.out
    required = project.run(spec, "--set", "mlflow.required=true", "--json")
    assert required.code == 3
    assert statuses(required)["log"] == "failed"
    assert statuses(required)["verify"] == "done"
    assert "127.0.0.1:9" in required.lines[0]["error"]
    assert time.monotonic() - start < 30


# --- from Python


def test_run_spec_does_the_same_from_python(project):
    outcome = run_spec(load_spec(project.spec()), out=project.out)
    assert outcome.status == "passed"
    assert outcome.link == project.out / "leaky"
    runner = StatefulRunner(outcome.link / "targets" / "cpu" / "model.onnx")
    x = np.ones((2, 3), np.float32)
    steps = [runner.run({"x": x})["output"] for _ in range(3)]
    np.testing.assert_allclose([step[0, 0] for step in steps], [2.0, 3.0, 3.5])
