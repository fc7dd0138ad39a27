"""What no key can know: a module that reads a file, a variable, or code that it executes."""

import pytest

from stateful_pipeline.spec import load_spec
from stateful_pipeline.spot_check import SpotCheck
from stateful_pipeline.stages.artifacts import Artifacts, TargetBuild
from stateful_pipeline.stages.script.subject import prepare

READING = """\
import os
import pathlib

import torch
from torch import nn

HERE = pathlib.Path(__file__).parent


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        gain = float((HERE / "gain.txt").read_text())
        names = {}
        exec((HERE / "scale.src").read_text(), names)
        self.h = 0.5 * self.h + x * float(os.environ.get("LEAKY_GAIN", "1"))
        return gain * names["scale"]() * self.h
"""


@pytest.fixture
def reading(project):
    project.write("gain.txt", "2.0")
    project.write("scale.src", "def scale(): return 3.0")
    spec = project.spec(model=READING)
    assert project.run(spec).code == 0
    return spec


def export_of(ran):
    return ran.lines[-1]["stages"]["export"]


def change_a_file(project, patch):
    project.write("gain.txt", "4.0")


def change_executed_code(project, patch):
    project.write("scale.src", "def scale(): return 5.0")


def change_the_environment(project, patch):
    patch.setenv("LEAKY_GAIN", "1.5")


CHANGES = [change_a_file, change_executed_code, change_the_environment]


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_key_can_know_is_noticed_and_exported_anew(project, reading, monkeypatch, change):
    assert export_of(project.run(reading, "--json")) == "reused"
    change(project, monkeypatch)
    ran = project.run(reading, "--json")
    assert ran.code == 0
    assert export_of(ran) == "done"
    assert export_of(project.run(reading, "--json")) == "reused"


def test_an_earlier_build_fits_again_when_the_change_is_undone(project, reading):
    project.write("gain.txt", "4.0")
    project.run(reading, "--to", "export")
    project.write("gain.txt", "2.0")
    assert export_of(project.run(reading, "--json")) == "reused"


@pytest.mark.parametrize("first", ["build", "verify", "benchmark", "log"])
def test_from_takes_no_build_that_no_longer_equals_the_module(project, reading, first):
    project.write("gain.txt", "4.0")
    ran = project.run(reading, "--from", first)
    assert ran.code == 2
    assert "no longer equals the module: output 'output' is" in ran.err
    assert len(project.builds()) == 1


def test_a_module_that_raises_now_is_run_anew_and_says_so(project, reading):
    (project.folder / "gain.txt").unlink()
    ran = project.run(reading, "--json")
    assert ran.code == 3
    assert ran.lines[0]["stages"]["script"] == "failed"
    assert "gain.txt" in ran.lines[0]["error"]
    ran = project.run(reading, "--from", "verify")
    assert ran.code == 2
    assert "no longer equals the module" in ran.err


def test_a_module_whose_states_are_others_now_is_not_equal(project, reading):
    project.write("scale.src", "def scale(): return 3.0")
    project.write("gain.txt", "2.0")
    spec = load_spec(reading)
    subject = prepare(spec)
    artifacts = Artifacts(spec, project.folder, print, subject=subject)
    artifacts.targets = {"cpu": TargetBuild("cpu")}
    build = project.builds()[0]
    check = SpotCheck(artifacts, "export")
    assert check.equals(build)
    artifacts.discovery = None
    spec = load_spec(project.spec(model=READING.replace("self.h", "self.g").replace('"h"', '"g"')))
    artifacts.subject = prepare(spec)
    assert not check.equals(build)
    assert "its states are ['h'], the module's ['g']" in check.why_not


def test_a_target_may_be_looser_than_the_rest_of_the_spec(project):
    loose = "targets: {cpu: {runtime: onnxruntime, verify: {atol: 10, reason: a test}}}"
    spec = project.spec(loose, verify="verify: {steps: 4, atol: 0, rtol: 0}")
    assert project.run(spec).code == 0
    assert project.run(spec, "--from", "benchmark").code == 0
