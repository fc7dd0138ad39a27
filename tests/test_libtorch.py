"""Targets of LibTorch from spec to verdict: alone, beside ONNX, and where one of the two fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import stateful_pipeline
from stateful_pipeline.errors import StageError
from stateful_pipeline.runner import run_spec
from stateful_pipeline.spec import load_spec
from stateful_pipeline.spot_check import SpotCheck
from stateful_pipeline.stages import in_process
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.log.records import child_record, parent_record
from stateful_pipeline.stages.script.subject import prepare

NATIVE = Path(stateful_pipeline.__file__).parent / "native"

ALONE = "targets: {native: {runtime: libtorch, threads: 1}}\n"
BOTH = """\
targets:
  cpu: {runtime: onnxruntime, threads: 1}
  native: {runtime: libtorch, threads: 1}
"""
SMALL = {"verify": "verify: {steps: 5, seeds: [0], reset_every: 3}"}
TIMED = {**SMALL, "benchmark": "benchmark: {steps: 5, warmup: 1}"}

RNN = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, decay=0.5):
        super().__init__()
        self.gru = nn.GRU(3, 2, batch_first=True)
        self.register_buffer("h", torch.zeros(1, 1, 2))

    def forward(self, x):
        y, self.h = self.gru(x, self.h)
        return y
"""

BROADCAST = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("h", torch.ones(1, 2))

    def forward(self, x):
        self.h = 0.5 * self.h + self.linear(x).mean(1)
        return self.h + x[:, 0, :2]
"""

RING = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.ring = torch.classes.stateful.TensorRing(3, 2)

    def forward(self, x):
        self.ring.push(self.linear(x).mean(0))
        return self.ring.mean(), self.ring.window()

    def forget(self) -> None:
        self.ring.reset()
"""
SOURCE = f"source: {{file: 'model.py:Leaky', libraries: ['{NATIVE / 'tensor_ring'}']}}"

LAMBDA = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.h + (lambda v: v)(x)  # no TorchScript
        return self.h
"""

LISTED = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = [""]

    def forward(self, x):
        self.seen.append(self.seen[-1] + "a")
        return x * len(self.seen[-1])
"""


def verified(folder):
    return json.loads((folder / "verify" / "report.json").read_text())["targets"]


def free_running(target):
    return [
        (rollout["sizes"], rollout["turns"], rollout["seed"])
        for rollout in target["rollouts"]
        if rollout["mode"] == "free-running"
    ]


def statuses(ran):
    return ran.lines[-1]["stages"]


# --- verdicts


def test_a_module_passes_in_a_process_at_the_sizes_and_turns_of_onnx(project):
    spec = project.spec(
        BOTH,
        model=BROADCAST,
        **TIMED,
        inputs="inputs: {x: {shape: [batch, time, 3]}}",
        **{"  x": ""},
        dynamic_axes="dynamic_axes: {batch: {min: 1, opt: 2, max: 3}, time: {opt: 2, max: 4}}",
    )
    ran = project.run(spec, "--json")
    assert ran.code == 0
    cpu, native = (verified(project.out / "leaky")[name] for name in ("cpu", "native"))
    assert free_running(native) == free_running(cpu)
    assert {sizes["batch"] for sizes, _, _ in free_running(native)} == {1, 2, 3}
    assert any(turns for _, turns, _ in free_running(native))
    assert native.keys() - cpu.keys() == {"states"}
    assert native["states"] == "inside the module"
    assert native["steps"] == 5
    assert native["reset"] == {"passed": True, "steps": 3}
    assert set(native["rollouts"][0]["tensors"]) == {"output"}
    timed = json.loads((project.out / "leaky" / "timings.json").read_text())["benchmark"]
    assert timed["native"].keys() == timed["cpu"].keys()
    assert 0 < timed["native"]["p50_ms"] <= timed["native"]["p99_ms"]
    assert timed["native"]["eager"]["p50_ms"] > 0
    page = (project.out / "leaky" / "report.html").read_text()
    assert "libtorch" in page
    assert "outputs alone are compared" in page


