import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.log import log_summary


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


@pytest.fixture
def broken_port() -> Iterator[int]:
    """A server whose health is fine and that fails at everything else."""

    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Broken)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def log(summary: dict[str, Any], build: Path, port: int, **more: Any) -> Any:
    uri = f"http://127.0.0.1:{port}"
    unused = build / "unused.db"
    return log_summary(
        summary, build, experiment="lstm", tracking_uri=uri, default_store=unused, **more
    )


@pytest.mark.parametrize("kind", ["closed_port", "silent_port", "broken_port"])
def test_a_dead_server_costs_seconds_and_a_warning(
    kind: str, summary: dict[str, Any], build: Path, request: pytest.FixtureRequest
) -> None:
    port: int = request.getfixturevalue(kind)
    before = dict(os.environ)
    began = time.monotonic()
    result = log(summary, build, port)
    assert time.monotonic() - began < 5
    assert f"http://127.0.0.1:{port}" in str(result.warning)
    assert result.run_id is None
    assert dict(os.environ) == before


def test_a_dead_server_is_an_error_where_logging_is_required(
    summary: dict[str, Any], build: Path, closed_port: int
) -> None:
    with pytest.raises(StageError, match=r"does not answer: .*refused") as caught:
        log(summary, build, closed_port, required=True)
    assert caught.value.stage == "log"
    assert "start the server" in str(caught.value)


@pytest.mark.slow
def test_a_live_server_gets_runs_and_artifacts(
    summary: dict[str, Any], build: Path, tmp_path: Path, database: Path, closed_port: int
) -> None:
    command = [
        sys.executable, "-m", "mlflow", "server", "--port", str(closed_port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{database}", "--artifacts-destination",
        str(tmp_path / "served"),
    ]  # fmt: skip
    server = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while (result := log(summary, build, closed_port)).warning and time.monotonic() < deadline:
            time.sleep(0.5)
        assert result.warning is None
        assert result.ui_command is None
        assert result.url.startswith(f"http://127.0.0.1:{closed_port}/#/experiments/")
        client = MlflowClient(tracking_uri=result.tracking_uri)
        assert client.get_run(result.run_id).info.status == "FINISHED"
        assert "report.html" in [file.path for file in client.list_artifacts(result.run_id)]
        assert list((tmp_path / "served").rglob("error_per_step.svg"))
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
