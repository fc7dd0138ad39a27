"""What the page on C++ classes shows is run: from an empty folder to both deployed models."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cpp_classes.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def files():
    """The page's files, by name."""
    named = re.findall(r"^`([\w/.]+)`:\n\n```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return dict(named)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the page, after its `pipeline run`."""
    folder = tmp_path_factory.mktemp("page")
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def pipeline(folder, *arguments):
    command = [sys.executable, "-W", "ignore", "-m", "stateful_pipeline", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(folder):
    done = pipeline(folder, "run", "denoiser.yaml", "--json", "--set", "mlflow.enabled=false")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_model_passes_on_both_targets(run):
    assert {name: target["passed"] for name, target in run["targets"].items()} == {
        "cpu": True,
        "native": True,
    }


def test_the_parts_that_the_page_names_are_there(run, folder):
    targets = folder / "build" / "denoiser" / "targets"
    for name in ("cpu/model.onnx", "native/model.pt", "native/infer", "native/libfilter.so"):
        assert (targets / name).is_file(), name


def test_the_state_is_told_by_its_name_and_class(run, folder):
    shown = pipeline(folder, "inspect", "denoiser.yaml").stdout
    assert "floor.level" in shown
    assert "in a C++ object of audio.LowPass" in shown
    for frontend in ("export", "torchscript"):  # though the form has no reset
        assert f"{frontend}: captures the model" in shown


def test_the_deployed_model_runs_as_shown(run, folder):
    [code] = [block for block in blocks("python") if "StatefulRunner(" in block]
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(1 - 0.9**3, abs=1e-6)