CREATING = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = [torch.ones(1, 3)]
        self.sum = None

    def forward(self, x):
        self.items[0] = self.items[0] * 0.5 + x
        if self.sum is None:
            self.sum = x
        self.sum = self.sum * 0.5 + x
        return self.sum + self.items[0]
"""


def test_states_in_lists_and_beside_one_that_the_first_call_creates_are_broadcast(project):
    ran = project.run(project.spec(BOTH, model=CREATING, **SMALL))
    assert ran.code == 0
    native = verified(project.out / "leaky")["native"]
    assert {sizes["batch"] for sizes, _, _ in free_running(native)} == {1, 2, 3}


HELD = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.ones(1, 3))

    def forward(self, x):
        STEP
        return y
"""


def test_a_file_whose_states_reduce_over_a_batch_that_it_does_not_hold_fails(project):
    model = HELD.replace("STEP", "y, self.h = x - self.h.sum(), self.h * 0.5 + x")
    ran = project.run(project.spec(BOTH, model=model, **SMALL))
    assert ran.code == 1
    found = verified(project.builds()[-1])
    assert (found["cpu"]["passed"], found["native"]["passed"]) == (True, False)
    said = " ".join(ran.out.split())
    assert "state 'h' has size [1, 3] in model.pt, where eager PyTorch begins with [2, 3]" in said
    assert "construct the module for the size that is wanted" in said


def test_a_file_that_cannot_take_another_batch_than_it_holds_is_no_pass(project):
    model = HELD.replace("STEP", "y = self.h.mul_(0.5).add_(x) * 2")
    ran = project.run(project.spec(BOTH, model=model, **SMALL))
    assert ran.code == 3
    found = verified(project.builds()[-1])
    assert (found["cpu"]["passed"], found["native"]["passed"]) == (True, None)
    error = found["native"]["error"]
    assert "model.py:11: verify: the target does not run at batch=2: infer: step 0: " in error
    assert "output with shape [1, 3] doesn't match the broadcast shape [2, 3]" in error
    assert "state 'h' has size [1, 3] in model.pt" in error
    fixed = {"inputs": "inputs: {x: {shape: [1, 3]}}", "  x": "", "dynamic_axes": ""}
    assert project.run(project.spec(BOTH, model=model, **SMALL, **fixed)).code == 0


def test_a_module_with_an_object_of_cpp_needs_no_export(project):
    source = SOURCE.replace("libraries", "reset: forget, libraries")
    ran = project.run(project.spec(ALONE, model=RING, **TIMED, source=source), "--json")
    assert ran.code == 0
    assert statuses(ran) == {
        "script": "done",
        **dict.fromkeys(("rewrite", "export"), "not needed"),
        **dict.fromkeys(("build", "verify", "benchmark"), "done"),
        "log": "not asked",
    }
    assert "rewrite" not in ran.err
    folder = project.out / "leaky"
    native = verified(folder)["native"]
    assert {rollout["sizes"]["batch"] for rollout in native["rollouts"]} == {1, 2, 3}
    assert native["rollouts"][-1]["turns"] == {"batch": [1, 2, 3, 2]}
    assert set(native["rollouts"][0]["tensors"]) == {"output_0", "output_1"}
    manifest = project.manifest()
    assert manifest["stages"]["script"]["notes"]["scripted"]["reset"] == "forget"
    built = manifest["stages"]["build"]["notes"]["libtorch"]["native"]
    assert built["libraries"] == ["libtensor_ring.so"]
    assert built["command"].startswith("./infer model.pt --library libtensor_ring.so ")
    names = {path.name for path in (folder / "targets" / "native").iterdir()}
    assert names == {"infer", "model.pt", "libtensor_ring.so"}
    assert not (folder / "export").exists()


