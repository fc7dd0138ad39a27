"""The command line: what each verb does, and what it ends with."""

import json
import re
import runpy
from pathlib import Path

import pytest

from stateful_pipeline import cli
from stateful_pipeline.spec import json_schema

BROKEN = runpy.run_path(str(Path(__file__).parent / "spec" / "broken_specs.py"))["BROKEN"]

ROUNDING = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 64)
        self.outer = nn.Linear(64, 3)
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.outer(torch.softmax(self.inner(torch.tanh(self.h) + x), -1))
        return self.h.exp()
"""

BRANCHING = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        if x.sum() > 0:
            self.h = self.h + (lambda v: v)(x)  # no TorchScript either
        return self.h
"""

RANDOM = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.h + x
        return self.h + torch.rand_like(x)
"""

LEAVING = """\
import torch
from torch import nn


class Left(BaseException):
    pass


class Leaky(nn.Module):
    def __init__(self, early=False):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))
        if early:
            raise Left("too early")

    def forward(self, x):
        self.h = self.h + x
        raise Left("in the middle")
"""

RAISING = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.h + x
        return self.table["missing"]

    @property
    def table(self):
        return {}
"""


def line_of(text, part):
    return next(i for i, line in enumerate(text.splitlines(), 1) if part in line)


# --- exit codes


def test_a_model_that_is_equal_ends_0_and_says_so(project):
    ran = project.run(project.spec())
    assert ran.code == 0
    assert "PASSED" in ran.out
    assert "equal to eager PyTorch" in ran.out
    assert str(project.out / "leaky" / "report.html") in ran.out
    assert ran.err == ""


def test_a_model_that_is_not_equal_ends_1_with_the_first_bad_step_and_tensor(project):
    spec = project.spec(model=ROUNDING, verify="verify: {steps: 8, atol: 0, rtol: 0}")
    ran = project.run(spec, "--json")
    assert ran.code == 1
    report = json.loads((Path(ran.lines[0]["build"]) / "verify" / "report.json").read_text())
    bad = report["targets"]["cpu"]["first_bad"]
    assert f"'{bad['tensor']}' is off from step {bad['step']} on" in ran.err
    assert "FAILED" in ran.err
    assert ran.lines[0]["targets"]["cpu"]["passed"] is False


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.id)
def test_a_broken_spec_ends_2_with_file_and_line(project, broken):
    path = project.folder / "spec.yaml"
    path.write_bytes(broken.text if isinstance(broken.text, bytes) else broken.text.encode())
    for name, text in broken.files.items():
        project.write(name, text)
    at = project.folder / broken.file
    place = f"{at}:{broken.line}" if broken.line else str(at)
    options = [] if broken.needs == "load" else ["--set", "mlflow.enabled=false"]
    ran = project.run(path, *options)
    assert ran.code == 2
    assert place in ran.err
    assert not project.out.exists() or not list(project.out.glob(".builds/*/*"))
    if broken.needs != "run":
        checked = project.cli("check", path)
        assert checked.code == 2
        assert place in checked.err
        assert broken.word in checked.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["run"], "SPEC"),
        (["run", "leaky.yaml", "--nonsense"], "--nonsense"),
        (["rnu", "leaky.yaml"], "rnu"),
        (["run", "leaky.yaml", "--target", "gpu"], "the targets are: cpu"),
        (["run", "leaky.yaml", "--to", "deploy"], "the stages are: script, rewrite, export"),
        (["run", "leaky.yaml", "--from", "verfy"], "no stage 'verfy'"),
        (["run", "leaky.yaml", "--from", "verify", "--to", "export"], "comes after"),
        (["run", "leaky.yaml", "--set", "verify.stps=3"], "did you mean `steps`?"),
        (["run", "leaky.yaml", "--set", "verify.steps"], "KEY=VALUE"),
        (["run", "gone.yaml"], "gone.yaml"),
        (["inspect", "leaky.yaml", "more.yaml"], "more.yaml"),
        (["check", "gone.yaml"], "gone.yaml"),
    ],
)
def test_a_wrong_call_ends_2_and_says_what_would_be_right(project, arguments, word):
    project.spec()
    ran = project.cli(*arguments)
    assert ran.code == 2
    assert word in ran.err
    assert not (project.folder / "build").exists()


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (BRANCHING, "if x.sum()"),
        (RANDOM, "rand_like"),
        (RAISING, '["missing"]'),
        (LEAVING, '"in the middle"'),
    ],
)
def test_a_model_that_is_refused_or_fails_ends_3_with_the_users_line(project, model, line):
    ran = project.run(project.spec(model=model))
    assert ran.code == 3
    assert f"model.py:{line_of(model, line)}" in ran.text
    assert "equal to eager" not in ran.text
    build = project.builds()[-1]
    assert str(build) in ran.out
    assert project.manifest(build)["status"] in ("failed", "refused")
    assert not (project.out / "leaky").exists()


