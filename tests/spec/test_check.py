import sys

import numpy as np
import pytest

from stateful_pipeline.errors import SourceError, SpecError
from stateful_pipeline.spec import check_spec, load_spec

TRAP = "raise RuntimeError('this must not be imported')\n"


@pytest.fixture
def check(tmp_path):
    def run(source, inputs="x: {shape: [1]}", rest=""):
        path = tmp_path / "spec.yaml"
        path.write_text(f"name: a\nsource: {{{source}}}\ninputs: {{{inputs}}}\n{rest}\n")
        check_spec(load_spec(path))

    return run


def write(folder, **files):
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_neither_a_module_nor_its_parents_are_imported(tmp_path, check):
    write(tmp_path, trapped__init=TRAP, trapped__deep__net=TRAP + "class Net: pass\n")
    (tmp_path / "trapped" / "init.py").rename(tmp_path / "trapped" / "__init__.py")
    (tmp_path / "trapped" / "deep" / "__init__.py").write_text(TRAP)
    check("python: 'trapped.deep.net:Net'")
    check("file: 'trapped/deep/net.py:Net'")
    assert not any(name.startswith("trapped") for name in sys.modules)


@pytest.mark.parametrize(
    "code",
    [
        "class Net: pass",
        "def Net(): ...",
        "Net = object",
        "Net: type = object",
        "from json import JSONDecoder as Net",
        "import json as Net",
        "if True:\n    class Net: pass\nelse:\n    Net = None",
        "try:\n    from fast import Net\nexcept ImportError:\n    Net = None",
        "from json import *",
        "def __getattr__(name): return object",
        "globals()['Net'] = object",
        "first, (Net, last) = 1, (2, 3)",
    ],
)
def test_a_class_can_come_about_in_many_ways(tmp_path, check, code):
    write(tmp_path, checked_net=code)
    check("file: 'checked_net.py:Net'")
    check("python: 'checked_net:Net'")


def test_names_inside_functions_and_other_classes_do_not_count(tmp_path, check):
    write(tmp_path, inner="def f():\n    Net = 3\n\n\nclass Other:\n    class Net: pass\n")
    with pytest.raises(SourceError, match="no class 'Net'"):
        check("file: 'inner.py:Net'")
    check("file: 'inner.py:Other.Net'")


def test_what_cannot_be_seen_in_files_is_not_refused(tmp_path, check):
    check("python: 'torch._C._VariableFunctions:Anything'")
    check("python: 'math:Anything'")
    check("python: 'builtins:Anything'")
    write(tmp_path, magic__init="__path__.append('elsewhere')\n")
    (tmp_path / "magic" / "init.py").rename(tmp_path / "magic" / "__init__.py")
    check("python: 'magic.sub:Net'")
    write(tmp_path, spaced__one="x = 1\n")
    check("python: 'spaced.two:Net'")


def test_a_recording_must_hold_its_array(tmp_path, check):
    np.savez(tmp_path / "steps.npz", frames=np.zeros((4, 1)))
    check("python: 'json:JSONDecoder'", "x: {shape: [1], data: {npz: steps.npz, key: frames}}")
    with pytest.raises(SpecError, match="did you mean `frames`"):
        check("python: 'json:JSONDecoder'", "x: {shape: [1], data: {npz: steps.npz, key: frame}}")
    (tmp_path / "steps.npz").write_bytes(b"not a zip")
    with pytest.raises(SpecError, match="npz archive"):
        check("python: 'json:JSONDecoder'", "x: {shape: [1], data: {npz: steps.npz, key: frames}}")


def test_initial_values_and_programs_must_be_there(check):
    with pytest.raises(SpecError, match="no such file") as caught:
        check("exported_program: m.pt2", rest="states: {h: {init: {file: h.npz, key: h}}}")
    assert [caught.value.line, caught.value.others[0].line] == [2, 4]
    assert isinstance(caught.value, SourceError)


def test_a_scripted_file_must_be_there_and_is_not_loaded(tmp_path, check):
    with pytest.raises(SourceError, match="no such file"):
        check("torchscript: m.jit")
    (tmp_path / "m.jit").write_bytes(b"this must not be read")
    check("torchscript: m.jit, reset: reset_states")


FORM = "class Ring: pass\n"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("file: forms.py:Rong", "classes.*there is no class 'Rong'"),
        ("file: missing.py:Ring", "classes.*no such file"),
        ("python: 'no_such_package.forms:Ring'", "classes.*there is no module 'no_such_package'"),
        ("python: 'json:JSONRing'", "classes.*there is no class 'JSONRing'"),
    ],
)
def test_the_explicit_forms_of_classes_must_be_there(tmp_path, check, form, message):
    write(tmp_path, forms=TRAP + FORM)
    rest = "classes:\n  acme.Ring: {file: forms.py:Ring}\n  acme.Other: {%s}"
    check("python: 'json:JSONDecoder'", rest=rest % "file: forms.py:Ring")
    with pytest.raises(SourceError, match=message) as caught:
        check("python: 'json:JSONDecoder'", rest=rest % form)
    assert caught.value.line == 6


def test_a_folder_is_no_file(tmp_path, check):
    (tmp_path / "w.pt").mkdir()
    with pytest.raises(SpecError, match="folder"):
        check("python: 'json:JSONDecoder', weights: w.pt")


def test_the_hint_has_classes_first_and_does_not_call_a_function_a_class(tmp_path, check):
    code = "def make(): ...\nclass Encoder: pass\ndef build(): ...\nclass Decoder: pass\n"
    write(tmp_path, checked_parts=code)
    with pytest.raises(SourceError) as caught:
        check("file: 'checked_parts.py:Xyz'")
    assert caught.value.hint == "it has: Encoder, Decoder, make, build"
    with pytest.raises(SourceError) as caught:
        check("file: 'checked_parts.py:Encodr'")
    assert caught.value.hint == "did you mean `Encoder`?"
