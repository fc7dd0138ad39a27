from __future__ import annotations

import pytest

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import load_job, load_spec, plan_runs

SPEC = """\
name: {name}
source: {{python: 'stateful_pipeline.zoo.counter:Counter'}}
inputs: {{x: {{shape: [1, 3]}}}}
targets: {{cpu: {{runtime: onnxruntime}}}}
"""


def write_specs(folder, *names):
    for name in names:
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name))


def write_job(folder, text):
    path = folder / "nightly.yaml"
    path.write_text(f"schema: 1\nkind: job\nname: nightly\n{text}\n")
    return path


def test_a_pattern_finds_the_specs_beside_the_job_but_not_the_job_itself(tmp_path):
    write_specs(tmp_path, "b", "a")
    job = write_job(tmp_path, "specs: ['*.yaml']")
    assert [run.load().name for run in plan_runs(job)] == ["a", "b"]


@pytest.mark.parametrize("pattern", ["{}/?.yaml", "{}/**/?.yaml", "**/?.yaml"])
def test_a_pattern_may_be_absolute_and_may_reach_into_folders(tmp_path, pattern):
    write_specs(tmp_path, "a", "b")
    job = write_job(tmp_path, f"specs: ['{pattern.format(tmp_path)}']")
    assert [run.load().name for run in plan_runs(job)] == ["a", "b"]


def test_set_changes_every_spec_and_the_shell_overrides_it(tmp_path):
    write_specs(tmp_path, "a", "b")
    job = write_job(tmp_path, "specs: [a.yaml, b.yaml]\nset: {verify.steps: 7, verify.atol: 1e-3}")
    runs = plan_runs(job, ["verify.steps=9"])
    assert [(run.load().verify.steps, run.load().verify.atol) for run in runs] == [(9, 1e-3)] * 2


def test_a_matrix_runs_every_combination_under_a_name_of_its_own(tmp_path):
    write_specs(tmp_path, "a")
    job = write_job(
        tmp_path, "specs: [a.yaml]\nmatrix: {targets.cpu.threads: [1, 2], export.opset: [18, 20]}"
    )
    runs = list(plan_runs(job))
    assert [(run.load().targets["cpu"].threads, run.load().export.opset) for run in runs] == [
        (1, 18), (1, 20), (2, 18), (2, 20),
    ]  # fmt: skip
    assert [run.load().name for run in runs] == [
        "a-threads-1-opset-18", "a-threads-1-opset-20",
        "a-threads-2-opset-18", "a-threads-2-opset-20",
    ]  # fmt: skip


def test_gates_are_the_same_for_every_run(tmp_path):
    write_specs(tmp_path, "a", "b")
    job = write_job(tmp_path, "specs: ['?.yaml']\ngates: {max_abs_error: 1e-6}")
    assert [run.gates.max_abs_error for run in plan_runs(job)] == [1e-6, 1e-6]


def test_a_spec_by_itself_is_one_run_without_gates(tmp_path):
    write_specs(tmp_path, "a")
    (run,) = plan_runs(tmp_path / "a.yaml")
    assert run.load().name == "a"
    assert not run.gates.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("specs: []", 4, "specs"),
        ("specs: [a.yaml]\ngates: {max_error: 1}", 5, "did you mean `max_abs_error`"),
        ("specs: [a.yaml]\ngates: {p50_ms: -1}", 5, "more than 0"),
        ("specs: [a.yaml]\nmatrix: {targets.cpu.threads: []}", 5, "entries"),
        ("specs: [a.yaml]\nset: {'a..b': 1}", 5, "path of keys"),
        ("specs: [a.yaml]\nspec: 1", 5, "did you mean `specs`"),
    ],
)
def test_a_broken_job_is_refused_with_its_line(tmp_path, text, line, word):
    path = write_job(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load_job(path)
    assert caught.value.line == line
    assert word in str(caught.value)


def test_a_pattern_that_matches_nothing_is_an_error_at_its_line(tmp_path):
    job = write_job(tmp_path, "specs:\n  - 'missing/*.yaml'")
    with pytest.raises(SpecError, match="matches no spec") as caught:
        list(plan_runs(job))
    assert caught.value.line == 5


def test_a_job_in_a_job_is_one_error_at_the_entry_that_lists_it(tmp_path):
    write_specs(tmp_path, "a")
    job = write_job(
        tmp_path,
        "specs:\n  - a.yaml\n  - nightly.yaml\nmatrix: {targets.cpu.threads: [1, 2]}",
    )
    with pytest.raises(SpecError, match="is a job, not a spec") as caught:
        plan_runs(job)
    assert caught.value.line == 6
    assert caught.value.key == "specs[1]"
    assert caught.value.others == ()


@pytest.mark.parametrize("entry", ["['*.yaml']", "[a.yaml, broken.yaml]"])
def test_a_spec_that_cannot_be_read_is_left_to_its_own_run(tmp_path, entry):
    write_specs(tmp_path, "a")
    (tmp_path / "broken.yaml").write_text("name: [\n")
    runs = plan_runs(write_job(tmp_path, f"specs: {entry}"))
    assert [run.path.name for run in runs] == ["a.yaml", "broken.yaml"]


def test_a_job_where_a_spec_is_wanted_is_refused(tmp_path):
    job = write_job(tmp_path, "specs: [a.yaml]")
    with pytest.raises(SpecError, match="this is a job") as caught:
        load_spec(job)
    assert caught.value.line == 2
