"""Which MLflow store a run is logged to, and how a SQLite one is opened by many at once.

An SQLite store is created under a lock and a temporary name and then moved into place: two
processes that first open a fresh database together would both try to create its tables, and one
that is killed meanwhile would leave half of them.  Artifacts lie in ``mlartifacts`` beside the
database; MLflow itself would put them into whatever the working directory is.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from stateful_pipeline.errors import StageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mlflow import MlflowClient

_SQLITE = "sqlite:///"
_NOT_IN_A_PATH = "?%"
UI_ADDRESS = "http://127.0.0.1:5000"
"""Where ``mlflow ui`` listens unless told otherwise."""


@dataclass(frozen=True)
class Store:
    """A tracking store.

    Attributes:
        uri: MLflow's tracking URI; the path of an SQLite one is absolute.
        database: The SQLite file, or None for any other store.
    """

    uri: str
    database: Path | None = None

    @property
    def is_http(self) -> bool:
        """Whether the store is a server that is reached over HTTP."""
        return self.uri.startswith(("http://", "https://"))

    @property
    def artifacts(self) -> str | None:
        """Where a new experiment keeps artifacts; None leaves it to the server."""
        return None if self.database is None else (self.database.parent / "mlartifacts").as_uri()

    @property
    def shown(self) -> str:
        """The URI without user name and password, fit for a terminal."""
        parts = urlsplit(self.uri)
        if "@" not in parts.netloc:
            return self.uri
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    @property
    def ui_command(self) -> str | None:
        """The command that serves this store's UI, or None if a server does so already."""
        if self.is_http:
            return None
        return f"{_mlflow_program()} ui --backend-store-uri {shlex.quote(self.uri)}"

    def run_url(self, experiment_id: str, run_id: str) -> str:
        """Return the address of a run's page."""
        base = self.shown.rstrip("/") if self.is_http else UI_ADDRESS
        page = f"experiments/{experiment_id}/runs/{run_id}"
        return f"{base}/#/{page}?workflowType=machine_learning"

    def locked(self) -> AbstractContextManager[None]:
        """Hold this store against other processes; does nothing unless it is an SQLite file."""
        if self.database is None:
            return nullcontext()
        return _file_lock(self.database.with_name(f".{self.database.name}.lock"))


def resolve_store(tracking_uri: str | None, default_store: Path) -> Store:
    """Return the store to use.

    Args:
        tracking_uri: What the spec says, or None: then ``MLFLOW_TRACKING_URI``, and then
            ``default_store``.
        default_store: The SQLite file to use if nothing else is said.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri and not uri.startswith(_SQLITE):
        return Store(uri)
    database = Path(uri.removeprefix(_SQLITE)) if uri else default_store
    database = database.absolute()
    return Store(f"{_SQLITE}{database}", database)


def open_store(store: Store) -> MlflowClient:
    """Return a client of ``store``, after creating its database if there is none yet.

    Needs ``mlflow`` to be importable; sets nothing global in it.

    Raises:
        StageError: An SQLite file's path has a character that a database URI cannot have, or the
            file is not one that can be written.
    """
    from mlflow import MlflowClient

    if store.database is not None:
        _check_path(store.database)
        store.database.parent.mkdir(parents=True, exist_ok=True)
        with store.locked():
            if store.database.exists():
                _check_database(store.database)
            else:
                _create_database(store.database, store.artifacts or "")
            return MlflowClient(tracking_uri=store.uri, registry_uri=store.uri)
    return MlflowClient(tracking_uri=store.uri)


def find_experiment(client: MlflowClient, store: Store, name: str) -> str:
    """Return the id of the experiment called ``name``, which is created if need be.

    Raises:
        StageError: The experiment was deleted, and MLflow keeps its name until it is purged.
    """
    from mlflow.exceptions import MlflowException

    with store.locked():
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(client.create_experiment(name, artifact_location=store.artifacts))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = client.get_experiment_by_name(name)
    if experiment is None or experiment.lifecycle_stage != "active":
        raise StageError(
            f"the MLflow experiment '{name}' was deleted",
            stage="log",
            hint="`mlflow experiments restore`, or another `mlflow.experiment` in the spec",
        )
    return str(experiment.experiment_id)


def _check_path(database: Path) -> None:
    odd = sorted(set(str(database)) & set(_NOT_IN_A_PATH))
    if odd:
        raise StageError(
            f"the MLflow store {database} has a '{odd[0]}' in its path",
            stage="log",
            hint="set `mlflow.tracking_uri` to an SQLite file in a folder without that character",
        )


def _check_database(database: Path) -> None:
    """Try to write, without writing: MLflow would retry for minutes what cannot be opened."""
    try:
        with closing(sqlite3.connect(database, timeout=5)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise StageError(
            f"the MLflow store {database} cannot be written: {error}",
            stage="log",
            hint="move the file away, or set `mlflow.tracking_uri`",
        ) from error


def _create_database(database: Path, artifacts: str) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    partial = database.with_name(f".{database.name}.part")
    for suffix in ("", "-journal", "-wal", "-shm"):  # what a killed process left
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
    store = SqlAlchemyStore(f"{_SQLITE}{partial}", artifacts)  # type: ignore[no-untyped-call]
    store.engine.dispose()
    os.replace(partial, database)


@contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _mlflow_program() -> str:
    """Return ``mlflow`` as this environment's own can be called from the working directory."""
    own = Path(sys.executable).with_name("mlflow")
    found = shutil.which("mlflow")
    if not own.exists() or (found is not None and Path(found) == own):
        return "mlflow"
    near = own.is_relative_to(Path.cwd())
    return shlex.quote(str(own.relative_to(Path.cwd()) if near else own))
