"""What is wrong with a C++ library ends `pipeline run` with a message and the right exit code."""

import json
import os
import shutil
import subprocess
import sys

import pytest

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project({name} LANGUAGES CXX)
add_library({name} SHARED {name}.cpp)
"""

UNPICKLED = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.counter = torch.classes.states.Unpickled()

    def forward(self, x):
        return self.counter.next(x)
"""
TARGETS = "targets: {native: {runtime: libtorch}}\n"


@pytest.fixture
def run(project):
    """Run the spec of a leaky module that needs a library."""

    def call(library, extra="", **more):
        source = f'source: {{file: "model.py:Leaky", libraries: ["{library}"]}}'
        return project.run(project.spec(extra, source=source, **more))

    return call


def make(project, name, code):
    """Write a CMake project that does not need torch."""
    project.write(f"{name}/CMakeLists.txt", CMAKE.format(name=name))
    project.write(f"{name}/{name}.cpp", code)
    return project.folder / name


@pytest.mark.parametrize("name", ["no_such_folder", "libgone.so"])
def test_a_missing_library_ends_2_with_its_line(run, name):
    ran = run(name)
    assert ran.code == 2
    assert name in ran.text
    assert "leaky.yaml:2" in ran.text


def test_a_library_that_does_not_compile_ends_3_with_what_the_compiler_says(run, project):
    ran = run(make(project, "broken", "int answer() { return 42 }\n"))
    assert ran.code == 3
    assert "broken.cpp:1:" in ran.text
    assert "expected" in ran.text


def test_a_library_for_another_torch_ends_3(run, project):
    code = "namespace c10 { void gone(); }\nvoid call() { c10::gone(); }\n"
    ran = run(make(project, "foreign", code))
    assert ran.code == 3
    assert "undefined symbol: _ZN3c104goneEv" in ran.text
    assert "torch" in ran.text


def test_a_name_that_is_registered_twice_ends_3(run, stack, clash, monkeypatch, tmp_path):
    again = shutil.copy(clash, tmp_path / "libagain.so")
    monkeypatch.setenv("CLASH", "class")
    ran = run(again)
    assert ran.code == 3
    assert "registers 'my_classes.MyStackClass'" in ran.text


@pytest.mark.parametrize("targets", [TARGETS, ""], ids=["libtorch", "onnxruntime"])
def test_a_class_that_is_not_pickled_ends_3_and_says_what_to_add(run, states, targets):
    ran = run(states.path, targets, model=UNPICKLED)
    assert ran.code == 3
    assert "states.Unpickled" in ran.text
    assert "def_pickle" in ran.text


