"""``source: {onnx: file}``: states that are explicit already get a contract and a runner."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import stateful_pipeline as sp
from stateful_pipeline.errors import SourceError, SpecError
from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages.script.subject import prepare

LEAKY = """
<ir_version: 8, opset_import: ["" : 18], doc_string: "made elsewhere">
leaky (float[batch, 3] x, float[batch, 3] memory, float gain)
    => (float[batch, 3] y, float[batch, 3] memory_next)
{
    half = Constant <value_float = 0.5> ()
    decayed = Mul (memory, half)
    scaled = Mul (x, gain)
    memory_next = Add (decayed, scaled)
    y = Tanh (memory_next)
}
"""
SPEC = """
name: leaky
source: {onnx: leaky.onnx}
inputs:
  x: {shape: [batch, 3]}
  gain: {value: 2}
dynamic_axes: {batch: {min: 1, opt: 2, max: 3}}
states:
  cell.h: {input: memory, output: memory_next}
verify: {steps: 6, reset_every: 4}
benchmark: {steps: 2}
mlflow: {enabled: false}
"""


@pytest.fixture
def write(project):
    """Return a function that writes ``leaky.onnx`` and its spec."""

    def run(text: str = LEAKY, spec: str = SPEC) -> Path:
        onnx.save(onnx.parser.parse_model(text), project.folder / "leaky.onnx")
        return project.write("leaky.yaml", spec)

    return run


def built(project) -> Path:
    return project.out / "leaky" / "export" / "model.onnx"


def xs(count: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(shape).astype(np.float32) for _ in range(count)]


def test_the_runner_does_what_the_file_does_with_plain_feeds(project, write) -> None:
    ran = project.run(write())
    assert ran.code == 0, ran.text
    assert "equal to the file with plain feeds" in ran.text
    session = onnxruntime.InferenceSession(project.folder / "leaky.onnx")
    runner = sp.StatefulRunner(built(project))
    for _ in range(2):
        memory = np.zeros((2, 3), np.float32)
        for x in xs(5, (2, 3)):
            feeds = {"x": x, "memory": memory, "gain": np.array(2, np.float32)}
            y, memory = session.run(["y", "memory_next"], feeds)
            np.testing.assert_array_equal(runner.run({"x": x})["y"], y)
            np.testing.assert_array_equal(runner.state["cell.h"], memory)
        runner.reset()


def test_names_stay_and_a_fixed_input_is_a_constant(project, write) -> None:
    assert project.run(write()).code == 0
    model = onnx.load(built(project))
    assert [value.name for value in model.graph.input] == ["x", "memory"]
    assert [value.name for value in model.graph.output] == ["y", "memory_next"]
    assert model.opset_import[0].version == 18
    assert project.manifest()["stages"]["script"]["notes"]["frontend"] == "onnx"
    (state,) = sp.StatefulRunner(built(project)).contract.states
    assert (state.name, state.input, state.output) == ("cell.h", "memory", "memory_next")
    assert state.shape == ("batch", 3)


def test_weights_beside_the_file_come_along(project, write) -> None:
    path = write()
    model = onnx.parser.parse_model(LEAKY.replace("half = Constant <value_float = 0.5> ()", ""))
    half = np.full((1, 3), 0.25, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(half, "half"))
    onnx.save(
        model, project.folder / "leaky.onnx", save_as_external_data=True, location="weights.bin",
        size_threshold=0,
    )  # fmt: skip
    assert project.run(path).code == 0
    (project.folder / "weights.bin").unlink()
    runner = sp.StatefulRunner(built(project))
    x = np.ones((1, 3), np.float32)
    runner.run({"x": x})
    np.testing.assert_allclose(runner.run({"x": x})["y"], np.tanh([[2.5] * 3]), atol=1e-6)


def test_what_has_a_default_in_the_file_is_no_input(project, write) -> None:
    path = write(spec=SPEC.replace("  gain: {value: 2}\n", ""))
    model = onnx.load(project.folder / "leaky.onnx")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(3), "gain"))
    onnx.save(model, project.folder / "leaky.onnx")
    assert project.run(path).code == 0
    x = np.ones((1, 3), np.float32)
    got = sp.StatefulRunner(built(project)).run({"x": x})["y"]
    np.testing.assert_allclose(got, np.tanh([[3.0] * 3]), atol=1e-6)


def test_a_state_cannot_have_the_name_of_a_part_of_modules(write) -> None:
    path = write(spec=SPEC.replace("cell.h:", "training:"))
    with pytest.raises(SpecError, match="cannot be that of a state"):
        prepare(load_spec(path))


def test_an_axis_of_one_size_is_a_number(project, write) -> None:
    path = write(spec=SPEC.replace("{min: 1, opt: 2, max: 3}", "{min: 2, opt: 2, max: 2}"))
    assert project.run(path).code == 0
    contract = sp.StatefulRunner(built(project)).contract
    assert (contract.states[0].shape, contract.outputs[0].shape) == ((2, 3), (2, 3))


def test_an_initial_value_is_declared(project, write) -> None:
    path = write(spec=SPEC.replace("{input: memory,", "{init: {value: 1.5}, input: memory,"))
    assert project.run(path).code == 0
    runner = sp.StatefulRunner(built(project))
    x = np.zeros((1, 3), np.float32)
    np.testing.assert_allclose(runner.run({"x": x})["y"], np.tanh(np.full((1, 3), 0.75)), atol=1e-6)


def test_a_state_that_grows_and_one_that_stays(project, write) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    cache (float[1, 3] x, float[past, 3] k, float[1, 3] bias)
        => (float[1, 3] y, float[total, 3] k_next, float[1, 3] bias_next)
    {
        k_next = Concat <axis = 0> (k, x)
        mean = ReduceMean <keepdims = 1> (k_next, axes)
        y = Add (mean, bias)
        bias_next = Identity (bias)
    }
    """.replace("mean =", "axes = Constant <value_ints = [0]> ()\n        mean =")
    spec = """
    name: leaky
    source: {onnx: leaky.onnx}
    inputs: {x: {shape: [1, 3]}}
    states:
      k: {shape: [past, 3], out_shape: [past + 1, 3], input: k, output: k_next}
      bias: {init: {value: 0.5}, input: bias, output: bias_next}
    verify: {steps: 6, reset_every: 4}
    benchmark: {steps: 0}
    mlflow: {enabled: false}
    """
    ran = project.run(write(text, spec))
    assert ran.code == 0, ran.text
    runner = sp.StatefulRunner(built(project))
    seen = xs(4, (1, 3))
    for count, x in enumerate(seen, 1):
        got = runner.run({"x": x})["y"]
        expected = np.mean(np.concatenate(seen[:count]), 0, keepdims=True) + 0.5
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "said", "hint", "line"),
    [
        ("input: memory,", "input: memori,", "leaky.onnx has no input 'memori'", "`memory`", 9),
        ("output: memory_next", "output: next", "has no output 'next'", "memory_next", 9),
        ("  gain: {value: 2}\n", "", "leaky.onnx needs 'gain' too", "pair it", 4),
        ("gain:", "gian:", "leaky.onnx takes no 'gian'", "`gain`", 6),
        ("x: {shape: [batch, 3]", "x: {shape: [batch, 4]", r"the file has \[batch, 3\]", "", 5),
        ("3]}", "3], dtype: int64}", "is int64, the file takes float32", "", 5),
        ("{input: m", "{dtype: int64, input: m", "the file has float32", "", 9),
        ("{input: m", "{shape: [3], input: m", r"the file has \[batch, 3\]", "", 9),
    ],
)
def test_what_does_not_fit_the_file_is_refused_at_its_line(
    write, old, new, said, hint, line
) -> None:
    path = write(spec=SPEC.replace(old, new, 1))
    with pytest.raises(SpecError, match=said) as caught:
        prepare(load_spec(path))
    assert hint in (caught.value.hint or "")
    assert caught.value.line == line