def test_another_method_constants_and_a_declared_initial_value(project):
    model = RNN.replace("forward(self, x)", "step(self, x, gain: float)").replace(
        "self.gru(x,", "self.gru(x * gain,"
    )
    extra = "states: {h: {init: {value: 0.5}}}\n"
    inputs = "inputs: {x: {shape: [1, 2, 3]}, gain: {value: 2}}"
    source = 'source: {file: "model.py:Leaky", method: step}'
    fixed = {"  x": "", "dynamic_axes": "dynamic_axes: {}"}
    spec = project.spec(BOTH + extra, model=model, **SMALL, inputs=inputs, source=source, **fixed)
    assert project.run(spec).code == 0
    both = verified(project.out / "leaky")["native"]
    alone = project.run(spec, "--target", "native")
    assert alone.code == 0
    assert verified(project.out / "leaky")["native"]["states"] == "inside the module"
    assert both["max_abs_error"] == 0.0


def test_a_size_that_the_module_does_not_take_as_it_is_is_named(project):
    inputs = {"inputs": "inputs: {x: {shape: [batch, 2, 3]}}", "  x": ""}
    ran = project.run(project.spec(ALONE, model=RNN, **SMALL, **inputs))
    assert ran.code == 3
    assert "verify: at batch=2: " in ran.out
    assert "Expected hidden" in ran.out
    assert "let `dynamic_axes` be the sizes that it takes" in ran.out


def test_a_source_that_is_a_graph_already_has_no_torchscript(project):
    spec = project.spec(**SMALL)
    assert project.run(spec, "--to", "export").code == 0
    shutil.copyfile(project.out / "leaky" / "export" / "model.onnx", project.folder / "leaky.onnx")
    states = "states: {h: {input: h_in, output: h_out, init: zeros}}\n"
    ran = project.run(project.spec(ALONE + states, source="source: {onnx: leaky.onnx}", **SMALL))
    assert ran.code == 3
    assert "leaky.yaml:2:" in ran.out
    assert "a source of `onnx` has no TorchScript" in ran.out


# --- what is not equal


def tampered(change):
    """Return ``run_infer`` with what it returned changed."""
    real = in_process.run_infer

    def run(model, libraries, inputs, **options):
        done = real(model, libraries, inputs, **options)
        return replace(done, outputs=change(list(done.outputs)))

    return run


def off_at_step_two(outputs):
    return [output + (index == 2) for index, output in enumerate(outputs)]


def off_after_the_reset(outputs):
    return [*outputs[:-1], outputs[-1] + 1e-7]


def one_tensor_too_many(outputs):
    return [(output, output) for output in outputs]


def test_a_process_that_is_wrong_once_fails_its_target_alone(project, monkeypatch):
    monkeypatch.setattr(in_process, "run_infer", tampered(off_at_step_two))
    ran = project.run(project.spec(BOTH, **SMALL))
    assert ran.code == 1
    found = verified(project.builds()[-1])
    assert (found["cpu"]["passed"], found["native"]["passed"]) == (True, False)
    bad = found["native"]["first_bad"]
    assert (bad["step"], bad["tensor"], bad["mode"]) == (2, "output", "free-running")
    assert "native: output 'output' is off from step 2 on" in ran.out


def test_a_reset_that_does_not_give_the_same_bits_fails(project, monkeypatch):
    monkeypatch.setattr(in_process, "run_infer", tampered(off_after_the_reset))
    ran = project.run(project.spec(ALONE, **SMALL))
    assert ran.code == 1
    assert "native: reset does not restore the first steps" in ran.out


def test_other_outputs_than_those_of_eager_are_an_error_of_the_target(project, monkeypatch):
    monkeypatch.setattr(in_process, "run_infer", tampered(one_tensor_too_many))
    ran = project.run(project.spec(ALONE, **SMALL))
    assert ran.code == 3
    assert "step 0 returns 2 tensors, and 1 in eager" in ran.out


