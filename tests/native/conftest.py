"""The C++ projects, built once: below build/, by content, so that only changes compile."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import stateful_pipeline
from stateful_pipeline.libraries import BuiltLibrary, LoadedLibrary, build, default_cache, load
from stateful_pipeline.model.jit import quiet_scripting

NATIVE = Path(stateful_pipeline.__file__).parent / "native"
TESTS = Path(__file__).parent / "cpp"

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(small LANGUAGES CXX)
add_library(small SHARED small.cpp)
target_include_directories(small PRIVATE ${OUTSIDE})
target_compile_definitions(small PRIVATE ANSWER=${ANSWER})
"""


@pytest.fixture(scope="session")
def cache() -> Path:
    return default_cache()


@pytest.fixture(scope="session")
def stack(cache: Path) -> LoadedLibrary:
    return load(build(NATIVE / "stack", cache).path)


@pytest.fixture(scope="session")
def ring(cache: Path) -> LoadedLibrary:
    return load(build(NATIVE / "tensor_ring", cache).path)


@pytest.fixture(scope="session")
def counter(cache: Path) -> LoadedLibrary:
    return load(build(TESTS / "counter", cache).path)


@pytest.fixture(scope="session")
def states(cache: Path) -> LoadedLibrary:
    return load(build(TESTS / "states", cache).path)


@pytest.fixture(scope="session")
def sharing(cache: Path) -> LoadedLibrary:
    return load(build(TESTS / "sharing", cache).path)


@pytest.fixture
def no_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """No class has an explicit form but those that the test gives."""
    monkeypatch.setattr("stateful_pipeline.model.cpp_objects._forms", {})
    monkeypatch.setattr("stateful_pipeline.model.cpp_objects._declared", {})


@pytest.fixture(scope="session")
def clash(cache: Path) -> Path:
    """A library that does what the variable CLASH says while it is loaded."""
    return build(TESTS / "clash", cache).path


@pytest.fixture(scope="session")
def factories(cache: Path) -> Path:
    return build(NATIVE / "factories", cache).programs[0]


@pytest.fixture(scope="session")
def conversions(cache: Path) -> BuiltLibrary:
    built = {name: build(NATIVE / name, cache).path for name in ("stack", "tensor_ring")}
    defines = {
        "NATIVE": str(NATIVE),
        "STACK_LIBRARY": str(built["stack"]),
        "RING_LIBRARY": str(built["tensor_ring"]),
    }
    return build(TESTS / "conversions", cache, defines=defines)


@pytest.fixture(scope="session")
def infer(cache: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the program ``infer`` as from a shell."""
    [program] = build(NATIVE / "infer", cache).programs

    def call(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [str(word) for word in (program, *arguments)]
        environment = {**os.environ, **variables}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return call


@pytest.fixture
def script() -> Callable[[Any], Any]:
    """``torch.jit.script``, without what torch says of its future."""

    def quietly(thing: Any) -> Any:
        with quiet_scripting():
            return torch.jit.script(thing)

    return quietly


@pytest.fixture
def reload(tmp_path: Path) -> Callable[[Any], Any]:
    """Save a scripted module and load it again, as torch does it."""

    def quietly(module: Any) -> Any:
        with quiet_scripting():
            torch.jit.save(module, tmp_path / "reloaded.pt")
            return torch.jit.load(tmp_path / "reloaded.pt")

    return quietly


class Small:
    """A project of one file, without torch, and a compiler that writes down each of its calls."""

    cmake = CMAKE

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "small"
        self.cache = folder / "cache"
        self.outside = folder / "outside"
        for made in (self.folder, self.outside):
            made.mkdir()
        self.calls = folder / "calls.log"
        self.calls.touch()
        self.defines = {"OUTSIDE": str(self.outside), "ANSWER": "1"}
        wrapper = folder / "counting-c++"
        real = shutil.which("c++")
        wrapper.write_text(f'#!/bin/sh\necho "$@" >> {self.calls}\nexec {real} "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setenv("CXX", str(wrapper))
        self.write("CMakeLists.txt", CMAKE)
        self.write("small.cpp", 'extern "C" int answer() { return ANSWER; }\n')

    def write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def runs(self) -> list[str]:
        """What the compiler was asked, but for its version."""
        return [line for line in self.calls.read_text().splitlines() if line != "--version"]

    def compiled(self) -> int:
        return sum("small.cpp" in line for line in self.runs())

    def answer(self) -> int:
        built = build(self.folder, self.cache, defines=self.defines)
        return int(ctypes.CDLL(str(built.path)).answer())

    def left(self) -> list[str]:
        """What is in the cache, but for locks and logs."""
        names = [path.name for path in self.cache.iterdir()]
        return [name for name in names if not name.endswith((".lock", ".log"))]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Small:
    return Small(tmp_path, monkeypatch)