def test_a_class_that_cannot_be_constructed_ends_2_with_its_line_and_the_specs(project):
    model = 'class Leaky:\n    def __init__(self):\n        raise OSError("no weights here")\n'
    ran = project.run(project.spec(model=model))
    assert ran.code == 2
    assert "leaky.yaml:2" in ran.err
    assert "model.py:3" in ran.err
    assert "no weights here" in ran.err


def test_an_exception_that_is_no_exception_is_named_wherever_the_model_raises_it(project):
    spec = project.spec(model=LEAVING)
    place = f"model.py:{line_of(LEAVING, 'in the middle')}"
    inspected = project.cli("inspect", spec)
    assert inspected.code == 3
    assert place in inspected.err
    assert "Left: in the middle" in inspected.err
    for verb in (["run", "--out", project.out], ["inspect"], ["check", "--run-code"]):
        ran = project.cli(*verb, spec, "--set", "source.kwargs.early=true")
        assert ran.code == 2
        assert f"model.py:{line_of(LEAVING, 'too early')}" in ran.err


def test_a_keyboard_interrupt_of_the_model_interrupts(project):
    model = LEAVING.replace('Left("in the middle")', "KeyboardInterrupt")
    ran = project.run(project.spec(model=model), "--json")
    assert ran.code == 130
    assert ran.lines[0]["status"] == "interrupted"
    assert re.search(r"script .* interrupted", ran.err)
    assert "KeyboardInterrupt" not in ran.err


@pytest.mark.parametrize("shape", ["[batch, 4]", "[batch]"])
def test_a_declared_state_of_another_shape_is_refused_with_its_line(project, shape):
    ran = project.run(project.spec(f"states: {{h: {{shape: {shape}}}}}\n"))
    assert ran.code == 2
    assert re.search(r"leaky\.yaml:\d+:\d+: .*declared as \[batch", ran.out)


def test_an_interrupt_while_a_command_still_loads_has_its_line_of_json(project, monkeypatch):
    import stateful_pipeline.spec

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(stateful_pipeline.spec, "plan_runs", interrupt)
    spec = project.spec()
    ran = project.cli("run", spec, "later.yaml", "--json")
    assert ran.code == 130
    (line,) = ran.lines
    assert line["spec"] == str(spec)
    assert line["status"] == "interrupted"


def test_a_model_file_that_ends_the_process_does_not_end_it_well(project):
    ran = project.run(project.spec(model="import sys\n\nsys.exit(0)\n"))
    assert ran.code in (2, 3)
    assert "leaky.yaml:2" in ran.err


def test_of_several_specs_the_worst_code_is_the_exit_code(project):
    good = project.spec()
    broken = project.write("broken.yaml", "name: [\n")
    unequal = project.write(
        "unequal.yaml",
        good.read_text()
        .replace("model.py", "rounding.py")
        .replace("name: leaky", "name: unequal")
        .replace("{steps: 4}", "{steps: 8, atol: 0, rtol: 0}"),
    )
    project.write("rounding.py", ROUNDING)
    refused = project.write(
        "refused.yaml",
        good.read_text().replace("model.py", "branching.py").replace("leaky", "refused"),
    )
    project.write("branching.py", BRANCHING)
    ran = project.cli("run", good, unequal, broken, refused, "--out", project.out, "--json")
    assert [line["exit_code"] for line in ran.lines] == [0, 1, 2, 3]
    assert ran.code == 3
    assert project.cli("run", good, unequal, broken, "--out", project.out).code == 2
    assert project.cli("run", good, unequal, "--out", project.out).code == 1
    assert project.cli("check", good, broken).code == 2


def test_a_fault_of_the_program_is_a_message_and_3_and_the_next_spec_still_runs(
    project, monkeypatch
):
    import stateful_pipeline.runner as runner

    def broken(*args, **kwargs):
        raise RuntimeError("out of luck")

    spec = project.spec()
    monkeypatch.setattr(runner, "write_report", broken)
    ran = project.cli("run", spec, "gone.yaml", "--out", project.out, "--json")
    assert ran.code == 3
    assert [line["exit_code"] for line in ran.lines] == [3, 2]
    assert "out of luck" in ran.err
    assert "--debug" in ran.err