def test_a_process_that_ends_with_an_error_does_not_stop_the_other_target(project, monkeypatch):
    def crash(*_, **__):
        raise StageError("infer: step 3: crashed, signal 11", stage="script")

    monkeypatch.setattr(in_process, "run_infer", crash)
    ran = project.run(project.spec(BOTH, **SMALL), "--json")
    assert ran.code == 3
    native, cpu = (ran.lines[0]["targets"][name] for name in ("native", "cpu"))
    assert "the target does not run at batch=2: infer: step 3: crashed" in native["error"]
    assert (native["passed"], cpu["passed"]) == (None, True)


# --- failure is local


def test_a_state_that_cannot_become_onnx_ends_3_and_passes_in_a_process(project):
    spec = project.spec(BOTH, model=RING, **SMALL, source=SOURCE)
    outcome = run_spec(load_spec(spec), out=project.out)
    assert (outcome.status, int(outcome.exit_code)) == ("refused", 3)
    assert outcome.targets["native"].passed is True
    assert "C++ class stateful.TensorRing" in str(outcome.targets["cpu"].error)
    manifest = project.manifest(outcome.folder)
    assert manifest["targets"]["native"]["passed"] is True
    assert "stateful.TensorRing" in manifest["targets"]["cpu"]["error"]
    assert {n: stage["status"] for n, stage in manifest["stages"].items() if n != "log"} == {
        "script": "failed",
        **dict.fromkeys(("rewrite", "export"), "skipped"),
        **dict.fromkeys(("build", "verify", "benchmark"), "done"),
    }
    assert verified(outcome.folder)["cpu"]["error"] == manifest["targets"]["cpu"]["error"]
    assert verified(outcome.folder)["native"]["passed"] is True
    page = (outcome.folder / "report.html").read_text()
    assert 'class="PASSED"><h2>' in page
    assert 'class="FAILED"><h2>' in page
    assert parent_record(outcome.summary).tags["verdict"] == "FAILED"
    verdicts = {n: child_record(outcome.summary, n).tags["verdict"] for n in ("cpu", "native")}
    assert verdicts == {"cpu": "FAILED", "native": "PASSED"}
    assert not (project.out / "leaky").exists()


def test_the_terminal_shows_both_verdicts(project):
    ran = project.run(project.spec(BOTH, model=RING, **SMALL, source=SOURCE))
    assert ran.code == 3
    rows = {name: line for line in ran.out.splitlines() for name in ("cpu", "native") if name in
            line and "│" in line}  # fmt: skip
    assert "PASSED" in rows["native"]
    assert "FAILED" in rows["cpu"]
    assert "cpu: state 'ring'" in ran.out


def test_an_optional_target_that_is_refused_ends_3_too(project):
    optional = BOTH.replace("onnxruntime,", "onnxruntime, optional: true,")
    ran = project.run(project.spec(optional, model=RING, **SMALL, source=SOURCE), "--json")
    assert (ran.code, ran.lines[0]["status"]) == (3, "failed")


def test_a_module_without_torchscript_passes_on_onnx_alone(project):
    ran = project.run(project.spec(BOTH, model=LAMBDA, **SMALL), "--json")
    assert ran.code == 3
    line = ran.lines[0]
    assert line["targets"]["cpu"]["passed"] is True
    assert line["targets"]["native"]["passed"] is None
    assert "model.py:11: script: torch.jit.script refused" in line["targets"]["native"]["error"]
    assert (statuses(ran)["script"], statuses(ran)["export"]) == ("failed", "done")


def test_a_failed_export_stops_onnx_alone(project, monkeypatch):
    import stateful_pipeline.stages.export.run as export_stage

    def fail(*args, **kwargs):
        raise StageError("no such operator", stage="export")

    monkeypatch.setattr(export_stage, "export_program", fail)
    ran = project.run(project.spec(BOTH, **SMALL), "--json")
    assert ran.code == 3
    assert statuses(ran)["export"] == "failed"
    targets = ran.lines[0]["targets"]
    assert targets["native"]["passed"] is True
    assert "no such operator" in targets["cpu"]["error"]


