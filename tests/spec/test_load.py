import pytest

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import InitFile, InitValue, Spec, load_spec

SPEC = """\
name: demo
source: {python: "acme.models:Net", kwargs: {size: 3, bias: null}, weights: w.safetensors}
inputs:
  x: {shape: [batch, 3]}
  mask: {value: null}
dynamic_axes:
  batch: {min: 1, opt: 4, max: 16}
states:
  cells.0.h: {shape: [batch, 3], init: zeros}
  k: {shape: [1, past], out_shape: [1, "past + batch"]}
  v: {init: {value: 0.5}}
  f: {init: {file: s.npz, key: f}}
targets:
  cpu: {runtime: onnxruntime, threads: 1, verify: {atol: 1e-3, reason: why}}
"""


@pytest.fixture
def spec_file(tmp_path):
    path = tmp_path / "demo.yaml"
    path.write_text(SPEC)
    return path


def test_values_arrive_as_they_were_written(spec_file):
    spec = load_spec(spec_file)
    assert spec.inputs["x"].shape == ("batch", 3)
    assert spec.inputs["mask"].is_fixed
    assert not spec.inputs["x"].is_fixed
    assert spec.source.kwargs == {"size": 3, "bias": None}
    assert (spec.source.module_name, spec.source.class_name) == ("acme.models", "Net")
    assert spec.states["cells.0.h"].init == "zeros"
    assert spec.states["k"].out_shape == (1, "past + batch")
    assert spec.states["v"].init == InitValue(value=0.5)
    assert isinstance(spec.states["f"].init, InitFile)
    assert spec.tolerances("cpu") == (1e-3, 1e-4)


def test_what_is_not_written_has_defaults(spec_file):
    spec = load_spec(spec_file)
    assert spec.export.opset == 20
    assert spec.verify.steps == 64
    assert spec.verify.seeds == (0,)
    assert spec.mlflow.experiment == "demo"
    assert load_spec(spec_file, ["targets=null"]).targets["cpu"].runtime == "onnxruntime"


def test_a_spec_cannot_be_changed(spec_file):
    with pytest.raises(ValueError, match="frozen"):
        load_spec(spec_file).name = "other"


def test_paths_are_relative_to_the_file_that_holds_them(tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "base.yaml").write_text(
        "source: {file: 'm.py:M', weights: {file: ../w.pt}}\n"
        "mlflow: {tracking_uri: 'sqlite:///runs.db'}\n"
    )
    own = tmp_path / "own.yaml"
    own.write_text(
        "extends: shared/base.yaml\nname: own\n"
        "inputs: {x: {shape: [1], data: {npz: d/x.npz, key: x}}}\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    spec = load_spec("../own.yaml", ["states.h.init={file: h.npz, key: h}"])
    assert spec.source.file == f"{tmp_path}/shared/m.py:M"
    assert spec.source.file_path == tmp_path / "shared" / "m.py"
    assert spec.source.weights.file == tmp_path / "w.pt"
    assert spec.inputs["x"].data.npz == tmp_path / "d" / "x.npz"
    assert spec.states["h"].init.file == elsewhere / "h.npz"
    assert spec.mlflow.tracking_uri == f"sqlite:///{tmp_path}/shared/runs.db"
    assert spec.path == own


def test_extends_merges_deeply_and_null_deletes(tmp_path):
    (tmp_path / "base.yaml").write_text(SPEC)
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: base.yaml\n"
        "name: child\n"
        "inputs: {mask: null}\n"
        "states: {k: null, v: {init: zeros}}\n"
        "targets: {cpu: {threads: 8}}\n"
    )
    spec = load_spec(child)
    assert list(spec.inputs) == ["x"]
    assert set(spec.states) == {"cells.0.h", "v", "f"}
    assert spec.states["v"].init == "zeros"
    assert (spec.targets["cpu"].threads, spec.targets["cpu"].verify.atol) == (8, 1e-3)
    assert spec.place("targets.cpu.threads").file == str(child)
    assert spec.place("targets.cpu.verify").file == str(tmp_path / "base.yaml")


def test_extends_goes_through_several_files_but_not_in_a_circle(tmp_path):
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {base}.yaml\n")
    with pytest.raises(SpecError, match="leads back") as caught:
        load_spec(tmp_path / "a.yaml")
    assert caught.value.file == str(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text(SPEC)
    assert load_spec(tmp_path / "a.yaml").name == "demo"


def test_a_fault_that_an_override_brings_names_the_override(spec_file):
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file, ["targets.cpu.threads=two"])
    assert caught.value.file == "--set targets.cpu.threads=two"
    assert "targets.cpu.threads" in caught.value.message


