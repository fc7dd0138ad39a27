"""Building C++ projects into a cache: small ones, without torch, by a compiler that counts."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateful_pipeline.libraries import build, default_cache
from stateful_pipeline.libraries.toolchain import cmake, ninja


def test_second_build_runs_no_compiler(small: Any) -> None:
    first = build(small.folder, small.cache, defines=small.defines)
    assert first.compiled
    before = small.runs()
    assert any("small.cpp" in run for run in before)
    second = build(small.folder, small.cache, defines=small.defines)
    assert not second.compiled
    assert second.path == first.path
    assert small.runs() == before


def test_changed_source_is_compiled_into_another_entry(small: Any) -> None:
    assert small.answer() == 1
    text = (small.folder / "small.cpp").read_text()
    small.write("small.cpp", 'extern "C" int answer() { return 5; }\n')
    assert small.answer() == 5
    small.write("small.cpp", text)
    count = small.compiled()
    assert small.answer() == 1
    assert small.compiled() == count
    assert len(small.left()) == 2


def test_option_flag_and_compiler_are_in_the_key(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {build(small.folder, small.cache, defines=small.defines).path}
    paths.add(build(small.folder, small.cache, defines={**small.defines, "ANSWER": "2"}).path)
    paths.add(build(small.folder, small.cache, defines=small.defines, build_type="Debug").path)
    monkeypatch.setenv("CXXFLAGS", "-DANSWER_TOO=1")
    paths.add(build(small.folder, small.cache, defines=small.defines).path)
    monkeypatch.delenv("CXX")
    paths.add(build(small.folder, small.cache, defines=small.defines).path)
    assert len(paths) == 5


def test_header_from_outside_of_the_project_counts_too(small: Any) -> None:
    header = small.outside / "number.h"
    header.write_text("#define NUMBER 1\n")
    small.write("small.cpp", '#include <number.h>\nextern "C" int answer() { return NUMBER; }\n')
    assert small.answer() == 1
    header.write_text("#define NUMBER 2\n")
    assert small.answer() == 2
    count = small.compiled()
    header.write_text("#define NUMBER 1\n")
    assert small.answer() == 1
    assert small.compiled() == count


def test_make_does_where_there_is_no_ninja(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateful_pipeline.libraries.building.ninja", lambda: None)
    header = small.outside / "number.h"
    header.write_text("#define NUMBER 1\n")
    small.write("small.cpp", '#include <number.h>\nextern "C" int answer() { return NUMBER; }\n')
    assert small.answer() == 1
    header.write_text("#define NUMBER 2\n")
    assert small.answer() == 2


def test_builds_made_by_hand_and_hidden_folders_are_no_sources(small: Any) -> None:
    first = build(small.folder, small.cache, defines=small.defines)
    (small.folder / "build").mkdir()
    small.write("build/CMakeCache.txt", "")
    small.write("build/object.o", "")
    (small.folder / ".git").mkdir()
    small.write(".git/HEAD", "")
    assert not build(small.folder, small.cache, defines=small.defines).compiled
    small.write("notes.h", "")
    again = build(small.folder, small.cache, defines=small.defines)
    assert again.compiled
    assert again.path != first.path


def test_folder_may_have_any_name(small: Any) -> None:
    small.folder = small.folder.rename(small.folder.parent / "a [b] *")
    assert small.answer() == 1
    count = small.compiled()
    assert small.answer() == 1
    assert small.compiled() == count


def test_libraries_come_after_those_that_they_are_linked_to(small: Any) -> None:
    small.write(
        "CMakeLists.txt",
        """\
cmake_minimum_required(VERSION 3.18)
project(small LANGUAGES CXX)
add_library(a_outer SHARED outer.cpp)
add_library(b_inner SHARED small.cpp)
set_target_properties(b_inner PROPERTIES VERSION 1.2 SOVERSION 1)
add_executable(ask ask.cpp)
add_executable(never EXCLUDE_FROM_ALL never.cpp)
target_compile_definitions(b_inner PRIVATE ANSWER=7)
target_link_libraries(a_outer PRIVATE b_inner)
target_link_libraries(ask PRIVATE a_outer)
""",
    )
    small.write(
        "outer.cpp", 'extern "C" int answer();\nextern "C" int outer() { return answer(); }\n'
    )
    small.write("ask.cpp", 'extern "C" int outer();\nint main() { return outer(); }\n')
    small.write("never.cpp", "#error never\n")
    built = build(small.folder, small.cache)
    assert [path.name for path in built.libraries] == ["libb_inner.so", "liba_outer.so"]
    [program] = built.programs
    assert subprocess.run([program], check=False).returncode == 7
    assert ctypes.CDLL(str(built.libraries[1])).outer() == 7


def test_shared_library_is_taken_as_it_is(tmp_path: Path) -> None:
    library = tmp_path / "libready.so.1"
    library.write_bytes(b"")
    built = build(library, tmp_path / "cache")
    assert (built.path, built.compiled) == (library, False)
    assert not (tmp_path / "cache").exists()


def test_programs_of_the_python_packages_are_taken_where_path_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, variable in (("cmake", "CMAKE_BIN_DIR"), ("ninja", "BIN_DIR")):
        (tmp_path / f"{name}.py").write_text(f"{variable} = {str(tmp_path / 'bin')!r}\n")
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("")
        program.chmod(0o755)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert cmake() == str(tmp_path / "bin" / "cmake")
    assert ninja() == str(tmp_path / "bin" / "ninja")
    for name in ("cmake", "ninja"):
        monkeypatch.delitem(sys.modules, name)


def test_processes_that_build_the_same_at_once_compile_it_once(small: Any) -> None:
    code = f"""
from pathlib import Path
from stateful_pipeline.libraries.building import build
built = build(Path({str(small.folder)!r}), Path({str(small.cache)!r}), defines={small.defines!r})
print(built.path)
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert said[0] == said[1] != ""
    once = small.compiled()
    monkey = small.left()
    assert len(monkey) == 1
    shutil.rmtree(small.cache)
    small.calls.write_text("")
    build(small.folder, small.cache, defines=small.defines)
    assert small.compiled() == once


def test_cache_of_a_user_is_where_caches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/stateful-pipeline/libraries")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache() == Path("/home/someone/.cache/stateful-pipeline/libraries")