def test_a_second_run_compiles_nothing(run, project, monkeypatch):
    calls, real = project.folder / "calls.log", shutil.which("c++")
    wrapper = project.write("counting-c++", f'#!/bin/sh\necho "$@" >> {calls}\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.folder / "cache"))
    library = make(project, "once", f"int answer() {{ return {os.getpid()}; }}\n")
    for _ in range(2):
        ran = run(library)
        assert ran.code == 0, ran.text
        compiled = sum(line.endswith("once.cpp") for line in calls.read_text().splitlines())
        assert compiled == 1


FORM = """
import torch
from torch import nn
from stateful_pipeline.zoo.tensor_ring import ExplicitTensorRing as Form

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.ring = torch.classes.stateful.TensorRing(2, 3)

    def forward(self, x):
        self.ring.push(x[0])
        return self.ring.mean()
"""


def test_a_form_that_one_spec_declares_is_none_for_the_next(project, ring, no_forms):
    more = {
        "source": f'source: {{file: "model.py:Leaky", libraries: ["{ring.path}"]}}',
        "  x": "  x: {shape: [1, 3]}",
        "dynamic_axes": "",
    }
    without = project.spec(model=FORM, **more).read_text()
    with_form = project.spec(
        "classes: {stateful.TensorRing: {file: 'model.py:Form'}}\n", model=FORM, **more
    )
    project.write("without.yaml", without.replace("name: leaky", "name: without"))
    ran = project.run(with_form, project.folder / "without.yaml", "--json")
    assert [(line["name"], line["exit_code"]) for line in ran.lines] == [
        ("leaky", 0),
        ("without", 3),
    ]
    assert "has no explicit form" in ran.lines[1]["error"]


IN_USE = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.held = torch.classes.states.Forgetful(torch.zeros(3))
        self.held.add(torch.ones(3))

    def forward(self, x):
        return self.held.add(x[0])
"""


def test_an_object_whose_copy_is_another_is_not_deployed(run, states):
    ran = run(states.path, TARGETS, model=IN_USE)
    assert ran.code == 3
    assert "states.Forgetful does not pickle all that it holds" in ran.text


def test_a_form_that_cannot_be_made_stops_what_needs_it_alone(run, states, project):
    model = (
        IN_USE.replace("Forgetful", "Sharing")
        + """
class Form:
    def __init__(self):
        pass
"""
    )
    both = "classes: {states.Sharing: {file: 'model.py:Form'}}\n" + TARGETS
    assert run(states.path, both, model=model).code == 0
    ran = run(
        states.path, both.replace("{native", "{cpu: {runtime: onnxruntime}, native"), model=model
    )
    assert ran.code == 3
    assert "cannot be made from a pickled state" in ran.text


def test_a_form_of_a_class_that_no_library_registers_ends_2_with_the_nearest_name(run, states):
    classes = "classes: {states.Sharin: {file: 'model.py:Leaky'}}\n"
    ran = run(states.path, classes, model=IN_USE)
    assert ran.code == 2
    assert 'classes["states.Sharin"]: no library registers' in ran.text
    assert "leaky.yaml:" in ran.text
    assert "did you mean `states.Sharing`?" in ran.text


def test_a_class_that_no_library_registers_ends_2_and_says_where_to_name_it(project):
    ran = project.run(project.spec(model=IN_USE.replace("states.Forgetful", "absent.Absent")))
    assert ran.code == 2
    assert "absent.Absent" in ran.text
    assert "source.libraries" in ran.text


ENDING = """
import ctypes
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        ctypes.CDLL(None).exit(0)  # as a method in C++ may
        self.h = self.h + x
        return self.h
"""


def test_code_in_cpp_that_calls_exit_ends_3_with_the_line(project):
    spec = project.spec(model=ENDING)
    command = [sys.executable, "-W", "ignore", "-m", "stateful_pipeline", "run", "--json"]
    done = subprocess.run(
        [*command, spec, "--out", project.out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "model.py:12: C++ code has ended the process by exit()" in done.stderr
    [line] = map(json.loads, done.stdout.splitlines())
    assert (line["status"], line["exit_code"]) == ("failed", 3)


PARTLY = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.ema = torch.classes.states.Ema(3, 0.5)
        self.register_buffer("h", torch.zeros(1, 3))
        self.count = 0

    def forward(self, x):
        self.h = self.h + self.ema.update(x, 1.0)
        self.count += 1
        return self.h * self.count

    def reset(self):
        self.h = torch.zeros(1, 3)
"""


def test_what_a_reset_leaves_as_it_is_is_said_and_in_the_manifest(project, states):
    source = f'source: {{file: "model.py:Leaky", reset: reset, libraries: ["{states.path}"]}}'
    spec = project.spec(TARGETS, model=PARTLY, source=source)
    ran = project.run(spec)
    assert ran.code == 0, ran.text
    for path in ("count", "ema[0]", "ema[2]"):
        assert f"the module's reset leaves '{path}' as it is" in ran.text
    for path in ("h", "ema[1]"):  # zeros again; never changed
        assert f"leaves '{path}'" not in ran.text
    manifest = json.loads((project.out / "leaky" / "manifest.json").read_text())
    assert "ema[0]" in str(manifest)
    assert "the module's reset leaves 'count'" in project.cli("inspect", spec).text


def test_a_reset_that_takes_all_back_is_not_warned_of(project):
    whole = PARTLY.replace("self.ema.update(x, 1.0)", "x").replace(
        "torch.classes.states.Ema(3, 0.5)", "None"
    )
    whole += "        self.count = 0\n"
    source = 'source: {file: "model.py:Leaky", reset: reset}'
    ran = project.cli("inspect", project.spec(model=whole, source=source))
    assert ran.code == 0, ran.text
    assert "reset leaves" not in ran.text


EXPORTED = """
import torch
from torch import nn

class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.classes.states.Bag(3)

    def forward(self, x):
        return self.bag.put(x[0])

    @torch.jit.export
    def look(self):
        return len(self.bag)

class Form:
    def __init__(self, state):
        self.last, self.sums = state

    def to_state(self):
        return self.last, self.sums

    def put(self, x):
        self.last = [self.last[1], x]
        self.sums["all"] = self.sums["all"] + x
        return self.last[0] + self.sums["all"]
"""


def test_a_form_needs_no_method_that_only_another_exported_method_calls(project, states):
    source = f'source: {{file: "model.py:Leaky", libraries: ["{states.path}"]}}'
    more = {"source": source, "  x": "  x: {shape: [1, 3]}", "dynamic_axes": ""}
    classes = "classes: {states.Bag: {file: 'model.py:Form'}}\n"
    ran = project.cli("inspect", project.spec(classes, model=EXPORTED, **more))
    assert ran.code == 0, ran.text
    assert "torchscript: captures the model" in ran.text


def test_a_cache_that_cannot_be_written_to_is_named(run, project, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(project.write("file", "no folder")))
    ran = run(make(project, "small", "int answer() { return 42; }\n"))
    assert ran.code == 3
    assert "XDG_CACHE_HOME" in ran.text
