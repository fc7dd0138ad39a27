"""What is read back as a contract is one: each field is of the type that it should have."""

import json

import numpy as np
import pytest

from stateful_pipeline.contract import Axis, Contract, Initial, State, Value
from stateful_pipeline.errors import ContractError

CONTRACT = Contract(
    inputs=(Value("x", "float32", ("batch", 3)),),
    outputs=(Value("y", "float32", ("batch", 3)),),
    states=(
        State("h", "h_in", "h_out", "float32", (1, 3), Initial.inline(np.ones((1, 3), "f4")), "h"),
        State(
            "k", "k_in", "k_out", "int64", (1, "past"), Initial("file", (1, 0), None, "s.npz", "k"),
            "k", (1, "past + 1"), True, False,
        ),
    ),
    axes=(Axis("batch", 1, 2, 3), Axis("past", 0, grows=True)),
)  # fmt: skip


def changed(path, value):
    """Return the contract's JSON with another value at ``path``."""
    data = json.loads(CONTRACT.to_json())
    *outer, last = path
    item = data
    for key in outer:
        item = item[key]
    item[last] = value
    return json.dumps(data)


def test_a_contract_survives_json():
    assert Contract.from_json(CONTRACT.to_json()) == CONTRACT


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["states", 0, "name"], [], "states.0.name is a list of 0, and should be a text"),
        (["states", 0, "name"], None, "states.0.name is null, and should be a text"),
        (["states", 0, "name"], 5, "states.0.name is 5"),
        (["states", 0, "name"], "", 'states.0.name is "", and should be a text that is not empty'),
        (["states", 0, "input"], {}, "states.0.input is a mapping of 0"),
        (["states", 0, "dtype"], ["float32"], "states.0.dtype is a list of 1, .* one of float16"),
        (["states", 0, "dtype"], "float31", 'states.0.dtype is "float31"'),
        (["states", 0, "shape"], [True, True, 5], "states.0.shape is a list of 3, .* whole number"),
        (["states", 0, "shape"], [-1], "states.0.shape"),
        (["states", 0, "attribute"], 5, "states.0.attribute is 5"),
        (["states", 0, "exercised"], "yes", 'states.0.exercised is "yes", .* true or false'),
        (["states", 0, "in_place"], 1, "states.0.in_place is 1"),
        (["states", 0, "init"], "zeros", "states.0.init is .*mapping"),
        (["states", 0, "init", "kind"], "ones", "states.0.init.kind"),
        (["states", 0, "init", "shape"], ["batch"], "states.0.init.shape"),
        (["states", 1], 7, "states.1 is 7, and should be a mapping"),
        (["states", 1, "foo"], 1, "states.1.foo is unknown"),
        (["axes", 0, "max"], 1.5, "axes.0.max is 1.5"),
        (["inputs"], {}, "inputs is a mapping"),
        (["outputs", 0, "shape"], "batch", 'outputs.0.shape is "batch"'),
        (["schema"], True, "schema is true, and should be a whole number"),
    ],
)
def test_a_field_of_another_type_is_named_with_what_was_found(path, value, said):
    with pytest.raises(ContractError, match=f"^not a state contract: {said}"):
        Contract.from_json(changed(path, value))


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{", "\u0000"])
def test_what_is_not_json_is_an_error_of_the_contract(text):
    with pytest.raises(ContractError, match="not JSON"):
        Contract.from_json(text)


def test_a_field_that_is_missing_is_named():
    data = json.loads(CONTRACT.to_json())
    del data["states"][1]["dtype"]
    with pytest.raises(ContractError, match=r"states\.1\.dtype is missing"):
        Contract.from_json(json.dumps(data))


def test_an_inline_value_that_is_not_base64_is_an_error_of_the_contract(tmp_path):
    with pytest.raises(ContractError, match="not base64"):
        Initial("inline", (1,), data="*").load("float32", tmp_path)
