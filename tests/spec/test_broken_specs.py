import runpy
from pathlib import Path

import pytest

from stateful_pipeline.errors import SourceError, SpecError
from stateful_pipeline.spec import check_spec, load_spec

LIST = runpy.run_path(str(Path(__file__).with_name("broken_specs.py")))


def write(folder, broken):
    path = folder / "spec.yaml"
    text = broken.text
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    for name, content in broken.files.items():
        (folder / name).write_text(content)
    return path


@pytest.mark.parametrize("broken", LIST["BROKEN"], ids=lambda broken: broken.id)
def test_a_broken_spec_is_refused_with_file_line_and_reason(tmp_path, broken):
    path = write(tmp_path, broken)
    if broken.needs == "run":
        check_spec(load_spec(path))
        return
    if broken.needs == "check":
        spec = load_spec(path)
        with pytest.raises(SpecError) as caught:
            check_spec(spec)
    else:
        with pytest.raises(SpecError) as caught:
            load_spec(path)
    error = caught.value
    assert error.file == str(tmp_path / broken.file)
    assert error.line == broken.line
    assert broken.word in str(error)
    assert error.line is None or error.place.column is not None


def test_the_good_part_of_the_broken_specs_is_good(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(LIST["GOOD"])
    check_spec(load_spec(path))


def test_there_are_enough_of_them_and_their_names_differ():
    ids = [broken.id for broken in LIST["BROKEN"]]
    assert len(set(ids)) == len(ids) >= 25


@pytest.mark.parametrize("seed", ["-1", "true", "1.5"])
def test_a_faulty_entry_does_not_make_its_list_too_short(tmp_path, seed):
    path = tmp_path / "spec.yaml"
    path.write_text(LIST["GOOD"] + f"verify: {{seeds: [{seed}]}}\n")
    with pytest.raises(SpecError, match=r"verify\.seeds\[0\]") as caught:
        load_spec(path)
    assert "must have entries" not in str(caught.value)


def test_a_missing_class_is_a_source_error(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(LIST["GOOD"].replace(":Counter", ":Gone"))
    with pytest.raises(SourceError):
        check_spec(load_spec(path))


def test_all_faults_of_a_file_are_reported_together_by_line(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: a/b\n"
        "source: {pyton: 'a:B'}\n"
        "inputs:\n"
        "  x: {shape: [batch, -1]}\n"
        "verify: {steps: none, atol: .inf}\n"
        "targets:\n"
        "  trt: {runtime: tensorrt, precision: fp17, plugins: [a]}\n"
        "dynamic_axes: {t: {opt: 3, max: 2}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    faults = [caught.value, *caught.value.others]
    assert [fault.line for fault in faults] == [1, 2, 2, 4, 4, 5, 5, 7, 7, 8]
    assert all(fault.key for fault in faults)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "gone.yaml")
    assert caught.value.file == str(tmp_path / "gone.yaml")
    with pytest.raises(SpecError):
        load_spec(tmp_path)
