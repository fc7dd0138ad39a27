"""What keeps a dead tracking server from costing more than seconds.

MLflow's own defaults wait 4 minutes for a port that nobody listens on and 20 for one that accepts
and never answers.  So the server's ``/health`` is asked first, and MLflow's calls get short limits.
Limits that the user has set in the environment are kept.
"""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from stateful_pipeline.errors import StageError
from stateful_pipeline.stages.log.store import Store

PROBE_SECONDS = 2.0
_GATEWAY_ERRORS = (502, 503, 504)

_LIMITS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@contextmanager
def short_limits() -> Iterator[None]:
    """Give MLflow's calls short limits, and put the environment back afterwards."""
    added = {key: value for key, value in _LIMITS.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


def probe(store: Store, seconds: float = PROBE_SECONDS) -> None:
    """Check that a tracking server answers; does nothing for other stores.

    Any HTTP answer will do, also a refusal, but for a gateway that has lost its server.

    Raises:
        StageError: Nobody answers within ``seconds``.
    """
    if not store.is_http:
        return
    url = f"{store.shown.rstrip('/')}/health"
    try:
        with urllib.request.urlopen(url, timeout=seconds, context=_tls()):  # noqa: S310 - http(s)
            return
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in _GATEWAY_ERRORS:
            return
        reason = f"answers {error.code}"
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        reason = f"does not answer: {cause or type(error).__name__}"
    raise StageError(
        f"the MLflow server {store.shown} {reason}",
        stage="log",
        hint="start the server, or leave out `mlflow.tracking_uri` and MLFLOW_TRACKING_URI "
        "to log to a local file",
    )


def _tls() -> ssl.SSLContext | None:
    """Trust what MLflow itself would trust: it has two variables for this."""
    insecure = os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    bundle = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
    if insecure:
        return ssl._create_unverified_context()  # noqa: S323 - the user asked for it
    return ssl.create_default_context(cafile=bundle) if bundle else None
