import json
import runpy
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import keypath, load_spec, template
from stateful_pipeline.spec.yaml12 import read_text

GOOD = runpy.run_path(str(Path(__file__).with_name("broken_specs.py")))["GOOD"]
QUICK = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

PIECES = [b": ", b"[", b"{", b"- ", b"&a ", b"*a", b"!", b"\n", b"null", b"#", b"'", b".nan", b"<<"]


def fault_of(call):
    """Return the SpecError that ``call`` raises, or None."""
    try:
        call()
    except SpecError as error:
        return error
    return None


names = st.text(string.ascii_letters, min_size=1, max_size=8)
sizes = st.integers(1, 64)
axes = st.sampled_from(["batch", "time"])
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
constants = st.none() | st.booleans() | st.integers() | st.lists(st.integers(), max_size=3)
inputs = st.one_of(
    st.builds(lambda shape: {"shape": shape}, st.lists(sizes | axes, max_size=4)),
    st.builds(lambda low, more: {"shape": [1], "dtype": "int64", "low": low, "high": low + more},
              st.integers(-9, 9), sizes),
    st.builds(lambda value: {"value": value}, constants),
    st.builds(lambda key: {"shape": [2], "data": {"npz": "d.npz", "key": key}}, names),
)  # fmt: skip
states = st.one_of(
    st.just({"ignore": True, "reason": "nobody reads it"}),
    st.builds(lambda init: {"init": init}, st.sampled_from(["buffer", "zeros"])),
    st.builds(lambda value: {"init": {"value": value}}, constants),
    st.just({"shape": [0, "past"], "out_shape": [0, "past + time"]}),
)
specs = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True),
        "source": st.just({"exported_program": "m.pt2"})
        | st.fixed_dictionaries(
            {"python": st.builds("{}.{}:{}".format, names, names, names)},
            optional={"kwargs": st.dictionaries(names, plain, max_size=3), "seed": sizes},
        ),
        "inputs": st.dictionaries(names, inputs, min_size=1, max_size=3),
        "dynamic_axes": st.fixed_dictionaries(
            {
                axis: st.lists(sizes, min_size=3, max_size=3).map(
                    lambda s: dict(zip(("min", "opt", "max"), sorted(s), strict=True))
                )
                for axis in ("batch", "time")
            }
        ),
    },
    optional={
        "states": st.dictionaries(names, states, max_size=3),
        "verify": st.fixed_dictionaries(
            {}, optional={"steps": sizes, "atol": st.floats(0, 1), "seeds": st.just([1, 2])}
        ),
        "benchmark": st.just({"steps": 0}),
        "mlflow": st.just({"enabled": False}),
    },
)


@QUICK
@given(data=specs)
def test_a_spec_survives_being_written_and_read(tmp_path, data):
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(data))
    spec = load_spec(path)
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps(spec.content()))
    reread = load_spec(again)
    assert reread == spec
    assert reread.digest() == spec.digest()


@QUICK
@given(data=st.data())
def test_no_mutation_of_a_file_raises_anything_but_a_spec_error(tmp_path, data):
    raw = bytearray((template("demo") if data.draw(st.booleans()) else GOOD).encode())
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(raw) - 1))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from(PIECES))
        raw[position : position + data.draw(st.integers(0, 3))] = piece
    path = tmp_path / "spec.yaml"
    path.write_bytes(bytes(raw))
    fault = fault_of(lambda: load_spec(path))
    assert fault is None or (fault.file == str(path) and str(fault))


@QUICK
@given(text=st.text(max_size=60))
def test_no_text_raises_anything_but_a_spec_error(text):
    fault = fault_of(lambda: read_text(text, "t.yaml", Path()))
    assert fault is None or fault.line is not None


@QUICK
@given(override=st.text(max_size=30) | st.builds("{}={}".format, st.sampled_from(
    ["name", "inputs.x", "inputs.x.shape", "inputs.x.shape[0]", "source", "verify.atol", "targets"]
), st.text(max_size=12)))  # fmt: skip
def test_no_override_raises_anything_but_a_spec_error(tmp_path, override):
    path = tmp_path / "spec.yaml"
    path.write_text(GOOD)
    fault = fault_of(lambda: load_spec(path, [override]))
    assert fault is None or str(fault)


parts = st.lists(
    st.integers(0, 99) | st.text(st.characters(codec="utf-8")),
    min_size=1,
).filter(lambda parts: isinstance(parts[0], str))


@given(parts)
def test_key_paths_survive_being_written_and_read(parts):
    assert keypath.parse(keypath.render(tuple(parts))) == tuple(parts)


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[", "a[x]", "a b"])
def test_what_is_no_key_path_is_refused(text):
    with pytest.raises(ValueError, match="path of keys"):
        keypath.parse(text)
