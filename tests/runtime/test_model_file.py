from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError, PipelineError, SpecError, TargetError
from stateful_pipeline.runtime import StatefulRunner

GOOD = Contract(
    (Value("x", "float32", (1,)),),
    (Value("y", "float32", (1,)),),
    (State("h", "h_in", "h_out", "float32", (1,), Initial("zeros", (1,)), "h"),),
)
GRAPH = """g (float[1] x, float[1] h_in) => (float[1] y, float[1] h_out)
           { y = Add(x, h_in) h_out = Identity(y) }"""


def test_a_runner_tells_what_it_runs(counter):
    runner = StatefulRunner(str(counter), provider="cpu", threads=2)
    assert runner.providers == ("CPUExecutionProvider",)
    assert [state.name for state in runner.contract.states] == ["h", "n"]


def test_a_missing_file(tmp_path):
    with pytest.raises(ContractError, match=r"absent\.onnx: there is no such model file"):
        StatefulRunner(tmp_path / "absent.onnx")
    with pytest.raises(ContractError, match="there is no such model file"):
        StatefulRunner(tmp_path)


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("not a model")
    with pytest.raises(ContractError, match=r"model\.onnx: ONNX Runtime cannot load the model"):
        StatefulRunner(path)


def test_a_model_without_a_contract(save_model):
    path = save_model(GRAPH, None)
    with pytest.raises(ContractError, match=r"model\.onnx: .*no state contract.*\n.*export_onnx"):
        StatefulRunner(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a state contract: all of it is a list"),
        ('{"schema": 2}', "has schema 2, this version reads 1"),
    ],
)
def test_a_contract_that_cannot_be_read(save_model, text, message):
    with pytest.raises(ContractError, match=rf"model\.onnx: .*{message}"):
        StatefulRunner(save_model(GRAPH, text))


STATE = GOOD.states[0]


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (replace(GOOD, inputs=(Value("z", "float32", (1,)),)), "graph input 'z', which"),
        (replace(GOOD, outputs=(Value("z", "float32", (1,)),)), "graph output 'z', which"),
        (replace(GOOD, states=(replace(STATE, input="g_in"),)), "graph input 'g_in', which"),
        (replace(GOOD, states=(replace(STATE, output="g_out"),)), "graph output 'g_out', which"),
        (replace(GOOD, outputs=()), "graph output 'y' is neither an output nor a state"),
        (replace(GOOD, states=()), "'h_in' is neither an input nor a state"),
        (replace(GOOD, inputs=(Value("x", "int64", (1,)),)), r"'x' is tensor\(float\).* int64"),
        (replace(GOOD, states=(replace(STATE, dtype="bool"),)), "'h_in' is tensor.* says bool"),
        (replace(GOOD, states=(STATE, replace(STATE, name="g"))), "graph input 'h_in' 2 times"),
        (replace(GOOD, states=(replace(STATE, out_shape=(1, 1)),)), "'h' changes its rank"),
    ],
)  # fmt: skip
def test_a_contract_that_the_graph_does_not_keep(save_model, contract, message):
    with pytest.raises(ContractError, match=rf"model\.onnx: .*{message}"):
        StatefulRunner(save_model(GRAPH, contract))


def test_an_unknown_provider(counter):
    with pytest.raises(TargetError, match="unknown provider 'gpu'\n  try: use cpu"):
        StatefulRunner(counter, provider="gpu")


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2"])
def test_a_wrong_number_of_threads(counter, threads):
    with pytest.raises(SpecError, match="threads is"):
        StatefulRunner(counter, threads=threads)


def test_every_error_is_one_of_the_projects(save_model):
    runner = StatefulRunner(save_model(GRAPH, GOOD))
    with pytest.raises(PipelineError):
        runner.run({"x": np.zeros(2, np.float32)})


def test_errors_are_raised_and_not_printed(save_model, capfd):
    contract = replace(GOOD, inputs=(Value("x", "float32", ("n",)),))
    runner = StatefulRunner(save_model(GRAPH.replace("float[1] x", "float[n] x"), contract))
    with pytest.raises(ContractError, match="has shape"):
        runner.run({"x": np.zeros(3, np.float32)})
    assert capfd.readouterr() == ("", "")
    assert onnxruntime.get_available_providers()
