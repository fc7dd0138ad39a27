"""Builds do not destroy builds: what a run leaves on disk, whichever way it ends."""

import hashlib
import json
import signal
import subprocess
import sys
import time

import pytest

from stateful_pipeline.builds import file_digests, new_build, switch
from stateful_pipeline.errors import SpecError

SLOW = """\
import pathlib
import time

import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.h + x
        pathlib.Path(__file__).with_name("started").touch()
        time.sleep(120)
        return self.h
"""

FAILING = SLOW.replace("        time.sleep(120)\n", '        raise OSError("no")\n')


def hashes(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def start_slow_run(project):
    """Start a run in a process of its own and return it once it is in the middle of a stage."""
    started = project.folder / "started"
    started.unlink(missing_ok=True)
    spec = project.spec(model=SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "stateful_pipeline.cli", "run", spec, "--out", project.out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=project.folder,
    )
    end = time.monotonic() + 60
    while not started.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return process


def test_a_good_run_switches_the_link_and_keeps_the_build_before(project):
    spec = project.spec()
    project.run(spec)
    first = (project.out / "leaky").resolve()
    before = hashes(first)
    project.run(spec, "--force")
    second = (project.out / "leaky").resolve()
    assert (project.out / "leaky").is_symlink()
    assert not (project.out / "leaky").readlink().is_absolute()
    assert second != first
    assert second.parent == first.parent == project.out / ".builds" / "leaky"
    assert hashes(first) == before


def test_a_build_has_the_files_that_scripts_rely_on(project):
    project.run(project.spec())
    build = project.out / "leaky"
    for name in (
        "manifest.json",
        "timings.json",
        "spec.json",
        "report.html",
        "export/model.onnx",
        "targets/cpu/model.onnx",
        "verify/report.json",
    ):
        assert (build / name).is_file(), name
    assert list((build / "script").iterdir())
    assert list((build / "rewrite").iterdir())


def test_the_manifest_lists_every_file_with_its_digest(project):
    project.run(project.spec())
    manifest = project.manifest()
    found = hashes(project.out / "leaky")
    del found["manifest.json"]
    assert manifest["files"] == found
    assert manifest["schema"] == 1
    assert manifest["status"] == "passed"
    assert manifest["targets"]["cpu"]["passed"] is True
    assert len(manifest["spec_digest"]) == 64
    assert manifest["versions"]["torch"].startswith("2.")


def test_only_timings_json_holds_what_a_clock_measured(project):
    spec = project.spec(benchmark="benchmark: {steps: 5, warmup: 1}")
    project.run(spec)
    first = project.manifest()
    project.run(spec, "--force")
    second = project.manifest()
    timings = json.loads((project.out / "leaky" / "timings.json").read_text())
    assert timings["stages"]["verify"] > 0
    assert timings["benchmark"]["cpu"]["p50_ms"] > 0
    assert timings["benchmark"]["cpu"]["eager"]["p50_ms"] > 0
    for manifest in (first, second):
        del manifest["id"]
        for name in ("timings.json", "report.html"):  # the page shows the timings
            del manifest["files"][name]
    assert first == second


def test_a_failed_run_leaves_the_link_and_says_where_its_build_is(project):
    project.run(project.spec())
    good = (project.out / "leaky").resolve()
    ran = project.run(project.spec(model=FAILING))
    assert ran.code == 3
    assert (project.out / "leaky").resolve() == good
    bad = next(build for build in project.builds() if build != good)
    assert f"build   {bad}" in ran.out
    manifest = project.manifest(bad)
    assert manifest["status"] == "failed"
    assert "OSError: no" in manifest["stages"]["script"]["error"]
    assert (bad / "report.html").is_file()
    assert set(manifest["files"]) == set(hashes(bad)) - {"manifest.json"}


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interrupted_run_ends_130_and_the_good_build_stays(project, name):
    project.run(project.spec())
    good = (project.out / "leaky").resolve()
    before = hashes(good)
    process = start_slow_run(project)
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in out
    assert "Traceback" not in out + err
    assert (project.out / "leaky").resolve() == good
    assert hashes(good) == before
    (bad,) = set(project.builds()) - {good}
    assert project.manifest(bad)["status"] == "interrupted"
    assert project.manifest(bad)["stages"]["verify"]["status"] == "skipped"
    assert {p.name for p in project.out.iterdir()} == {"leaky", ".builds"}
    assert not [p for p in project.out.rglob("*") if "part" in p.name or p.name.endswith(".link")]


def test_a_killed_run_leaves_the_good_build_and_the_next_one_works(project):
    spec = project.spec()
    project.run(spec)
    good = (project.out / "leaky").resolve()
    process = start_slow_run(project)
    process.kill()
    process.communicate(timeout=30)
    assert (project.out / "leaky").resolve() == good
    assert project.manifest()["status"] == "passed"
    assert project.run(project.spec()).code == 0
    assert (project.out / "leaky").resolve() != good
    assert project.manifest()["status"] == "passed"


def test_a_real_folder_in_the_way_is_left_alone(project):
    precious = project.write("out/leaky/thesis.txt", "years of work")
    ran = project.run(project.spec())
    assert ran.code == 2
    assert "is not a link to a build" in ran.err
    assert precious.read_text() == "years of work"
    assert list(project.out.iterdir()) == [precious.parent]


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/nothing"])
@pytest.mark.parametrize("mlflow", ["false", "true"])
def test_an_output_folder_that_cannot_be_written_ends_2(project, where, mlflow):
    project.write("file", "not a folder")
    spec = project.spec(mlflow=f"mlflow: {{enabled: {mlflow}}}")
    ran = project.cli("run", spec, "--out", where)
    assert ran.code == 2
    assert "--out" in ran.err
    assert (project.folder / "file").read_text() == "not a folder"


@pytest.mark.parametrize("name", ["mlflow.db", "mlartifacts"])
def test_a_spec_cannot_have_the_name_of_the_mlflow_store(project, name):
    ran = project.run(project.spec(name=f"name: {name}"))
    assert ran.code == 2
    assert "leaky.yaml:1" in ran.err


def test_a_link_is_switched_in_one_step_and_never_onto_a_folder(tmp_path):
    first, second = new_build(tmp_path, "m"), new_build(tmp_path, "m")
    assert first != second
    assert switch(first).resolve() == first
    assert switch(second).resolve() == second
    assert sorted(p.name for p in tmp_path.iterdir()) == [".builds", "m"]
    (tmp_path / "n").mkdir()
    with pytest.raises(SpecError):
        new_build(tmp_path, "n")


def test_digests_leave_out_only_the_file_that_is_named(tmp_path):
    for name in ("manifest.json", "inner/manifest.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert list(file_digests(tmp_path, without=["manifest.json"])) == ["inner/manifest.json"]


def test_a_reader_that_leaves_does_not_stop_the_run(project):
    spec = project.spec()
    process = subprocess.Popen(
        [sys.executable, "-m", "stateful_pipeline.cli", "run", spec, "--out", project.out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()  # as `| head -0` does
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert error == ""
    assert project.manifest()["status"] == "passed"
