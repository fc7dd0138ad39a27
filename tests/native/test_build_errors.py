"""Builds that fail or are interrupted: what is said, and what is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stateful_pipeline.errors import SourceError, StageError
from stateful_pipeline.libraries import build
from stateful_pipeline.libraries.toolchain import cmake, ninja
from stateful_pipeline.outcome import Exit, code_of


def test_compiler_error_is_shown_with_its_line_and_leaves_no_entry(small: Any) -> None:
    source = small.write("small.cpp", 'extern "C" int answer() {\n  return nonsense;\n}\n')
    with pytest.raises(StageError) as caught:
        small.answer()
    error = caught.value
    assert (error.file, error.line) == (str(source), 2)
    assert "'nonsense' was not declared" in error.message
    assert "return nonsense;" in error.message  # the compiler's own words
    assert code_of(error) == Exit.FAILED
    assert small.left() == []
    assert error.hint is not None
    log = Path(error.hint.removeprefix("the whole log is in "))
    assert "nonsense" in log.read_text()
    small.write("small.cpp", 'extern "C" int answer() { return 3; }\n')
    assert small.answer() == 3


def test_error_of_cmake_is_shown_with_its_line(small: Any) -> None:
    lists = small.write("CMakeLists.txt", small.cmake + "find_package(NoSuchThing REQUIRED)\n")
    with pytest.raises(StageError, match="NoSuchThing") as caught:
        small.answer()
    assert (caught.value.file, caught.value.line) == (str(lists), small.cmake.count("\n") + 1)


TEMPLATE = """\
#pragma once
template <class T> struct Check { static_assert(sizeof(T) > 100, "too small"); };
template <class T, class... More> int check(T) { return Check<T>(), 0; }
"""


def test_error_in_a_header_of_others_is_told_at_the_line_that_led_there(small: Any) -> None:
    header = small.outside / "others.h"
    header.write_text(TEMPLATE)
    more = ", ".join(["std::tuple<unsigned long long, long double>"] * 40)
    code = f"int answer() {{\n  return check<int, {more}>(1);\n}}\n"
    source = small.write("small.cpp", f'#include "others.h"\n#include <tuple>\n{code}')
    with pytest.raises(StageError, match="too small") as caught:
        small.answer()
    assert (caught.value.file, caught.value.line) == (str(source), 4)
    assert str(header) in caught.value.message
    assert max(map(len, caught.value.message.splitlines())) < 500


def test_undefined_symbol_at_link_time_is_shown(small: Any) -> None:
    small.write("CMakeLists.txt", small.cmake + "add_executable(run run.cpp)\n")
    small.write("run.cpp", "int missing();\nint main() { return missing(); }\n")
    with pytest.raises(StageError, match="undefined reference to `missing"):
        small.answer()


def test_project_that_makes_nothing_to_load_is_refused(small: Any) -> None:
    small.write("CMakeLists.txt", small.cmake.replace("SHARED", "STATIC"))
    with pytest.raises(StageError, match="neither a shared library nor a program") as caught:
        small.answer()
    assert caught.value.hint is not None
    assert "SHARED" in caught.value.hint
    assert small.left() == []


@pytest.mark.parametrize("name", ["nowhere", "folder", "model.py"])
def test_what_is_neither_library_nor_project_is_a_wrong_call(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "model.py").touch()
    with pytest.raises(SourceError, match=f"library .*{name}: ") as caught:
        build(tmp_path / name, tmp_path / "cache")
    assert caught.value.hint == "a library is a .so file, or a folder with a CMakeLists.txt"
    assert code_of(caught.value) == Exit.WRONG


def test_compiler_that_is_not_there_is_named(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(StageError, match="no C\\+\\+ compiler 'no-such-compiler'"):
        small.answer()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StageError, match="no C\\+\\+ compiler on PATH") as caught:
        small.answer()
    assert caught.value.hint is not None
    assert "apt install g++" in caught.value.hint


def test_machine_without_cmake_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "cmake", None)
    monkeypatch.setitem(sys.modules, "ninja", None)
    for tool in (cmake, ninja):
        with pytest.raises(StageError) as caught:
            tool()
        assert caught.value.hint is not None
        assert "pip install" in caught.value.hint


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_interrupt_ends_the_compiler_and_leaves_no_entry(small: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    slow = tmp_path / "slow-c++"
    # It stops at the project's file, so that the interrupt comes in the middle of the build.
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *small.cpp*) echo $$ > {started}.new; mv {started}.new {started};'
        ' sleep 600;; esac\nexec c++ "$@"\n'
    )
    slow.chmod(0o755)
    os.environ["CXX"] = str(slow)  # the fixture gives the variable back

    def interrupt() -> None:
        wait_for(started)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        small.answer()
    watcher.join()
    assert small.left() == []
    compiler = int(started.read_text())
    until = time.monotonic() + 60
    while Path(f"/proc/{compiler}").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    slow.write_text('#!/bin/sh\nexec c++ "$@"\n')
    assert small.answer() == 1


def test_what_a_killed_build_left_is_cleared_away(small: Any) -> None:
    first = build(small.folder, small.cache, defines=small.defines)
    stem = first.path.parent.name.rpartition("-")[0]
    shutil.rmtree(first.path.parent)
    (small.cache / f".{stem}.left" / "tree").mkdir(parents=True)
    assert small.answer() == 1
    assert small.left() == [first.path.parent.name]
