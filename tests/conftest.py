"""A folder with a model and a spec in it, and the command line to run them, in this process."""

from __future__ import annotations

import gc
import json
import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

LEAKY = """\
import torch
from torch import nn


class Leaky(nn.Module):
    def __init__(self, decay=0.5):
        super().__init__()
        self.decay = decay
        self.register_buffer("h", torch.zeros(1, 3))

    def forward(self, x):
        self.h = self.decay * self.h + x
        return 2 * self.h
"""

SPEC = """\
name: leaky
source: {file: "model.py:Leaky"}
inputs:
  x: {shape: [batch, 3]}
dynamic_axes: {batch: {min: 1, opt: 2, max: 3}}
verify: {steps: 4}
benchmark: {steps: 0}
mlflow: {enabled: false}
"""


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of JSON on stdout; nothing else may be there."""
        return [json.loads(line) for line in self.out.splitlines()]


class Project:
    """A user's folder: ``model.py``, ``leaky.yaml`` and what a run leaves in ``out``."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.out = folder / "out"
        self._capsys = capsys

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def spec(self, extra: str = "", *, model: str = LEAKY, **replaced: str) -> Path:
        """Write the model and its spec; ``replaced`` gives lines that begin with these keys."""
        self.write("model.py", model)
        lines = [replaced.pop(line.partition(":")[0], line) for line in SPEC.splitlines()]
        return self.write("leaky.yaml", "\n".join(lines) + "\n" + textwrap.dedent(extra))

    def cli(self, *arguments: object) -> Ran:
        """Run the command line here; every way out of it is a code."""
        from stateful_pipeline.cli import main

        self._capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        assert "Traceback" not in captured.out
        assert "Traceback" not in captured.err or "--debug" in arguments
        return Ran(int(caught.value.code or 0), captured.out, captured.err)

    def run(self, spec: Path, *options: object) -> Ran:
        return self.cli("run", spec, "--out", self.out, *options)

    def builds(self, name: str = "leaky") -> list[Path]:
        """Every build, oldest first."""
        return sorted((self.out / ".builds" / name).iterdir(), key=lambda p: p.stat().st_ctime_ns)

    def manifest(self, build: Path | None = None) -> dict[str, Any]:
        folder = self.out / "leaky" if build is None else build
        return json.loads((folder / "manifest.json").read_text())


@pytest.fixture
def project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # so that what a run adds to it is undone too
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield Project(tmp_path, capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def save_openvino(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes an ONNX graph, given as text, and builds it for OpenVINO.

    The ONNX file is ``model.onnx``; the path of ``openvino/model.xml`` beside it is returned.
    """
    import onnx
    import onnx.parser

    from stateful_pipeline.contract import METADATA_KEY, Contract
    from stateful_pipeline.stages.build.openvino import write_model

    def save(
        text: str,
        contract: Contract,
        *,
        opset: int = 20,
        domains: str = "",
        precision: str = "fp32",
    ) -> Path:
        header = f'<ir_version: 10, opset_import: ["" : {opset}{domains}]>\n'
        model = onnx.parser.parse_model(header + text)
        onnx.helper.set_model_props(model, {METADATA_KEY: contract.to_json()})
        onnx.save(model, tmp_path / "model.onnx")
        write_model(tmp_path / "model.onnx", contract, precision, tmp_path / "openvino")
        return tmp_path / "openvino" / "model.xml"

    return save


# A loaded machine must not fail a test: what is slow is measured in benchmarks/.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_configure() -> None:
    """Let all tests build C++ into one cache below build/, and signals reach their processes.

    A process that nohup or a shell's & has started ignores signals, and so do those it starts.
    Python looks for garbage as rarely as in a run of the command line.
    """
    gc.set_threshold(100_000, 20, 50)
    os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / "build")
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


GROUPS = {"native": "native", "test_libtorch.py": "native", "test_configs.py": "configs"}
"""What shares one long build: its tests run in one process, so that none waits for another."""


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """After ``make test-gpu``, print a table: what was tried on the GPU, how it went, why not."""
    if config.option.markexpr != "gpu":
        return
    rows = [
        (report.nodeid.removeprefix("tests/"), outcome, f"{report.duration:.1f} s", _reason(report))
        for outcome in ("passed", "failed", "error", "skipped")
        for report in terminalreporter.stats.get(outcome, [])
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    terminalreporter.section("on the GPU")
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        terminalreporter.write_line("  ".join(cells).rstrip())


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2].removeprefix("Skipped: ") if isinstance(where, tuple) else ""
    return text.partition("\n")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests that share a build in one process of ``pytest -n``."""
    for item in items:
        for part in item.path.relative_to(Path(__file__).parent).parts:
            if part in GROUPS:
                item.add_marker(pytest.mark.xdist_group(GROUPS[part]))
