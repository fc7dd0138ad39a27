"""Opens the runner of a built target whose states are explicit, whatever its runtime."""

from __future__ import annotations

from pathlib import Path

from stateful_pipeline.runtime import OpenVinoRunner, StatefulRunner
from stateful_pipeline.runtime.runner import Runner
from stateful_pipeline.spec import OnnxRuntimeTarget, OpenVinoTarget, Target


def open_runner(target: Target, model: Path) -> Runner:
    """Return a new runner of ``model``, as the spec declares ``target``.

    Raises:
        ContractError: The model cannot be loaded.
        TargetError: The runtime, or what it is to use, is not available here.
    """
    if isinstance(target, OpenVinoTarget):
        return OpenVinoRunner(model, threads=target.threads)
    assert isinstance(target, OnnxRuntimeTarget)
    return StatefulRunner(model, provider=target.provider, threads=target.threads)
