"""The shipped specs: each runs, and what it proves is as much as it should be."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import stateful_pipeline
from stateful_pipeline.cli import main
from stateful_pipeline.contract import METADATA_KEY
from stateful_pipeline.dimensions import axes_of
from stateful_pipeline.runtime import OpenVinoRunner, StatefulRunner
from stateful_pipeline.spec import load_spec
from stateful_pipeline.stages.build.openvino import write_model
from stateful_pipeline.zoo.words import recording

ROOT = Path(__file__).parents[1]
CONFIGS = {path.stem: path for path in sorted((ROOT / "configs").glob("*.yaml"))}


ZOO = {
    *("counter", "counter_torchscript", "lstm", "gru_stack", "kv_decoder", "causal_conv"),
    *("running_norm", "gate", "window_attention", "string_stack", "tensor_ring"),
    *("lstm_fp16", "kv_decoder_fp16"),
}
HALF = ("lstm_fp16", "kv_decoder_fp16")
INSIDE = ("string_stack",)
"""What keeps its state inside the module: it has no contract, and nothing is exported."""
EXPLICIT = [name for name in CONFIGS if name not in INSIDE]


@pytest.fixture(scope="session")
def store(tmp_path_factory, worker_id):
    """Where builds go: one folder for all processes that these tests run in."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "configs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def built(store, monkeypatch):
    """Return the build of a shipped spec: run once, with its own settings."""

    def build(name):
        code = store / f"{name}.code"
        with (store / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not code.exists():
                monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
                with pytest.raises(SystemExit) as end:
                    main(["run", str(CONFIGS[name]), "--out", str(store)])
                code.write_text(str(end.value.code))
        assert code.read_text() == "0", f"`pipeline run configs/{name}.yaml` did not end with 0"
        return store / load_spec(CONFIGS[name]).name

    return build


def test_every_model_of_the_zoo_is_shipped_under_its_own_name():
    assert CONFIGS.keys() == ZOO
    assert {name: load_spec(path).name for name, path in CONFIGS.items()} == {n: n for n in ZOO}


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_shipped_spec_runs_and_proves_enough(built, name):
    build, spec = built(name), load_spec(CONFIGS[name])
    report = json.loads((build / "verify" / "report.json").read_text())
    assert report["schema"] == 1
    assert spec.verify.reset_every is not None
    assert spec.verify.reset_every < spec.verify.steps
    contract = StatefulRunner(build / "export" / "model.onnx").contract
    assert report["targets"].keys() == spec.targets.keys()
    for target_name, target in report["targets"].items():
        explicit = spec.targets[target_name].needs == "onnx"
        assert target["passed"] is True
        assert target["reset"]["passed"] is True
        assert target["steps"] >= 32
        assert len(target["per_step"]) == target["steps"]
        assert {rollout["mode"] for rollout in target["rollouts"]} == {
            "free-running",
            *(["teacher-forced"] if explicit else []),
        }
        free = [rollout for rollout in target["rollouts"] if rollout["mode"] == "free-running"]
        for rollout in free:
            assert rollout["steps"] >= 32
            states = {f"state {state.name}" for state in contract.states if explicit}
            assert states <= rollout["tensors"].keys()
            assert {value.name for value in contract.outputs} <= rollout["tensors"].keys()
        for axis, range_ in spec.dynamic_axes.items():
            sizes = {rollout["sizes"][axis] for rollout in free}
            assert len(sizes) >= min(2, range_.max - range_.min + 1)


@pytest.mark.parametrize("name", [name for name in EXPLICIT if name != "tensor_ring"])
def test_a_shipped_specs_model_takes_a_batch_and_its_states_are_seen_to_change(built, name):
    contract = StatefulRunner(built(name) / "targets" / "cpu" / "model.onnx").contract
    batch = "channels" if name == "gate" else "batch"  # the gate is for one stream
    axes = {axis.name: axis for axis in contract.axes}
    assert axes[batch].max >= 4 > axes[batch].min
    assert contract.states
    # The gate's recording begins in silence: it opens after the few steps that are observed at
    # first, and the graph shows that it can.
    late = {"is_open", "gain"} if name == "gate" else set()
    assert {state.name for state in contract.states if not state.exercised} <= late
    for state in contract.states:
        assert state.shape == () or batch in state.shape
    for value in (*contract.inputs, *contract.outputs):
        assert batch in value.shape


@pytest.mark.parametrize("name", [name for name in EXPLICIT if name not in HALF])
def test_a_shipped_specs_model_runs_on_openvino_too(built, tmp_path, name):
    build = built(name)
    source = build / "export" / "model.onnx"
    reference = StatefulRunner(build / "targets" / "cpu" / "model.onnx", threads=1)
    write_model(source, reference.contract, "fp32", tmp_path)
    assert {state.dtype for state in reference.contract.states} <= {"float32", "int64", "bool"}
    runner = OpenVinoRunner(tmp_path / "model.xml", threads=1)
    spec, numbers = load_spec(CONFIGS[name]), np.random.default_rng(0)
    for batch in (1, 3):
        runner.reset()
        reference.reset()
        for time in (1, 2, 1):
            sizes = {"batch": batch, "channels": batch, "time": time}
            inputs = {}
            for value in reference.contract.inputs:
                shape = [sizes.get(dim, dim) for dim in value.shape]
                given = spec.inputs[value.name]
                low, high = (given.low, given.high) if given.low is not None else (-1, 1)
                inputs[value.name] = numbers.uniform(low, high, shape).astype(value.dtype)
            got = runner.run(inputs)
            for key, want in reference.run(inputs).items():
                np.testing.assert_allclose(got[key], want, rtol=1e-4, atol=1e-5)
        for key, want in reference.state.items():
            np.testing.assert_allclose(runner.state[key], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", INSIDE)
def test_a_shipped_spec_whose_state_stays_inside_runs_and_proves_enough(built, name):
    build, spec = built(name), load_spec(CONFIGS[name])
    report = json.loads((build / "verify" / "report.json").read_text())
    assert spec.verify.reset_every < spec.verify.steps
    assert report["targets"].keys() == spec.targets.keys()
    for target in report["targets"].values():
        assert (target["passed"], target["first_bad"]) == (True, None)
        assert target["reset"]["passed"] is True
        assert target["states"] == "inside the module"
        assert target["steps"] == len(target["per_step"]) == spec.verify.steps >= 32
        assert {rollout["mode"] for rollout in target["rollouts"]} == {"free-running"}
        assert {rollout["seed"] for rollout in target["rollouts"]} == set(spec.verify.seeds)
        for rollout in target["rollouts"]:
            assert rollout["tensors"].keys() == {"word", "depth"}
    assert not (build / "export").exists()


def test_the_string_stack_runs_by_the_command_of_its_manifest(built, tmp_path):
    build = built("string_stack")
    manifest = json.loads((build / "manifest.json").read_text())
    notes = manifest["stages"]["build"]["notes"]["libtorch"]["native"]
    folder = tmp_path / "moved"
    shutil.copytree(build / "targets" / "native", folder)
    typed = [ord(letter) - ord("a") for letter in "stack"]
    torch.save([torch.tensor([key]) for key in typed], tmp_path / "keys.pt")
    program, *words = notes["command"].split()
    given, out = (words.index(option) + 1 for option in ("--inputs", "--outputs"))
    words[given], words[out] = str(tmp_path / "keys.pt"), str(tmp_path / "out.pt")
    subprocess.run([str(folder / program), *words], cwd=folder, check=True)
    last = torch.load(tmp_path / "out.pt", weights_only=False)[-1]
    assert "".join(map(chr, last["word"].tolist())) == "stack"
    assert not any(str(part).encode() in json.dumps(manifest).encode() for part in (ROOT, build))


def test_the_gate_opens_and_closes_in_its_recording(built):
    spec = load_spec(CONFIGS["gate"])
    [(name, value)] = [(n, v) for n, v in spec.inputs.items() if v.data is not None]
    with np.load(value.data.npz) as arrays:
        frames = arrays[value.data.key].astype(np.float32)
    runner = StatefulRunner(built("gate") / "targets" / "cpu" / "model.onnx")
    seen = set()
    for frame in frames:
        runner.run({name: frame})
        seen.add(bool(runner.state["is_open"]))
    assert seen == {True, False}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shipped_specs_page_loads_nothing_from_elsewhere(built, name):
    page = (built(name) / "report.html").read_text()
    assert "PASSED" in page
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?!#|data:)[^\"'\s>]+", page)
    assert not re.findall(r"url\((?!['\"]?(?:#|data:))|@import|<script[^>]+src", page)


@pytest.mark.parametrize("name", EXPLICIT)
def test_a_shipped_specs_model_passes_the_full_check_at_the_opset_asked_for(built, name):
    model = onnx.load(built(name) / "export" / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    assert opsets[""] == load_spec(CONFIGS[name]).export.opset
    assert METADATA_KEY in {entry.key for entry in model.metadata_props}


def test_the_lstm_keeps_a_dynamic_batch_and_time_in_inputs_and_states(built):
    contract = StatefulRunner(built("lstm") / "targets" / "cpu" / "model.onnx").contract
    axes = {axis.name: axis for axis in contract.axes}
    assert axes["batch"].max >= 4 > axes["batch"].min
    assert axes["time"].max > axes["time"].min
    (x,) = contract.inputs
    assert x.shape[:2] == ("batch", "time")
    assert {state.name for state in contract.states} == {"h", "c"}
    for state in contract.states:
        assert "batch" in set().union(*(axes_of(dim) for dim in state.shape))
    (output,) = contract.outputs
    assert output.shape[0] == "batch"


@pytest.mark.parametrize("name", ["counter", "counter_torchscript"])
def test_the_counter_prints_what_the_readme_says(built, name):
    runner = StatefulRunner(built(name) / "targets" / "cpu" / "model.onnx")
    x = {"x": np.array([[1.0, 2.0, 3.0]], np.float32)}
    assert runner.run(x)["output"].tolist() == [[4.0, 5.0, 6.0]]
    assert runner.run(x)["output"].tolist() == [[5.0, 6.0, 7.0]]
    runner.reset()
    assert runner.run(x)["output"].tolist() == [[4.0, 5.0, 6.0]]


def test_the_scripted_counter_shows_its_code_before_and_after(built):
    texts = [path.read_text() for path in (built("counter_torchscript") / "rewrite").iterdir()]
    names = ("h_in", "counter_in", "h_out", "counter_out")
    assert any("self.h = " in text and "h_in" not in text for text in texts)
    assert any(all(name in text for name in names) for text in texts)


def test_the_gate_opens_and_closes_on_its_recording(built):
    runner = StatefulRunner(built("gate") / "targets" / "cpu" / "model.onnx")
    opened = []
    for frame in recording():
        runner.run({"x": frame.astype(np.float32)})
        opened.append(bool(runner.state["is_open"]))
    assert np.diff(opened).sum() >= 8


def test_the_decoder_prefills_and_decodes_in_one_model(built):
    path = built("kv_decoder") / "targets" / "cpu" / "model.onnx"
    tokens = np.random.default_rng(0).integers(0, 256, (2, 20))
    whole, cut = StatefulRunner(path), StatefulRunner(path)
    logits = whole.run({"tokens": tokens})["output"]
    chunks = np.split(tokens, [17, 18, 19], axis=1)
    parts = np.concatenate([cut.run({"tokens": chunk})["output"] for chunk in chunks], axis=1)
    assert logits.shape == (2, 20, 256)
    np.testing.assert_allclose(parts, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_models_built_in_two_folders_are_the_same_and_name_neither(tmp_path):
    models = []
    package = Path(stateful_pipeline.__file__).parent
    for place in (tmp_path / "one", tmp_path / "elsewhere" / "two"):
        shutil.copytree(package, place / "stateful_pipeline")
        shutil.copytree(ROOT / "configs", place / "configs")
        code = "import stateful_pipeline as s, sys; print(s.__file__, file=sys.stderr)\n"
        code += "from stateful_pipeline.cli import main; main()"
        call = ["run", "configs/lstm.yaml", "--to", "export", "--set", "mlflow.enabled=false"]
        done = subprocess.run(
            [sys.executable, "-c", code, *call],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert str(place) in done.stderr  # it was this copy that ran
        models.append((place / "build" / "lstm" / "export" / "model.onnx").read_bytes())
    assert models[0] == models[1]
    for part in (tmp_path, package, ROOT, Path(onnx.__file__).parents[1]):
        assert str(part).encode() not in models[0]
    assert b".py" not in models[0]