def test_no_pair_is_guessed(write) -> None:
    path = write(spec=SPEC.replace("states:\n  cell.h: {input: memory, output: memory_next}", ""))
    with pytest.raises(SpecError, match="needs 'memory' too") as caught:
        prepare(load_spec(path))
    assert "pair it with an output under `states`" in (caught.value.hint or "")


def test_two_states_cannot_share_a_graph_value(write) -> None:
    path = write(spec=SPEC.replace("verify:", "  other: {input: memory, output: y}\nverify:"))
    with pytest.raises(SpecError, match="'memory' is another state's too"):
        prepare(load_spec(path))


@pytest.mark.parametrize("axis", ["rows", "?"])
def test_a_dimension_without_an_axis_is_asked_for(project, write, axis) -> None:
    text = LEAKY.replace("float[batch, 3] memory,", f"float[{axis}, 3] memory,")
    with pytest.raises(SpecError, match=r"dimension 0 of 'memory' .* none of the spec's") as caught:
        prepare(load_spec(write(text)))
    assert "`shape:" in (caught.value.hint or "")
    declared = SPEC.replace("{input: memory,", "{shape: [batch, 3], input: memory,")
    assert project.run(write(text, declared)).code == 0


def test_dimensions_that_the_file_mislabels_are_refused(project, write) -> None:
    text = LEAKY.replace("=> (float[batch, 3] y", "=> (float[2, 3] y")
    ran = project.run(write(text))
    assert ran.code == 3
    assert "'y' is declared as [2, 3]" in ran.text


def test_another_opset_than_that_of_the_file_is_refused(project, write) -> None:
    ran = project.run(write(spec=SPEC + "export: {opset: 20}\n"))
    assert ran.code == 3
    assert "the file has opset 18, and the spec asks for 20" in ran.text


def test_what_is_no_model_is_a_wrong_source(project, write) -> None:
    path = write()
    (project.folder / "leaky.onnx").write_text("no model")
    with pytest.raises(SourceError, match="ONNX Runtime cannot load it"):
        prepare(load_spec(path))
    assert project.run(path).code == 2
    (project.folder / "leaky.onnx").unlink()
    checked = project.cli("check", path)
    assert checked.code == 2
    assert "no such file" in checked.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("output: memory_next", "shape: [batch, 3]"), "missing key `output`"),
        (("{onnx: leaky.onnx}", "{python: 'a:B'}"), "`input` is for a source of `onnx`"),
        (("onnx}", "onnx, reset: again}"), "`reset` means nothing for a source of `onnx`"),
        (("verify:", "attributes: {a: {value: 1}}\nverify:"), "has no attributes but tensors"),
        (("verify:", "script: {frontend: export}\nverify:"), "is captured already"),
    ],
)
def test_keys_that_mean_nothing_for_a_file_are_refused(write, change, said) -> None:
    path = write(spec=SPEC.replace(*change))
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert said in str(caught.value)


def test_inspect_lists_its_states(project, write) -> None:
    ran = project.cli("inspect", write(), "--json")
    assert ran.code == 0, ran.text
    (line,) = ran.lines
    assert [row["name"] for row in line["states"]] == ["cell.h"]


def test_an_earlier_build_is_reused_until_the_file_changes(project, write) -> None:
    path = write()
    assert project.run(path).code == 0
    project.run(path)
    assert project.manifest()["stages"]["export"]["status"] == "reused"
    path = write(LEAKY.replace("Tanh", "Sin"))
    assert project.run(path).code == 0
    assert project.manifest()["stages"]["export"]["status"] == "done"
