"""Loads the corpora: test modules cannot import each other, so they come by path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def load(name: str) -> ModuleType:
    qualified = f"corpus_{name}"
    if qualified not in sys.modules:
        path = Path(__file__).with_name(f"{name}.py")
        spec = importlib.util.spec_from_file_location(qualified, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


def deployed() -> list[Any]:
    """Return the modules of the three files, which register into one list, in their order."""
    modules = load("deployed").DEPLOYED
    load("deployed_models")
    load("deployed_control")
    return modules


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, cases in (
        ("case", load("cases").CASES),
        ("stream", load("streams").STREAMS),
        ("deployed", deployed()),
    ):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, cases, ids=[case.name for case in cases])
