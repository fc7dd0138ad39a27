"""What is built again: where anything changes that a build has read, and where it is damaged."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateful_pipeline.libraries import build

READS_NUMBER = '#include "{}"\nextern "C" int answer() {{ return NUMBER; }}\n'
READS_MACRO = 'extern "C" int answer() { return NUMBER; }\n'


def number(path: Path, value: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#define NUMBER {value}\n")


def answers(small: Any, change: Callable[[int], None]) -> list[int]:
    """What the project answers after each change; without one, nothing is compiled."""
    found = []
    for value in (1, 2):
        change(value)
        found.append(small.answer())
        count = small.compiled()
        assert small.answer() == found[-1]
        assert small.compiled() == count
    return found


@pytest.mark.parametrize("folder", [".hidden", "by_hand"])
def test_a_header_in_a_folder_that_the_key_leaves_out_counts(small: Any, folder: str) -> None:
    header = small.folder / folder / "number.h"
    small.write("small.cpp", READS_NUMBER.format(f"{folder}/number.h"))
    header.parent.mkdir()
    (header.parent / "CMakeCache.txt").touch()
    assert answers(small, partial(number, header)) == [1, 2]


def test_a_header_in_a_linked_folder_counts(small: Any) -> None:
    small.write("small.cpp", READS_NUMBER.format("linked/number.h"))
    (small.folder / "linked").symlink_to(small.outside)
    assert answers(small, partial(number, small.outside / "number.h")) == [1, 2]


def test_a_static_library_from_outside_counts(small: Any) -> None:
    """Linked by its path, and by its name in a folder."""

    def archive(value: int) -> None:
        source = small.outside / "number.cpp"
        source.write_text(f"int number() {{ return {value}; }}\n")
        made = source.with_suffix(".o")
        subprocess.run(["c++", "-fPIC", "-c", source, "-o", made], check=True)
        library = small.outside / "libnumber.a"
        library.unlink(missing_ok=True)
        subprocess.run(["ar", "rcs", library, made], check=True)

    small.write("small.cpp", 'int number();\nextern "C" int answer() { return number(); }\n')
    for link in (
        "target_link_libraries(small PRIVATE ${OUTSIDE}/libnumber.a)\n",
        "target_link_directories(small PRIVATE ${OUTSIDE})\n"
        "target_link_libraries(small PRIVATE number)\n",
    ):
        small.write("CMakeLists.txt", small.cmake + link)
        assert answers(small, archive) == [1, 2]


@pytest.mark.parametrize(
    ("file", "text", "cmake"),
    [
        ("n.cmake", "add_definitions(-DNUMBER={})", "include(${{OUTSIDE}}/n.cmake)\n"),
        ("CMakeLists.txt", "set(N {} PARENT_SCOPE)", "add_subdirectory(${{OUTSIDE}} n)\n"),
        ("n.h.in", "#define NUMBER {}", "configure_file(${{OUTSIDE}}/n.h.in n.h)\n"),
    ],
)
@pytest.mark.parametrize("with_make", [False, True])
def test_what_cmake_reads_from_outside_counts(
    small: Any, file: str, text: str, cmake: str, with_make: bool, monkeypatch: Any
) -> None:
    if with_make:
        monkeypatch.setattr("stateful_pipeline.libraries.building.ninja", lambda: None)
    head, library = small.cmake.split("add_library", 1)
    more = {
        "n.cmake": "",
        "CMakeLists.txt": "add_definitions(-DNUMBER=${N})\n",
        "n.h.in": "include_directories(${CMAKE_BINARY_DIR})\n",
    }[file]
    small.write("CMakeLists.txt", f"{head}{cmake.format()}{more}add_library{library}")
    reads = file == "n.h.in"
    small.write("small.cpp", READS_NUMBER.format("n.h") if reads else READS_MACRO)

    def change(value: int) -> None:
        (small.outside / file).write_text(text.format(value) + "\n")

    assert answers(small, change) == [1, 2]


def test_a_variable_that_a_cmake_file_names_counts(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.write("CMakeLists.txt", small.cmake.replace("${ANSWER}", "$ENV{NUMBER}"))

    def change(value: int) -> None:
        monkeypatch.setenv("NUMBER", str(value))

    assert answers(small, change) == [1, 2]


@pytest.mark.parametrize("include", ["<number.h>", '"number.h"'])
def test_a_header_that_comes_to_be_found_first_counts(small: Any, include: str) -> None:
    first = small.outside.with_name("first")
    folders = f"target_include_directories(small BEFORE PRIVATE {first})\n"
    small.write("CMakeLists.txt", small.cmake + folders)
    small.write("small.cpp", f'#include {include}\nextern "C" int answer() {{ return NUMBER; }}\n')
    number(small.outside / "number.h", 1)

    def change(value: int) -> None:
        if value == 2:
            number(first / "number.h", 2)

    assert answers(small, change) == [1, 2]


def test_a_damaged_entry_is_built_again_and_that_is_said(small: Any) -> None:
    built = build(small.folder, small.cache, defines=small.defines).path
    described = built.with_name("entry.json")
    changes: list[Callable[[], object]] = [built.unlink, described.unlink]
    changes += [partial(built.write_bytes, b"\x7fELF"), partial(described.write_bytes, b"\xff")]
    whole = described.read_text()
    cut = whole.replace('"libraries": [', '"libraries": [], "others": [')
    texts = ("", "{}", "[]", "5", '{"files": 1}', cut)
    changes += [partial(described.write_text, text) for text in texts]
    for change in changes:
        count = small.compiled()
        change()
        with pytest.warns(UserWarning, match="(missing|damaged): it is built again"):
            assert build(small.folder, small.cache, defines=small.defines).path == built
        assert small.compiled() > count
    assert not build(small.folder, small.cache, defines=small.defines).compiled
    assert small.left() == [built.parent.name]
    shutil.rmtree(built.parent)
    assert small.answer() == 1
