"""What a full disk and others' code raise, in this project's words."""

import errno
import os
import resource
import shutil
import subprocess
import sys

import pytest

from stateful_pipeline.builds import new_build
from stateful_pipeline.errors import StageError
from stateful_pipeline.foreign import stage_error, write_error


def full(number=errno.ENOSPC, *more):
    return OSError(number, os.strerror(number), *more)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_full_disk_names_the_folder_and_what_to_do(tmp_path, number):
    error = stage_error(full(number), "export", tmp_path)
    assert isinstance(error, StageError)
    assert error.stage == "export"
    assert str(tmp_path) in str(error)
    assert os.strerror(number) in str(error)
    assert "free some space" in error.hint
    assert "--out" in error.hint


def test_the_file_is_named_where_the_system_tells_it(tmp_path):
    name = str(tmp_path / "export" / "model.onnx")
    assert name in str(stage_error(full(errno.EACCES, name), "export", tmp_path))
    assert name in str(stage_error(full(errno.ENOSPC, name), "export", tmp_path))


def test_a_file_that_could_not_be_copied_is_named(tmp_path):
    error = shutil.Error([("from", str(tmp_path / "to"), "[Errno 28] No space left on device")])
    assert f"cannot write {tmp_path / 'to'}: [Errno 28]" in str(write_error(error, "r", tmp_path))


def test_of_a_copy_that_ends_half_way_the_new_file_is_named(tmp_path):
    source, copy = str(tmp_path / "from"), str(tmp_path / "to")
    error = full(errno.ENOSPC, source, None, copy)
    assert f"cannot write {copy}: No space left" in str(stage_error(error, "build", tmp_path))


def test_a_file_of_the_users_is_no_fault_of_the_output_folder(tmp_path):
    error = stage_error(FileNotFoundError(2, "No such file", "gain.txt"), "script", tmp_path)
    assert "FileNotFoundError" in str(error)
    assert "--out" not in str(error)


def test_a_full_disk_has_no_room_for_a_new_build_either(tmp_path, monkeypatch):
    def mkdir(*args, **kwargs):
        raise full()

    monkeypatch.setattr("pathlib.Path.mkdir", mkdir)
    with pytest.raises(StageError, match="No space left"):
        new_build(tmp_path, "m")


@pytest.mark.parametrize("largest", [100, 4000])
def test_a_run_that_may_write_no_more_says_where_and_ends_3(project, largest):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    good = project.run(project.spec())
    assert good.code == 0
    before = (project.out / "leaky").resolve()
    command = [sys.executable, "-m", "stateful_pipeline.cli", "run", "leaky.yaml", "--force"]
    ran = subprocess.run(
        [*command, "--out", project.out],
        preexec_fn=limit,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    text = ran.stdout + ran.stderr
    assert ran.returncode == 3, text
    assert "File too large" in text
    assert f"cannot write {project.out}" in text
    assert "ulimit -f" in text
    assert "fault of" not in text
    assert "Traceback" not in text
    assert (project.out / "leaky").resolve() == before


def test_a_report_that_could_not_be_written_is_not_pointed_at_and_fails_the_run(
    project, monkeypatch
):
    import stateful_pipeline.runner as runner

    def write(*args, **kwargs):
        raise full()

    spec = project.spec()
    monkeypatch.setattr(runner, "write_report", write)
    ran = project.run(spec, "--json")
    assert ran.code == 3
    assert ran.lines[0]["status"] == "failed"
    assert "No space left" in ran.lines[0]["error"]
    assert "report.html" not in ran.err
    manifest = project.manifest(project.builds()[0])
    assert manifest["status"] == "failed"
    assert "No space left" in manifest["stages"]["report"]["error"]


def test_a_disk_that_is_full_at_the_very_end_fails_the_run_and_keeps_the_link(project, monkeypatch):
    import stateful_pipeline.builds as builds

    def replace(source, destination):
        if destination == project.out / "leaky":
            raise full()
        real(source, destination)

    real = os.replace
    spec = project.spec()
    monkeypatch.setattr(builds.os, "replace", replace)
    ran = project.run(spec, "--json")
    assert ran.code == 3
    assert ran.lines[0]["status"] == "failed"
    assert "No space left" in ran.lines[0]["error"]
    assert "free some space" in ran.err
    assert not (project.out / "leaky").exists()
    assert {p.name for p in project.out.iterdir()} == {".builds"}