def test_nothing_runs_on_where_neither_artifact_could_be_made(project):
    model = LISTED.replace("x * len", "(lambda v: v)(x) * len")
    ran = project.run(project.spec(BOTH, model=model, **SMALL), "--json")
    assert ran.code == 3
    assert {statuses(ran)[name] for name in ("build", "verify", "benchmark")} == {"skipped"}
    targets = ran.lines[0]["targets"]
    assert "Lambda" in targets["native"]["error"]
    assert targets["cpu"]["error"] != targets["native"]["error"]


def test_alone_a_refusal_is_the_errors_of_the_run_as_for_onnx(project):
    ran = project.run(project.spec(ALONE, model=LAMBDA, **SMALL), "--json")
    assert ran.code == 3
    line = ran.lines[0]
    assert "torch.jit.script refused" in line["error"]
    assert line["targets"]["native"]["error"] is None
    assert statuses(ran)["build"] == "skipped"


# --- what this machine lacks


def test_a_machine_without_a_compiler_ends_4_and_says_what_to_install(project, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    ran = project.run(project.spec(BOTH, **SMALL), "--json")
    assert (ran.code, ran.lines[0]["status"]) == (4, "owed")
    native = ran.lines[0]["targets"]["native"]
    assert "no C++ compiler 'no-such-compiler'" in native["error"]
    assert "apt install g++" in native["error"]
    assert ran.lines[0]["targets"]["cpu"]["passed"] is True
    optional = BOTH.replace("libtorch,", "libtorch, optional: true,")
    assert project.run(project.spec(optional, **SMALL)).code == 0
    assert "not available" in project.run(project.spec(optional, **SMALL)).out


def test_the_table_of_targets_says_what_is_missing(project, monkeypatch):
    def row():
        rows = json.loads(project.cli("targets", "--json").out)
        [found] = [row for row in rows if row["runtime"] == "libtorch"]
        return found

    found = row()
    assert (found["builds"], found["runs"]) == (True, True)
    assert found["reason"].startswith("torch 2")
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = row()
    assert (found["builds"], found["runs"]) == (False, False)
    assert "apt install g++" in found["reason"]


# --- reuse


def script_of(ran):
    return statuses(ran)["script"]


def test_a_build_without_an_export_is_reused(project):
    spec = project.spec(ALONE, **TIMED)
    assert script_of(project.run(spec, "--json")) == "done"
    again = project.run(spec, "--json")
    assert (script_of(again), statuses(again)["export"]) == ("reused", "not needed")
    assert again.code == 0
    timed = project.run(spec, "--from", "benchmark", "--json")
    assert timed.code == 0
    assert {statuses(timed)[name] for name in ("script", "build", "verify")} == {"reused"}
    assert timed.lines[0]["targets"]["native"]["passed"] is True
    assert timed.lines[0]["targets"]["native"]["p50_ms"] > 0


def test_no_build_is_taken_over_that_lacks_what_a_target_needs(project):
    spec = project.spec(BOTH, **SMALL)
    assert script_of(project.run(spec, "--target", "cpu", "--json")) == "done"
    assert script_of(project.run(spec, "--target", "native", "--json")) == "done"
    assert script_of(project.run(spec, "--json")) == "done"
    assert project.run(spec, "--from", "verify").code == 0
    for name in ("cpu", "native"):
        ran = project.run(spec, "--target", name, "--json")
        assert (ran.code, script_of(ran)) == (0, "reused")


def test_a_scripted_module_that_no_longer_equals_the_module_is_not_reused(project):
    spec = project.spec(ALONE, **SMALL)
    assert project.run(spec).code == 0
    assert project.run(spec, "--set", "source.kwargs.decay=0.25").code == 0
    quarter, half = project.builds()[1], project.builds()[0]
    loaded = load_spec(spec)
    artifacts = Artifacts(loaded, project.folder, print, subject=prepare(loaded))
    artifacts.targets = {"native": TargetBuild("native")}
    check = SpotCheck(artifacts, "script")
    assert check.equals(half)
    assert not check.equals(quarter)
    assert "output 'output' is" in check.why_not
    shutil.copyfile(quarter / "script" / "model.pt", half / "script" / "model.pt")
    assert not check.equals(half)
