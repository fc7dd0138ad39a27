import json
import runpy
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from stateful_pipeline.contract import DTYPES
from stateful_pipeline.spec import InputSpec, Spec, json_schema, template
from stateful_pipeline.spec import schema as shipped

BROKEN = runpy.run_path(str(Path(__file__).with_name("broken_specs.py")))
ROOT = Path(__file__).parents[2]
FULL = {
    "schema": 1,
    "name": "full",
    "source": {
        "file": "my_model.py:Denoiser",
        "args": [1, [2]],
        "kwargs": {"features": 40},
        "weights": {"file": "w.safetensors", "ignore": ["h"]},
        "seed": 3,
        "method": "step",
        "reset": "reset_states",
    },
    "inputs": {
        "x": {"shape": ["batch", "time", 40], "dtype": "float32"},
        "token": {"shape": ["batch", 1], "dtype": "int64", "low": 0, "high": 1000},
        "frames": {"shape": ["batch", 40], "data": {"npz": "held_out.npz", "key": "frames"}},
        "sr": {"value": 16000},
    },
    "attributes": {"_last_sr": {"value": 16000}, "encoder.mode": {"value": "fast"}},
    "dynamic_axes": {"batch": {"min": 1, "opt": 4, "max": 16}, "time": {"opt": 20, "max": 200}},
    "states": {
        "cells.0.h": {"shape": [2, "batch", 128], "init": {"value": 0.5}},
        "k": {"shape": [1, "past", 4], "out_shape": [1, "past + time", 4]},
        "calls": {"ignore": True, "reason": "statistics"},
    },
    "script": {"frontend": "export"},
    "export": {"opset": 24, "external_data_threshold": 0},
    "targets": {"cpu": {"runtime": "onnxruntime", "threads": 1, "verify": {"atol": 1e-2}}},
    "verify": {"steps": 64, "seeds": [0, 1], "atol": 1e-5, "rtol": 1e-4, "reset_every": 16},
    "benchmark": {"steps": 0},
    "mlflow": {"experiment": "lstm", "required": True},
}


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_shipped_schema_is_current():
    assert shipped.PATH.read_text(encoding="utf-8") == shipped.schema_text(), (
        "run: python -m stateful_pipeline.spec.schema"
    )


def test_every_key_of_the_design_is_accepted(validator):
    validator.validate(FULL)
    assert Spec.model_validate(FULL).states["k"].out_shape == (1, "past + time", 4)


def test_the_template_and_every_shipped_config_are_accepted(validator):
    validator.validate(yaml.safe_load(template("demo").replace("1e-", "1.0e-")))
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "name",
    [
        "unknown-key",
        "unknown-inner-key",
        "wrong-type",
        "missing-name",
        "slash-in-name",
        "two-sources",
        "no-source",
        "no-colon",
        "no-size",
        "huge-size",
        "huge-state",
        "huge-axis",
        "huge-steps",
        "unknown-dtype",
        "unknown-init",
        "unknown-runtime",
        "opset",
        "no-seeds",
    ],
)
def test_broken_specs_are_refused(validator, name):
    broken = next(broken for broken in BROKEN["BROKEN"] if broken.id == name)
    assert not validator.is_valid(yaml.safe_load(broken.text))


@pytest.mark.parametrize(
    "change",
    [
        {"attributes": {"sr": 1}},
        {"targets": {"gpu": {"runtime": "onnxruntime", "provider": "rocm"}}},
        {"targets": {"trt": {"runtime": "tensorrt", "profiles": {"a": {"batch": [1, 2]}}}}},
        {"mlflow": {"register": "name"}},
        {"inputs": {"no good": {"shape": [1]}}},
    ],
)
def test_what_the_loader_refuses_the_schema_refuses(validator, change):
    assert not validator.is_valid({**FULL, **change})


def test_a_file_that_extends_another_may_leave_things_out(validator):
    validator.validate({"extends": "base.yaml", "source": {"kwargs": {"hidden": 3}}})


def test_every_key_is_explained(validator):
    for name, model in json_schema()["$defs"].items():
        for key, value in model["properties"].items():
            assert "description" in value or "$ref" in value, f"{name}.{key}"


def test_dtypes_are_those_of_the_contract():
    dtypes = InputSpec.model_json_schema()["properties"]["dtype"]["enum"]
    assert dtypes == list(DTYPES)


def test_importing_the_spec_leaves_the_heavy_libraries_out():
    code = (
        "import sys, stateful_pipeline.spec\n"
        "print([m for m in ('torch', 'onnx', 'mlflow', 'onnxruntime') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_the_schema_is_plain_json():
    assert json.loads(shipped.schema_text()) == json_schema()