@pytest.mark.parametrize(
    ("override", "look"),
    [
        ("targets.cpu.threads=2", lambda s: s.targets["cpu"].threads == 2),
        ('states["cells.0.h"].init=buffer', lambda s: s.states["cells.0.h"].init == "buffer"),
        ("states['cells.0.h'].init={value: 1}", lambda s: s.states["cells.0.h"].init.value == 1),
        ("inputs.x.shape[1]=5", lambda s: s.inputs["x"].shape == ("batch", 5)),
        ("verify={steps: 8, atol: 1e-3}", lambda s: (s.verify.steps, s.verify.atol) == (8, 1e-3)),
        ("states.k=null", lambda s: "k" not in s.states),
        ("targets.cpu.threads=", lambda s: s.targets["cpu"].threads is None),
        ("source.kwargs.mode=off", lambda s: s.source.kwargs["mode"] == "off"),
        ("source.kwargs.text=a=b", lambda s: s.source.kwargs["text"] == "a=b"),
    ],
)
def test_overrides_reach_every_value(spec_file, override, look):
    assert look(load_spec(spec_file, [override]))


def test_later_overrides_win(spec_file):
    assert load_spec(spec_file, ["verify.steps=3", "verify.steps=4"]).verify.steps == 4


@pytest.mark.parametrize(
    "override",
    [
        "targets.cpu",
        "=3",
        "a..b=3",
        "name.first=3",
        "inputs.x.shape[9]=3",
        "extends=x.yaml",
        "verify={steps: [",
        "states.cells.0.h.init=zeros",
    ],
)
def test_overrides_that_make_no_sense_are_refused(spec_file, override):
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file, [override])
    assert caught.value.file == f"--set {override}"


def test_places_lead_to_keys_and_to_the_nearest_key_above(spec_file):
    spec = load_spec(spec_file)
    assert spec.place("source.python").line == 2
    assert spec.place('states["cells.0.h"].init').line == 9
    assert spec.place(("states", "cells.0.h", "init")).line == 9
    assert spec.place("source.seed").line == 2
    assert spec.place("verify.steps").line == 1
    assert spec.place("source.weights.file").column > spec.place("source.python").column


def test_the_digest_is_of_the_content_and_not_of_the_folder(tmp_path):
    digests = set()
    for folder in ("one", "two/deep"):
        (tmp_path / folder).mkdir(parents=True)
        path = tmp_path / folder / "demo.yaml"
        path.write_text("# a comment\n" * len(digests) + SPEC)
        digests.add(load_spec(path).digest())
    assert len(digests) == 1
    assert len(digests.pop()) == 64
    assert load_spec(path, ["verify.steps=65"]).digest() != load_spec(path).digest()
    assert load_spec(path, ["verify.steps=64"]).digest() == load_spec(path).digest()
    assert load_spec(path, ["inputs.mask={value: 0}"]).digest() != load_spec(path).digest()


def test_content_holds_no_absolute_path_of_the_checkout(spec_file, tmp_path):
    spec = load_spec(spec_file)
    assert str(tmp_path) not in str(spec.content())
    assert spec.content()["source"]["weights"]["file"] == "w.safetensors"


def test_a_spec_made_in_python_obeys_the_same_relations():
    with pytest.raises(ValueError, match="not declared"):
        Spec.model_validate(
            {"name": "a", "source": {"python": "a:B"}, "inputs": {"x": {"shape": ["t"]}}}
        )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("operators: {a: b}", "operators"),
        ("targets: {t: {runtime: onnxruntime, plugins: [a]}}", "plugins"),
        ("mlflow: {register: name}", "register"),
        ("mlflow: {alias: best}", "alias"),
    ],
)
def test_what_comes_later_is_refused_as_not_supported_yet(tmp_path, text, what):
    path = tmp_path / "spec.yaml"
    path.write_text(f"name: a\nsource: {{python: 'a:B'}}\ninputs: {{x: {{shape: [1]}}}}\n{text}\n")
    with pytest.raises(SpecError, match="not supported yet") as caught:
        load_spec(path)
    faults = [caught.value, *caught.value.others]
    assert what in caught.value.message
    assert all("not supported yet" in fault.message and fault.line == 4 for fault in faults)


def test_libraries_are_found_beside_the_spec(tmp_path):
    path = tmp_path / "spec.yaml"
    source = "{python: 'a:B', libraries: [ring, x.so]}"
    path.write_text(f"name: a\nsource: {source}\ninputs: {{x: {{shape: [1]}}}}\n")
    assert load_spec(path).source.libraries == (tmp_path / "ring", tmp_path / "x.so")
