import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec.yaml12 import MAX_BYTES, read_file, read_text


def value_of(text):
    return read_text(text, "t.yaml", Path()).plain()


SCALARS = {
    "1e-5": 1e-5,
    "1.0e-5": 1e-5,
    "1E3": 1000.0,
    ".5": 0.5,
    "5.": 5.0,
    "-0.0": -0.0,
    "+12": 12,
    "017": 17,
    "0o17": 15,
    "0x1F": 31,
    "-0x1F": "-0x1F",
    "0b11": "0b11",
    "2024_01": "2024_01",
    "1_000": "1_000",
    "1:30": "1:30",
    "2024-01-01": "2024-01-01",
    "off": "off",
    "on": "on",
    "yes": "yes",
    "no": "no",
    "y": "y",
    "true": True,
    "True": True,
    "FALSE": False,
    "tRUE": "tRUE",
    "null": None,
    "Null": None,
    "~": None,
    "": None,
    "nil": "nil",
    ".inf": math.inf,
    "-.INF": -math.inf,
    "inf": "inf",
    "nan": "nan",
    "1.2.3": "1.2.3",
    "e5": "e5",
    ".": ".",
    "=": "=",
    "'12'": "12",
    '"null"': "null",
    "!!str 12": "12",
    "!!float 1": 1.0,
    "!!int '7'": 7,
}


@pytest.mark.parametrize(("text", "value"), SCALARS.items())
def test_scalars_follow_the_core_schema(text, value):
    found = value_of(f"k: {text}")["k"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_float():
    assert math.isnan(value_of("k: .nan")["k"])


@given(st.integers(-(10**30), 10**30) | st.floats(allow_nan=False))
def test_python_numbers_survive(number):
    text = repr(number).replace("inf", ".inf")
    assert value_of(f"k: {text}")["k"] == number


def test_every_value_and_key_knows_its_line_and_column():
    root = read_text("a:\n  b: [1, {c: x}]\n", "t.yaml", Path())
    inner = root.value["a"].value["b"]
    assert (inner.key_place.line, inner.key_place.column) == (2, 3)
    leaf = inner.value[1].value["c"]
    assert str(leaf.place) == "t.yaml:2:14"
    assert (leaf.key_place.line, leaf.key_place.column) == (2, 11)


def test_aliases_stand_for_what_they_name():
    assert value_of("a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}


def test_nested_aliases_cannot_exceed_the_depth():
    text = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))
    with pytest.raises(SpecError, match="deeper"):
        value_of(text)


def test_quoted_merge_sign_is_an_ordinary_key():
    assert value_of('"<<": 1') == {"<<": 1}


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\n")
    assert read_file(path).plain() == {"name": "a"}


def test_windows_line_ends_count_once(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_bytes(b"a: 1\r\nb: 2\r\n")
    assert read_file(path).value["b"].place.line == 2


def test_the_largest_file_is_read_and_one_more_byte_is_not(tmp_path):
    path = tmp_path / "t.yaml"
    path.write_bytes(b"a: 1\n".ljust(MAX_BYTES, b"#"))
    assert read_file(path).plain() == {"a": 1}
    path.write_bytes(path.read_bytes() + b"#")
    with pytest.raises(SpecError, match="larger"):
        read_file(path)


def test_numbers_too_long_to_mean_anything_are_refused():
    with pytest.raises(SpecError, match="characters"):
        value_of("k: " + "9" * 5000)


@pytest.mark.parametrize(
    "text", ["k: !!int x", "k: !mine 3", "k: !!timestamp 2024-01-01", "!!set {a}"]
)
def test_other_tags_are_refused(text):
    with pytest.raises(SpecError):
        value_of(text)
