"""Casts around operators at dtypes that ONNX or ONNX Runtime has nothing for."""

from __future__ import annotations

import ctypes
from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

from stateful_pipeline.errors import TargetError
from stateful_pipeline.runtime.engine import ONNX_TYPES
from stateful_pipeline.stages.lowering import define, is_lowered, kernels, lower, lower_file

NUMBERS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def model(text: str, opset: int = 20) -> ir.Model:
    return ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def operators(lowered: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in lowered.graph)


def run(lowered: ir.Model, **inputs: np.ndarray) -> list[np.ndarray]:
    """Run a model whose inputs and outputs all have the dtype of the first input."""
    proto = ir.to_proto(lowered)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    dtype = next(iter(inputs.values())).dtype

    def value(array: np.ndarray) -> onnxruntime.OrtValue:
        bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
        make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        return make(bits, ONNX_TYPES[array.dtype.name])

    names = [output.name for output in session.get_outputs()]
    made = []
    for result in session.run_with_ort_values(names, {n: value(a) for n, a in inputs.items()}):
        assert result.element_type() == ONNX_TYPES[dtype.name]
        array = np.empty(tuple(result.shape()), dtype)
        ctypes.memmove(array.ctypes.data, result.data_ptr(), array.nbytes)
        made.append(array)
    return made


def numbers(dtype: str, seed: int, size: int = 1000) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * 10).astype(NUMBERS[dtype])


@pytest.mark.parametrize("dtype", NUMBERS)
def test_each_result_is_rounded_before_the_next_operator_reads_it(dtype: str) -> None:
    chain = model(
        f"""g ({dtype}[1000] x, {dtype}[1000] y) => ({dtype}[1000] z) {{
            m = Mul(x, y) n = Sub(m, x) z = Div(n, y) }}"""
    )
    assert set(lower(chain)) == {f"{op}: {dtype} in float32" for op in ("Mul", "Sub", "Div")}
    assert is_lowered(chain)
    x, y = numbers(dtype, 0), numbers(dtype, 1)
    np.testing.assert_array_equal(run(chain, x=x, y=y)[0], (x * y - x) / y)


def test_a_value_is_widened_once_and_names_and_dtypes_outside_stay() -> None:
    lowered = model(
        """g (bfloat16[4] x) => (bfloat16[4] y, bfloat16[4] z) {
            y = Mul(x, x) z = Add(x, y) }"""
    )
    lower(lowered)
    assert operators(lowered) == {"Mul": 1, "Add": 1, "Cast": 4}  # x, y wider; y, z back
    for value in (*lowered.graph.inputs, *lowered.graph.outputs):
        assert value.dtype == ir.DataType.BFLOAT16
    assert [value.name for value in lowered.graph.outputs] == ["y", "z"]


def test_what_has_a_kernel_stays_as_it_is() -> None:
    for text in (
        "g (bfloat16[4] x) => (bfloat16[8] y) { y = Concat<axis=0>(x, x) }",
        "g (float[4] x) => (float[4] y) { h = Mul(x, x) y = Tanh(h) }",
        "g (int8[4] x) => (int8[4] y) { y = Add(x, x) }",
        "g (float[4] x) => (bfloat16[4] y) { y = Cast<to=16>(x) }",
    ):
        kept = model(text)
        before = operators(kept)
        assert is_lowered(kept)
        assert lower(kept) == define(kept) == ()
        assert operators(kept) == before


def test_an_operator_that_onnx_does_not_define_is_wide_in_the_portable_file_too() -> None:
    text = """g (bfloat16[1, 1, 8] x, bfloat16[1, 1, 3] w) => (bfloat16[1, 1, 6] y) {
        y = Conv(x, w) }"""
    old, new = model(text), model(text, 22)
    assert define(old) == ("Conv: bfloat16 in float32",)
    onnx.checker.check_model(ir.to_proto(old), full_check=True)
    assert define(new) == ()
    assert lower(new) == ("Conv: bfloat16 in float32",)


def test_nodes_in_branches_are_lowered_there() -> None:
    lowered = model(
        """g (bfloat16[4] x, bool c) => (bfloat16[4] z) {
            z = If (c) <
                then_branch = a () => (bfloat16[4] t) { t = Mul(x, x) },
                else_branch = b () => (bfloat16[4] e) { e = Sub(x, x) }> }"""
    )
    assert len(lower(lowered)) == 2
    x = numbers("bfloat16", 0, 4)
    for condition, expected in ((True, x * x), (False, x - x)):
        np.testing.assert_array_equal(run(lowered, x=x, c=np.array(condition))[0], expected)


