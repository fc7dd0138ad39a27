"""Turn stateful PyTorch modules into explicit-state engines, and prove them equal.

The public names load what they need when they are first used: ``import stateful_pipeline`` is
quick, and :class:`StatefulRunner` needs numpy and onnxruntime alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateful_pipeline.api import export_onnx
    from stateful_pipeline.contract import Contract
    from stateful_pipeline.model.cpp_objects import explicit_form
    from stateful_pipeline.runner import run_spec
    from stateful_pipeline.runtime import StatefulRunner
    from stateful_pipeline.spec import Spec, load_spec

__version__ = "0.1.0"

_HOMES = {
    "Contract": "stateful_pipeline.contract",
    "Spec": "stateful_pipeline.spec",
    "StatefulRunner": "stateful_pipeline.runtime",
    "explicit_form": "stateful_pipeline.model.cpp_objects",
    "export_onnx": "stateful_pipeline.api",
    "load_spec": "stateful_pipeline.spec",
    "run_spec": "stateful_pipeline.runner",
}

__all__ = [
    "Contract",
    "Spec",
    "StatefulRunner",
    "__version__",
    "explicit_form",
    "export_onnx",
    "load_spec",
    "run_spec",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stateful_pipeline' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
