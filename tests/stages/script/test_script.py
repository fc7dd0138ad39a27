from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stateful_pipeline.errors import SourceError, SpecError

BAD_CLASS = 'source.file="model.py:{}"'


def test_the_code_before_is_readable_and_names_no_folder(run_stages, tmp_path) -> None:
    artifacts = run_stages(last="script")
    code = (artifacts.folder / "script" / "module.py").read_text()
    assert "class Leaky" in code
    assert str(tmp_path) not in code
    graph = (artifacts.folder / "script" / "graph.py").read_text()
    assert "h_in" in graph
    assert artifacts.notes["script"]["states"] == ["h"]
    assert artifacts.notes["script"]["traced_at"]["batch"] >= 2


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (BAD_CLASS.format("Fails"), SourceError, "no weights here"),
        (BAD_CLASS.format("Missing"), SourceError, "has no 'Missing'"),
        (BAD_CLASS.format("not_a_module"), SourceError, "gives a int"),
        ("source.kwargs={sise: 4}", SourceError, "sise"),
        ("source.reset=restart", SourceError, "has no 'restart'"),
        ("inputs.y={shape: [batch, 3]}", SpecError, "takes no 'y'"),
    ],
)
def test_a_source_that_cannot_be_had_names_the_spec(run_stages, change, error, said) -> None:
    with pytest.raises(error, match=said) as caught:
        run_stages(change, last="script")
    assert caught.value.file is not None


def test_the_initial_value_comes_from_reset(run_stages) -> None:
    artifacts = run_stages("source.reset=reset_states", last="script")
    (state,) = artifacts.discovery.reference.states
    assert state.initial.tolist() == [[2.0] * 3]


def test_a_declared_init_comes_before_reset(run_stages) -> None:
    artifacts = run_stages("source.reset=reset_states\nstates.h={init: {value: 5}}", last="script")
    (state,) = artifacts.discovery.reference.states
    assert state.initial.tolist() == [[5.0] * 3]


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_weights_are_loaded(run_stages, tmp_path, suffix: str) -> None:
    weights = {"decay": torch.tensor([0.1, 0.2, 0.3]), "h": torch.ones(1, 3)}
    path = tmp_path / f"w.{suffix}"
    save_file(weights, path) if suffix == "safetensors" else torch.save(weights, path)
    module = run_stages(f"source.weights=w.{suffix}", last="script").subject.module
    assert module.decay.tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_a_file_that_holds_more_than_weights_is_refused_in_our_words(run_stages, tmp_path) -> None:
    for content in (b"import torch\n", None):
        if content is None:
            torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "w.pt")
        else:
            (tmp_path / "w.pt").write_bytes(content)
        with pytest.raises(SourceError, match=r"holds objects beside tensors") as caught:
            run_stages("source.weights=w.pt", last="script")
        assert "weights_only" not in str(caught.value)


def test_weights_that_do_not_fit_are_refused_by_name(run_stages, tmp_path) -> None:
    save_file({"decay": torch.zeros(4), "other": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(SourceError, match=r"'other' is not in the model.*'h' is not in the file"):
        run_stages("source.weights=w.safetensors", last="script")


def test_a_fixed_argument_is_a_constant_of_the_graph(run_stages) -> None:
    artifacts = run_stages("inputs.gain={value: 3.0}", last="rewrite")
    assert artifacts.functional.inputs == ("x",)
    given = {"x": torch.ones(2, 3)}
    _, after = artifacts.functional.run({"h": torch.zeros(2, 3)}, given)
    assert after["h"].tolist() == [[3.0] * 3] * 2


def test_an_axis_of_one_size_is_fixed(run_stages) -> None:
    fixed = "dynamic_axes.batch={min: 2, opt: 2, max: 2}"
    for declared in ("", "\nstates.h={shape: [batch, 3], init: zeros}"):
        artifacts = run_stages(f"{fixed}{declared}", last="export")
        assert artifacts.contract.axes == ()
        assert artifacts.contract.inputs[0].shape == (2, 3)
        assert artifacts.contract.state("h").shape == (2, 3)


def test_an_initial_value_is_expanded_along_an_axis_of_one_size(run_stages) -> None:
    fixed = "dynamic_axes.batch={min: 2, opt: 2, max: 2}\nsource.reset=reset_states"
    artifacts = run_stages(fixed, last="export")
    start = artifacts.contract.state("h").initial({}, artifacts.folder)
    assert start.tolist() == [[2.0] * 3] * 2


def test_an_axis_that_never_is_one_leaves_the_models_own_size_to_be_found(run_stages) -> None:
    artifacts = run_stages("dynamic_axes.batch={min: 3, opt: 4, max: 8}", last="export")
    assert artifacts.contract.state("h").shape == ("batch", 3)


def test_recorded_input_is_used(run_stages, tmp_path) -> None:
    np.savez(tmp_path / "d.npz", x=np.full((5, 1, 3), 7.0, np.float32))
    artifacts = run_stages("inputs.x.data={npz: d.npz, key: x}", last="script")
    assert artifacts.subject.plan.step({"batch": 2}, 0, 0)["x"].tolist() == [[7.0] * 3] * 2