def test_debug_shows_the_traceback_that_is_hidden_otherwise(project):
    spec = project.spec(model=RAISING)
    assert "Traceback" in project.cli("--debug", "run", spec, "--out", project.out).err
    broken = project.write("broken.yaml", "name: [\n")
    assert "Traceback" in project.cli("--debug", "check", broken).err
    assert "Traceback" in project.cli("check", broken, "--debug").err
    assert "Traceback" not in project.cli("check", broken).err
    assert "Traceback" not in project.cli("check", broken).err


# --- options of run


def test_json_gives_one_line_per_spec_on_stdout_and_peoples_words_on_stderr(project):
    spec = project.spec()
    ran = project.cli("run", spec, "gone.yaml", "--out", project.out, "--json")
    good, gone = ran.lines
    assert ran.code == 2
    assert good["spec"] == str(spec)
    assert good["name"] == "leaky"
    assert good["status"] == "passed"
    assert good["build"] == str(project.out / "leaky")
    assert good["stages"]["verify"] == "done"
    assert good["stages"]["log"] == "not asked"
    assert good["targets"]["cpu"]["passed"] is True
    assert good["targets"]["cpu"]["steps"] == 4
    assert gone["exit_code"] == 2
    assert gone["status"] == "wrong"
    assert "gone.yaml" in gone["error"]
    assert "PASSED" in ran.err
    assert "gone.yaml" in ran.err


def test_set_overrides_the_spec_and_target_chooses(project):
    spec = project.spec(
        "targets:\n"
        "  one: {runtime: onnxruntime, threads: 1}\n"
        "  two: {runtime: onnxruntime, threads: 1}\n"
    )
    ran = project.run(spec, "--set", "verify.steps=6", "--target", "two", "--json")
    assert ran.code == 0
    assert list(ran.lines[0]["targets"]) == ["two"]
    assert ran.lines[0]["targets"]["two"]["steps"] == 6
    assert not (project.out / "leaky" / "targets" / "one").exists()


def test_to_stops_after_a_stage_and_claims_no_equality(project):
    ran = project.run(project.spec(), "--to", "export", "--json")
    assert ran.code == 0
    line = ran.lines[0]
    assert line["status"] == "built"
    assert line["targets"]["cpu"]["passed"] is None
    assert line["stages"]["build"] == "not asked"
    assert "not verified" in ran.err
    assert "equal to eager" not in ran.err
    assert (project.out / "leaky" / "export" / "model.onnx").is_file()


def test_a_build_that_was_not_verified_takes_the_place_of_no_verified_one(project):
    spec = project.spec()
    project.run(spec)
    verified = (project.out / "leaky").resolve()
    ran = project.run(spec, "--to", "export", "--json")
    assert ran.code == 0
    assert (project.out / "leaky").resolve() == verified
    (said,) = (line for line in ran.err.splitlines() if "stays the build that was verified" in line)
    assert str(project.out / "leaky") in said
    (partial,) = set(project.builds()) - {verified}
    assert ran.lines[0]["build"] == str(partial)
    assert f"build   {partial}" in ran.err
    assert project.run(spec).code == 0
    assert (project.out / "leaky").resolve() not in (verified, partial)


def test_a_build_that_was_not_verified_takes_the_place_of_another_such_one(project):
    spec = project.spec()
    for _ in range(2):
        assert project.run(spec, "--to", "build").code == 0
        assert (project.out / "leaky").resolve() == project.builds()[-1]


def test_from_without_an_earlier_build_ends_2_and_leaves_nothing(project):
    ran = project.run(project.spec(), "--from", "verify")
    assert ran.code == 2
    assert "no earlier build" in ran.err
    assert not list(project.out.glob(".builds/*/*"))


# --- other verbs


def test_check_runs_no_code_of_the_users_unless_asked(project):
    spec = project.spec(model='open("ran", "w").close()\n' + project_model())
    ran = project.cli("check", spec)
    assert ran.code == 0
    assert f"{spec}: good" in ran.out
    assert not (project.folder / "ran").exists()
    assert project.cli("check", spec, "--run-code").code == 0
    assert (project.folder / "ran").exists()


def project_model():
    return (
        "from torch import nn\n\n\nclass Leaky(nn.Module):\n"
        "    def forward(self, x):\n        return x\n"
    )


def test_check_with_run_code_finds_what_only_running_can_tell(project):
    spec = project.spec(model=project_model().replace("(self, x)", "(self, y)"))
    assert project.cli("check", spec).code == 0
    ran = project.cli("check", spec, "--run-code")
    assert ran.code == 2
    assert f"{spec}:4" in ran.err
    assert "takes no 'x'" in ran.err