@pytest.mark.parametrize(
    ("dtype", "body", "expected"),
    [
        ("int8", 'z = Einsum<equation="i,i->i">(x, y)', lambda x, y: x * y),
        ("uint8", 'z = Einsum<equation="i,i->i">(x, y)', lambda x, y: x * y),
        ("int16", "z = Max(x, y)", np.maximum),
        ("int16", "c = Less(x, y) z = Where(c, y, x)", np.maximum),
        ("uint16", "c = Less(x, y) z = Where(c, y, x)", np.maximum),
        ("bool", "c = Not(x) z = Where(c, y, x)", lambda x, y: np.where(~x, y, x)),
        ("uint32", "c = BitwiseNot(x) z = Sub(c, y)", lambda x, y: ~x - y),
    ],
)
def test_integers_are_exact_and_wrap_around(dtype: str, body: str, expected) -> None:
    lowered = model(f"g ({dtype}[200] x, {dtype}[200] y) => ({dtype}[200] z) {{ {body} }}")
    lower(lowered)
    generator = np.random.default_rng(0)
    x, y = (generator.integers(0, 256, (2, 200, 8), np.uint8)).view(np.uint64)[..., 0]
    x, y = (x % 2 == 0, y % 3 == 0) if dtype == "bool" else (x.astype(dtype), y.astype(dtype))
    np.testing.assert_array_equal(run(lowered, x=x, y=y)[0], expected(x, y))


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize(("reduction", "changes"), [("none", False), ("add", True)])
def test_a_scatter_that_reduces_is_lowered_although_a_kernel_is_listed(
    operator: str, reduction: str, changes: bool
) -> None:
    shape = "[2, 1]" if operator == "ScatterND" else "[2]"
    lowered = model(
        f"""g (bfloat16[4] x, bfloat16[2] u) => (bfloat16[4] z)
            <int64{shape} i = {{0, 1}}> {{
            z = {operator}<reduction="{reduction}">(x, i, u) }}"""
    )
    assert bool(lower(lowered)) is changes
    x, u = numbers("bfloat16", 0, 4), numbers("bfloat16", 1, 2)
    expected = x.copy()
    expected[:2] = u + x[:2] if changes else u
    np.testing.assert_array_equal(run(lowered, x=x, u=u)[0], expected)


def test_what_makes_elements_of_a_dtype_makes_wide_ones() -> None:
    filled = model(
        """g (int64[1] n) => (bfloat16[k] z) {
            z = ConstantOfShape<value = bfloat16[1] {3}>(n) }""",
        18,
    )
    eye = model("g (bfloat16[3, 3] x) => (bfloat16[3, 3] z) { z = EyeLike<dtype=16>(x) }", 22)
    assert define(filled) == ("ConstantOfShape: bfloat16 in float32",)
    onnx.checker.check_model(ir.to_proto(filled), full_check=True)
    lower(eye)
    x = np.zeros((3, 3), ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(eye, x=x)[0], np.eye(3, dtype=ml_dtypes.bfloat16))


def test_an_operator_that_is_a_function_rounds_once_in_16_bits() -> None:
    text = """g ({0}[1, 4, 8] x, {0}[4] s, {0}[4] b) => ({0}[1, 4, 8] z) {{
        z = GroupNormalization<num_groups=2>(x, s, b) }}"""
    half, single = model(text.format("float16"), 21), model(text.format("float"), 21)
    assert lower(half) == ("GroupNormalization: float16 in float32",)
    assert is_lowered(single)
    x, s, b = numbers("float16", 0, 32).reshape(1, 4, 8), *numbers("float16", 1, 8).reshape(2, 4)
    wide = run(single, **{n: a.astype(np.float32) for n, a in {"x": x, "s": s, "b": b}.items()})
    np.testing.assert_array_equal(run(half, x=x, s=s, b=b)[0], wide[0].astype(np.float16))


def test_functions_of_the_file_are_written_out() -> None:
    lowered = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (bfloat16[4] x) => (bfloat16[4] z) { z = own.twice(x) }
        <domain: "own", opset_import: ["" : 20]> twice (x) => (y) { y = Add(x, x) }"""
    )
    assert not is_lowered(lowered)
    assert lower(lowered) == ("Add: bfloat16 in float32",)
    x = numbers("bfloat16", 0, 4)
    np.testing.assert_array_equal(run(lowered, x=x)[0], x + x)


def test_a_file_keeps_its_weights_beside_it_and_is_only_written_if_it_changes(tmp_path) -> None:
    weight = ir.tensor(np.arange(4, dtype=np.float32).astype(ml_dtypes.bfloat16), name="w")
    adds = model("g (bfloat16[4] x, bfloat16[4] w) => (bfloat16[4] z) { z = Add(x, w) }")
    given = adds.graph.inputs.pop()
    given.const_value = weight
    adds.graph.register_initializer(given)
    source = tmp_path / "model.onnx"
    ir.save(adds, source, external_data="model.onnx.data", size_threshold_bytes=0)
    assert lower_file(source, tmp_path / "lowered.onnx") == ("Add: bfloat16 in float32",)
    lowered = ir.load(tmp_path / "lowered.onnx")
    (stored,) = lowered.graph.initializers.values()
    assert isinstance(stored.const_value, ir.ExternalTensor)
    assert stored.dtype == ir.DataType.BFLOAT16
    session = onnxruntime.InferenceSession(str(tmp_path / "lowered.onnx"))
    assert [node.type for node in session.get_inputs()] == ["tensor(bfloat16)"]

    assert lower_file(tmp_path / "lowered.onnx", tmp_path / "again.onnx") == ()
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    assert lower_file(broken, tmp_path / "again.onnx") == ()
    assert not (tmp_path / "again.onnx").exists()


def known(rows) -> set:
    return {
        (domain, name, *versions, frozenset((key, *sorted(takes)) for key, takes in types.items()))
        for domain, name, versions, types in rows
    }


def test_the_list_for_packages_that_cannot_be_asked_is_that_of_its_version() -> None:
    version, kept = kernels.kept_list()
    if onnxruntime.__version__ != version:
        pytest.skip(f"the list is of ONNX Runtime {version}")
    assert known(kernels.listed()) == known(kept)


def test_an_onnx_runtime_that_does_not_list_its_kernels_is_named(monkeypatch) -> None:
    monkeypatch.delattr(state, "get_all_opkernel_def")
    kernels._kernels.cache_clear()
    # a pair of dtypes that no other test asks about, so that no cache has the answer
    odd = model("g (uint16[2] x, uint16[2] y) => (uint16[2] z) { z = BitwiseXor(x, y) }", 18)
    with pytest.raises(TargetError, match="does not list its kernels"):
        lower(odd)
    kernels._kernels.cache_clear()
