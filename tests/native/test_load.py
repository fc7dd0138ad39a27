"""Loading libraries: what they register, and what cannot be loaded without ending the process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stateful_pipeline.errors import PipelineError, SourceError, StageError
from stateful_pipeline.libraries import LoadedLibrary, load
from stateful_pipeline.outcome import Exit, code_of


def shared(folder: Path, code: str, *options: str) -> Path:
    """Compile a few lines that include nothing of torch."""
    source, library = folder / "small.cpp", folder / "libsmall.so"
    source.write_text(code)
    command = ["c++", "-shared", "-fPIC", str(source), "-o", str(library), *options]
    subprocess.run(command, check=True)
    return library


def test_library_says_what_it_registered(counter: LoadedLibrary) -> None:
    assert counter.classes == ("counting.Counter", "counting.Forgetful", "counting.Unsaved")
    assert counter.operators == ("counting::bump", "counting::bump_declared", "counting::twice")


def test_loading_twice_is_loading_once(counter: LoadedLibrary, tmp_path: Path) -> None:
    assert load(counter.path) is counter
    (tmp_path / "link.so").symlink_to(counter.path)
    assert load(tmp_path / "link.so") is counter
    copied = Path(shutil.copy(counter.path, tmp_path / "copy.so"))
    assert load(copied) is counter  # a linker takes a copy for another library
    assert str(copied) not in torch.ops.loaded_libraries


def test_library_that_registers_nothing_is_loaded(tmp_path: Path) -> None:
    loaded = load(shared(tmp_path, "int answer() { return 42; }"))
    assert (loaded.classes, loaded.operators) == ((), ())


def test_missing_library_is_a_wrong_call(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"library .*nope\.so: no such file") as caught:
        load(tmp_path / "nope.so")
    assert code_of(caught.value) == Exit.WRONG


def refused(path: Path) -> PipelineError:
    with pytest.raises(StageError) as caught:
        load(path)
    assert code_of(caught.value) == Exit.FAILED
    assert str(path) not in torch.ops.loaded_libraries
    return caught.value


def test_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    junk = tmp_path / "libjunk.so"
    junk.write_bytes(b"junk" * 100)
    error = refused(junk)
    assert f"library {junk} cannot be loaded" in error.message
    assert error.hint is not None
    assert "no whole shared library" in error.hint


def test_library_that_ends_the_process_with_0_is_not_taken_for_loaded(tmp_path: Path) -> None:
    code = "#include <cstdlib>\nstruct Ends { Ends() { std::exit(0); } } ends;"
    error = refused(shared(tmp_path, code))
    assert "it ends the process with code 0" in error.message
    assert error.hint is not None
    assert "exit()" in error.hint


def test_library_that_is_cut_short_says_what_to_try(tmp_path: Path) -> None:
    library = shared(tmp_path, "char data[100000] = {1}; int answer() { return data[1]; }")
    with library.open("r+b") as file:
        file.truncate(5000)
    error = refused(library)
    assert error.hint is not None
    assert "build it, or copy it, again" in error.hint


def test_library_for_another_torch_is_refused_and_says_which_torch_this_is(
    tmp_path: Path,
) -> None:
    library = shared(tmp_path, "namespace c10 { void gone(); }\nvoid call() { c10::gone(); }")
    error = refused(library)
    assert "undefined symbol: _ZN3c104goneEv" in error.message
    assert error.hint is not None
    assert f"torch {torch.__version__}" in error.hint


def test_library_whose_dependency_is_missing_is_refused(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    gone = shared(inner, "int inner_answer() { return 42; }")
    outer = shared(
        tmp_path, "int inner_answer(); int outer_answer() { return inner_answer(); }", str(gone)
    )
    gone.unlink()
    error = refused(outer)
    assert "libsmall.so: cannot open shared object file" in error.message
    assert error.hint is not None
    assert f"linked to {gone}, which the linker does not find" in error.hint
    assert "torch" not in error.hint


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            "namespace",
            "registers the namespace 'my_classes', as {stack} (registration.cpp) did before",
        ),
        ("class", "registers 'my_classes.MyStackClass', as {stack} did before"),
        ("operator", "registers 'my_classes::manipulate_instance', as {stack} did before"),
        ("throw", "cannot be loaded: no licence found"),
        ("crash", "cannot be loaded: it crashes (SIGSEGV)"),
        ("exit", "cannot be loaded: it ends the process with code 7"),
    ],
)
def test_library_that_would_end_the_process_is_refused(
    stack: LoadedLibrary,
    clash: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    harm: str,
    message: str,
) -> None:
    monkeypatch.setenv("CLASH", harm)
    error = refused(clash)
    said = re.sub(r"\(\S+/stack/(registration\.cpp):\d+\)", r"(\1)", error.message)
    assert said == f"script: library {clash} {message.format(stack=stack.path)}"
    if harm in ("namespace", "class", "operator"):
        assert error.hint is not None
        assert "load one of the two" in error.hint
    assert capfd.readouterr() == ("", "")
    assert torch.classes.my_classes.MyStackClass(["still there"]).top() == "still there"


def test_name_that_something_else_registered_is_refused_too(
    stack: LoadedLibrary, clash: Path
) -> None:
    code = f"""
import torch
from pathlib import Path
from stateful_pipeline.errors import StageError
from stateful_pipeline.libraries import load
torch.classes.load_library({str(stack.path)!r})
try:
    load(Path({str(clash)!r}))
except StageError as error:
    print(error.message)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CLASH": "class"},
    )
    assert done.stdout.endswith(
        "registers 'my_classes.MyStackClass', as something else in this process did before\n"
    )


def test_library_that_changed_under_its_path_is_refused(tmp_path: Path) -> None:
    library = shared(tmp_path, "int first() { return 1; }")
    load(library)
    library.unlink()
    assert shared(tmp_path, "int second() { return 2; }") == library
    with pytest.raises(StageError, match="has changed since it was loaded") as caught:
        load(library)
    assert caught.value.hint is not None
    assert "new process" in caught.value.hint
