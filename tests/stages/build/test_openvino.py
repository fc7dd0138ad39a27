"""What OpenVINO gives, step by step, is what ONNX Runtime gives: states of every form and dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.errors import StageError
from stateful_pipeline.runtime import OpenVinoRunner, StatefulRunner


def state(shape, value=0.0, *, name="h", dtype="float32", out_shape=None):
    """A state whose stored value has size 1 along named axes."""
    stored = tuple(1 if isinstance(dim, str) else dim for dim in shape)
    if out_shape is not None:
        stored = tuple(0 if a != b else n for a, b, n in zip(shape, out_shape, stored, strict=True))
    init = Initial.inline(np.full(stored, value, dtype))
    return State(name, f"{name}_in", f"{name}_out", dtype, shape, init, name, out_shape)


def contract(x, y, *states, dtype="float32"):
    return Contract((Value("x", dtype, x),), (Value("y", dtype, y),), states)


def agree(path, sizes, steps=4):
    """Compare free-running and teacher-forced steps, and those after a reset, at ``sizes``."""
    ours, forced = OpenVinoRunner(path, threads=1), OpenVinoRunner(path, threads=1)
    reference = StatefulRunner(path.parents[1] / "model.onnx", threads=1)
    numbers = np.random.default_rng(0)
    for shapes in sizes:
        for runner in (ours, reference):
            runner.reset()
        for shape in [shapes] * steps if isinstance(shapes, tuple) else shapes:
            x = numbers.integers(1, 5, shape).astype(np.float32)
            before = reference.state
            want = reference.run({"x": x})["y"]
            got = ours.run({"x": x.copy()})["y"]
            forced.reset()
            forced.load_state(before)
            again = forced.run({"x": x.copy()})["y"]
            x[...] = 99  # which a state must not see
            for made in (got, again):
                np.testing.assert_allclose(made, want, rtol=1e-6)
                assert made.dtype == want.dtype
            for runner in (ours, forced):
                for name, value in reference.state.items():
                    np.testing.assert_allclose(runner.state[name], value, rtol=1e-6)


BATCH = ("batch", 2)
ROWS = [(3, 2), (1, 2), (2, 2)]
FIXED = [(3, 2)]

BODIES = {
    "the last input": "y = Neg(h_in)  h_out = Identity(x)",
    "the last input, reshaped": "y = Neg(h_in)  s = Shape(x)  h_out = Reshape(x, s)",
    "the last input, plus 0": "z = Constant <value_float = 0.0> ()  y = Neg(h_in)"
    "  h_out = Add(x, z)",
    "the last input, times 1": "o = Constant <value_float = 1.0> ()  y = Add(h_in, x)"
    "  h_out = Mul(o, x)",
    "a constant": "z = Constant <value_float = 7.0> ()  s = Shape(x)  y = Neg(h_in)"
    "  h_out = Expand(z, s)",
    "itself": "y = Add(x, h_in)  h_out = Identity(h_in)",
    "itself, read by nobody": "y = Neg(x)  h_out = Identity(h_in)",
    "written and read by nobody": "y = Neg(x)  h_out = Mul(x, x)",
    "an output too": "h_out = Add(x, h_in)  y = Identity(h_out)",
    "its old value, an output": "h_out = Add(x, h_in)  y = Identity(h_in)",
    "in a concatenation": "c = Concat <axis = 0> (h_in, x)  s = Shape(x)"
    "  t = Constant <value_ints = [0]> ()  n = Shape <start = 0, end = 1> (x)"
    "  h_out = Slice(c, t, n, t)  y = Slice(c, t, n, t)",
    "a matrix": "t = Transpose <perm = [1, 0]> (h_in)  m = MatMul(x, t)  y = MatMul(m, h_in)"
    "  h_out = Add(h_in, x)",
    "in a branch": "i = Constant <value_int = 0> ()  r = ReduceSum <keepdims = 0> (h_in)"
    "  l = Constant <value_float = 9.0> ()  b = Less(r, l)"
    "  h_out = If (b) <then_branch = a () => (float[b,2] p) { p = Add(h_in, x) },"
    " else_branch = e () => (float[b,2] q) { q = Identity(x) }>  y = Neg(h_in)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("batch", ["batch", 3])
def test_a_state_of_any_form_is_carried(save_openvino, body, batch):
    kind = f"float[{batch},2]"
    text = f"g ({kind} x, {kind} h_in) => ({kind} y, {kind} h_out) {{ {body} }}"
    path = save_openvino(text, contract((batch, 2), (batch, 2), state((batch, 2), 0.5)))
    agree(path, ROWS if batch == "batch" else FIXED)


def test_states_that_take_each_others_place_are_told_apart(save_openvino):
    text = """g (float[batch,2] x, float[batch,2] h_in, float[batch,2] g_in)
        => (float[batch,2] y, float[batch,2] h_out, float[batch,2] g_out)
      { y = Sub(g_in, x)  g_out = Identity(h_in)  h_out = Identity(x) }"""
    states = (state(BATCH, 1.0), state(BATCH, 2.0, name="g"))
    agree(save_openvino(text, contract(BATCH, BATCH, *states)), ROWS)


@pytest.mark.parametrize("batch", ["batch", 1])
def test_a_window_that_an_input_is_put_behind_moves_on(save_openvino, batch):
    text = f"""g (float[{batch},2] x, float[{batch},6] h_in)
        => (float[{batch}] y, float[{batch},6] h_out)
      <int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] six = {{6}}> {{
        kept = Slice(h_in, two, six, one)
        h_out = Concat <axis = 1> (kept, x)
        y = ReduceSum <keepdims = 0> (h_out, one)
      }}"""
    path = save_openvino(text, contract((batch, 2), (batch,), state((batch, 6))))
    agree(path, [(1, 2), (3, 2)] if batch == "batch" else [(1, 2)], steps=5)


@pytest.mark.parametrize("batch", ["batch", 2])
@pytest.mark.parametrize("reads", ["c", "h_in"])
def test_a_cache_grows_step_by_step_and_is_short_again_after_reset(save_openvino, batch, reads):
    text = f"""g (float[{batch},time,2] x, float[{batch},past,2] h_in)
        => (float[{batch},2] y, float[{batch},after,2] h_out)
      <int64[1] one = {{1}}> {{
        c = Concat <axis = 1> (h_in, x)
        h_out = Identity(c)
        y = ReduceSum <keepdims = 0> ({reads}, one)
      }}"""
    grows = state((batch, "past", 2), out_shape=(batch, "past + time", 2))
    path = save_openvino(text, contract((batch, "time", 2), (batch, 2), grows))
    agree(path, [[(2, 3, 2), (2, 1, 2), (2, 4, 2)]])
    if batch == "batch":
        agree(path, [[(1, 1, 2), (1, 2, 2)], [(3, 2, 2), (3, 1, 2)]])


def test_the_size_of_an_initial_value_may_be_an_expression_of_axes(save_openvino):
    text = """g (float[batch,time] x, float[rows] h_in) => (float[rows] y, float[rows] h_out)
      <int64[1] all = {-1}, int64[1] two = {2}> {
        b = Shape <start = 0, end = 1> (x)
        r = Mul(b, two)
        i = Expand(two, r)
        z = Cast <to = 1> (i)
        h_out = Add(h_in, z)
        y = Neg(h_in)
      }"""
    held = state(("Max(2*batch, batch + 1)",), 4.0)
    path = save_openvino(text, contract(("batch", "time"), ("2*batch",), held))
    agree(path, [(1, 2), (3, 1)])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *[("float16", 0.5), ("bfloat16", 0.5), ("float64", 0.5), ("bool", True), ("int32", 2**24)],
        *[("int64", 2**24), ("int16", 7), ("uint16", 7), ("uint32", 7), ("uint64", 7)],
    ],
)
def test_states_of_every_dtype_keep_dtype_and_value(save_openvino, dtype, value):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    text = f"""g ({_onnx(dtype)}[batch,2] x, {_onnx(dtype)}[batch,2] h_in)
        => ({_onnx(dtype)}[batch,2] y, {_onnx(dtype)}[batch,2] h_out)
      {{ y = Identity(h_in)  h_out = Identity(x) }}"""
    held = state(BATCH, value, dtype=kind)
    held = State(**{**vars(held), "dtype": dtype})
    path = save_openvino(text, contract(BATCH, BATCH, held, dtype=dtype))
    runner = OpenVinoRunner(path)
    for batch in (1, 3):
        runner.reset()
        given = [np.full((batch, 2), number).astype(kind) for number in (1, 0, 1)]
        wanted = [np.full((batch, 2), value).astype(kind), *given]
        for x, want in zip(given, wanted, strict=False):
            got = runner.run({"x": x})["y"]
            assert got.dtype == want.dtype
            assert got.tobytes() == want.tobytes()
        assert runner.state["h"].dtype == kind
        assert runner.state["h"].tobytes() == given[-1].tobytes()
        runner.load_state({"h": given[1]})
        assert runner.run({"x": given[0]})["y"].tobytes() == given[1].tobytes()


def _onnx(dtype):
    return {"float32": "float", "float64": "double"}.get(dtype, dtype)


@pytest.mark.parametrize(("dtype", "start"), [("int8", 126), ("uint8", 254)])
def test_small_integers_wrap_around_as_they_do_elsewhere(save_openvino, dtype, start):
    text = f"""g ({dtype}[batch,2] x, {dtype}[batch,2] h_in)
        => ({dtype}[batch,2] y, {dtype}[batch,2] h_out)
      {{ h_out = Add(h_in, x)  y = Identity(h_in) }}"""
    held = state(BATCH, start, dtype=dtype)
    path = save_openvino(text, contract(BATCH, BATCH, held, dtype=dtype))
    runner = OpenVinoRunner(path)
    want = np.array(start, dtype)
    for _ in range(4):
        got = runner.run({"x": np.ones((1, 2), dtype)})["y"]
        assert got.tolist() == [[int(want)] * 2]
        want = (want.astype(np.int64) + 1).astype(dtype)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_a_cache_written_by_tensor_scatter_is_carried(save_openvino, mode):
    text = f"""g (float[batch,1,2] x, int64 n_in, float[batch,4,2] h_in)
        => (float[batch,4,2] y, int64 n_out, float[batch,4,2] h_out)
      <int64 unit = {{1}}, int64 size = {{4}}> {{
        b = Shape <start = 0, end = 1> (x)
        at = Expand(n_in, b)
        h_out = TensorScatter <axis = 1, mode = "{mode}"> (h_in, x, at)
        y = Neg(h_out)
        m = Add(n_in, unit)
        n_out = {"Identity(m)" if mode == "circular" else "Mod(m, size)"}
      }}"""
    states = (state((), dtype="int64", name="n"), state(("batch", 4, 2)))
    made = contract(("batch", 1, 2), ("batch", 4, 2), *states)
    agree(save_openvino(text, made, opset=24), [(2, 1, 2), (1, 1, 2)], steps=6)


def test_local_functions_are_written_out(save_openvino):
    text = """g (float[batch,2] x, float[batch,2] h_in) => (float[batch,2] y, float[batch,2] h_out)
      { h_out = own.leak(h_in, x)  y = Neg(h_out) }
      <opset_import: ["" : 20], domain: "own">
      leak (h, x) => (z) { s = Add(h, x)  z = Tanh(s) }"""
    path = save_openvino(text, contract(BATCH, BATCH, state(BATCH)), domains=', "own" : 1')
    agree(path, ROWS)


def test_an_operator_that_openvino_lacks_is_named(save_openvino):
    text = """g (float[2,2] x, float[2,2] h_in) => (float[2,2] y, float[2,2] h_out)
      { d = Det(h_in)  y = Add(x, d)  h_out = Add(h_in, x) }"""
    with pytest.raises(StageError, match="OpenVINO has no operator Det") as caught:
        save_openvino(text, contract((2, 2), (2, 2), state((2, 2))))
    assert caught.value.stage == "build"


def test_initial_values_in_a_file_come_along(save_openvino, tmp_path):
    np.savez(tmp_path / "model.onnx.states.npz", h=np.full((1, 2), 3, np.float32))
    held = state(BATCH)
    init = Initial("file", (1, 2), file="model.onnx.states.npz", key="h")
    text = """g (float[batch,2] x, float[batch,2] h_in) => (float[batch,2] y, float[batch,2] h_out)
      { h_out = Add(h_in, x)  y = Neg(h_in) }"""
    path = save_openvino(text, contract(BATCH, BATCH, State(**{**vars(held), "init": init})))
    agree(path, ROWS)
    assert OpenVinoRunner(path).state["h"].tolist() == [[3.0, 3.0]]


def test_a_model_without_inputs_counts_too(save_openvino):
    text = """g (float h_in) => (float y, float h_out)
      <float one = {1.0}> { y = Neg(h_in)  h_out = Add(h_in, one) }"""
    made = Contract((), (Value("y", "float32", ()),), (state((), 3.0),))
    runner = OpenVinoRunner(save_openvino(text, made))
    assert [float(runner.run({})["y"]) for _ in range(3)] == [-3.0, -4.0, -5.0]
    runner.reset()
    assert float(runner.run({})["y"]) == -3.0


@pytest.mark.parametrize(("dtype", "start"), [("uint8", 200), ("int8", -128)])
def test_small_integers_wrap_around_in_shifts_and_absolute_values(save_openvino, dtype, start):
    written = 'BitShift <direction = "LEFT"> (h_in, x)' if dtype == "uint8" else "Abs (h_in)"
    text = f"""g ({dtype}[batch,2] x, {dtype}[batch,2] h_in)
        => ({dtype}[batch,2] y, {dtype}[batch,2] h_out)
      {{ y = {written}  h_out = Identity (y) }}"""
    held = state(BATCH, start, dtype=dtype)
    runner = OpenVinoRunner(save_openvino(text, contract(BATCH, BATCH, held, dtype=dtype)))
    got = [runner.run({"x": np.ones((1, 2), dtype)})["y"][0, 0] for _ in range(3)]
    assert got == ([144, 32, 64] if dtype == "uint8" else [-128, -128, -128])


def test_a_shift_to_the_right_of_what_may_be_negative_is_refused(save_openvino):
    text = """g (int32[batch,2] x, int32[batch,2] h_in) => (int32[batch,2] y, int32[batch,2] h_out)
      <uint32 one = {1}> {
        u = Cast <to = 12> (h_in)
        s = BitShift <direction = "RIGHT"> (u, one)
        y = Cast <to = 6> (s)
        h_out = Sub (h_in, x)
      }"""
    with pytest.raises(StageError, match="shifts uint32 to the right"):
        save_openvino(text, contract(BATCH, BATCH, state(BATCH, dtype="int32"), dtype="int32"))


def test_any_result_of_an_operator_and_nan_are_cast_to_bool_as_they_are(save_openvino):
    text = """g (float[2,2] x, float[2,2] h_in) => (float[2,2] y, float[2,2] h_out) {
        a, b = Split <axis = 0, num_outputs = 2> (h_in)
        c = Cast <to = 9> (a)  d = Cast <to = 9> (b)  e = Cast <to = 9> (d)
        both = Concat <axis = 0> (c, e)
        y = Cast <to = 1> (both)
        h_out = Identity (x)
      }"""
    runner = OpenVinoRunner(save_openvino(text, contract((2, 2), (2, 2), state((2, 2)))))
    x = np.array([[0, np.nan], [3, 0]], np.float32)
    assert [runner.run({"x": x})["y"].tolist() for _ in range(2)] == [
        [[0, 0], [0, 0]],
        [[0, 1], [1, 0]],
    ]


@pytest.mark.parametrize("name", ["model.xml", "model.bin"])
def test_a_full_disk_is_told_with_the_file(save_openvino, tmp_path, name):
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / name).symlink_to("/dev/full")
    header = "g (float[3] x, float[3] h_in) => (float[3] y, float[3] h_out) "
    body = "<float[3] w = {1.0, 2.0, 3.0}> { y = Mul(x, w)  h_out = Add(x, h_in) }"
    with pytest.raises(StageError, match=r"OpenVINO cannot write .*model\.xml: ") as caught:
        save_openvino(header + body, contract((3,), (3,), state((3,))))
    assert "room" in caught.value.hint