def test_check_goes_on_after_a_bad_spec(project):
    spec = project.spec()
    ran = project.cli("check", "gone.yaml", spec)
    assert ran.code == 2
    assert f"{spec}: good" in ran.out


def test_init_writes_a_spec_and_refuses_to_overwrite_one(project):
    assert project.cli("init", "mine").code == 0
    path = project.folder / "mine.yaml"
    text = path.read_text()
    path.write_text("precious")
    ran = project.cli("init", "mine")
    assert ran.code == 2
    assert "--force" in ran.err
    assert path.read_text() == "precious"
    assert project.cli("init", "mine", "--force").code == 0
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["a/b", "..", "", "a b"])
def test_init_refuses_a_name_that_is_no_file_name(project, name):
    ran = project.cli("init", name)
    assert ran.code == 2
    assert list(project.folder.iterdir()) == []


def test_what_init_writes_runs(project):
    project.cli("init", "mine")
    assert project.cli("check", "mine.yaml", "--run-code").code == 0
    assert project.cli("run", "mine.yaml", "--set", "mlflow.enabled=false").code == 0
    assert (project.folder / "build" / "mine" / "export" / "model.onnx").is_file()


def test_schema_prints_the_shipped_schema(project):
    ran = project.cli("schema")
    assert ran.code == 0
    shipped = Path(cli.__file__).parent / "spec" / "schema.json"
    assert ran.out == shipped.read_text()
    assert json.loads(ran.out) == json_schema()


def test_targets_says_what_this_machine_can_do_and_why_not(project):
    ran = project.cli("targets", "--json")
    assert ran.code == 0
    rows = {(row["runtime"], row["provider"]): row for row in json.loads(ran.out)}
    assert rows["onnxruntime", "cpu"]["builds"] is True
    assert rows["onnxruntime", "cpu"]["runs"] is True
    assert all(row["reason"] for row in rows.values())
    shown = project.cli("targets").out
    assert all(runtime in shown for runtime, _ in rows)


# --- jobs


JOB = """\
schema: 1
kind: job
name: nightly
specs: [leaky.yaml]
set: {verify.steps: 5}
matrix: {source.kwargs.decay: [0.25, 0.5]}
"""


def test_a_job_runs_every_spec_in_every_combination(project):
    project.spec()
    job = project.write("job.yaml", JOB)
    assert project.cli("check", job).code == 0
    ran = project.run(job, "--json")
    assert ran.code == 0
    assert [line["targets"]["cpu"]["steps"] for line in ran.lines] == [5, 5]
    names = [line["name"] for line in ran.lines]
    assert len(set(names)) == 2
    for name in names:
        assert (project.out / name / "manifest.json").is_file()


def test_a_gate_that_is_missed_ends_1_and_does_not_switch_the_link(project):
    project.spec(model=ROUNDING)
    job = project.write("job.yaml", JOB.partition("matrix")[0] + "gates: {max_abs_error: 1e-30}\n")
    ran = project.run(job, "--json")
    assert ran.code == 1
    assert "max_abs_error" in ran.lines[0]["missed_gates"][0]
    assert "gate missed" in ran.err
    assert ran.lines[0]["targets"]["cpu"]["passed"] is True
    assert not (project.out / "leaky").exists()


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        (JOB.replace("[leaky.yaml]", '["none/*.yaml"]'), 4, "matches no spec"),
        (JOB + "gate: {}\n", 7, "gates"),
        (JOB.replace("[0.25, 0.5]", "[]"), 6, "least 1"),
        (JOB.replace("[leaky.yaml]", "[leaky.yaml, job.yaml]"), 4, "is a job, not a spec"),
    ],
)
def test_a_broken_job_ends_2_with_file_and_line(project, text, line, word):
    project.spec()
    job = project.write("job.yaml", text)
    for ran in (project.run(job), project.cli("check", job)):
        assert ran.code == 2
        assert f"{job}:{line}" in ran.err
        assert ran.err.count(word) == 1


def test_a_spec_of_a_job_that_cannot_be_read_does_not_stop_the_others(project):
    project.spec()
    project.write("broken.yaml", "name: [\n")
    job = project.write("job.yaml", 'kind: job\nname: nightly\nspecs: ["*.yaml"]\n')
    ran = project.run(job, "--json")
    assert ran.code == 2
    assert [line["status"] for line in ran.lines] == ["wrong", "passed"]
