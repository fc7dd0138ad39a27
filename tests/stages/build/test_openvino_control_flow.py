"""A state in branches and loops is what it is with ONNX Runtime, over many steps and resets.

OpenVINO lets a body read the memory that a state had in an earlier step, where sizes are dynamic,
and takes the wrong result of a branch for a boolean.  So every form is run with inputs that change
the state and with such that do not.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Initial, State, Value
from stateful_pipeline.runtime import OpenVinoRunner, StatefulRunner

HEADER = """
  zero = Constant <value_ints = [0]> ()  steps = Shape <start = 0, end = 1> (x)
  trips = Squeeze (steps, zero)
  largest = ReduceMax <keepdims = 0> (x)  smallest = ReduceMin <keepdims = 0> (x)
  four = Constant <value_float = 4.0> ()  minus = Neg (four)
  high = Greater (largest, four)  low = Less (smallest, minus)
"""

KEEP = "RESULT = Identity (h_in)"
CHANGE = "RESULT = CHANGE (h_in)"


def branch(by, then, other, n="p"):
    """Return an ``If`` of one result; ``n`` begins the names in its branches."""
    first, second = then.replace("RESULT", f"{n}t"), other.replace("RESULT", f"{n}e")
    return (
        f"If ({by}) <then_branch = {n}a () => (KIND {n}t) {{ {first} }},"
        f" else_branch = {n}b () => (KIND {n}e) {{ {second} }}>"
    )


def loop(body, start="h_in", n="l"):
    """Return a ``Loop`` that carries one value, ``{n}c``; its body makes ``{n}r``."""
    return (
        f"Loop (trips, yes, {start}) <body = {n}b (int64 {n}i, bool {n}g, KIND {n}c)"
        f" => (bool {n}k, KIND {n}r) {{ {n}k = Identity ({n}g)  {body} }}>"
    )


SOMETIMES = branch("high", "RESULT = CHANGE (lc)", "RESULT = Identity (lc)")
FORMS = {
    "changed in one branch": f"h_out = {branch('high', CHANGE, KEEP)}",
    "handed on by an inner branch": "h_out = "
    + branch("high", CHANGE, f"pz = {branch('low', CHANGE, KEEP, 'q')}  RESULT = Identity (pz)"),
    "carried by a loop": f"h_out = {loop('lr = CHANGE (lc)')}",
    "handed on by a loop": f"h_out = {loop('lr = Identity (lc)')}",
    "changed in a branch in a loop": f"h_out = {loop(f'lr = {SOMETIMES}')}",
    "changed in a loop in a branch": "h_out = "
    + branch("high", f"RESULT = {loop('lr = CHANGE (lc)')}", KEEP),
    "changed in a loop in a loop": "h_out = " + loop(f"lr = {loop('mr = CHANGE (mc)', 'lc', 'm')}"),
    "read in a branch alone": f"h_out = CHANGE (h_in)  s = {branch('high', CHANGE, KEEP)}",
    "read in a loop alone": "h_out = CHANGE (h_in)  s = "
    + loop(f"lz = CHANGE (h_in)  lr = {branch('high', 'RESULT = Identity (lz)', KEEP)}"),
    "read in a loop that starts from its new value": "m = CHANGE (h_in)  h_out = "
    + loop(f"lr = {branch('low', 'RESULT = CHANGE (lc)', KEEP)}", "m"),
    "transposed before a branch": "w = Transpose <perm = [1, 0]> (h_in)"
    "  v = Transpose <perm = [1, 0]> (w)  h_out = "
    + branch("high", "RESULT = CHANGE (v)", "RESULT = Identity (v)"),
    "changed before a branch": "v = CHANGE (h_in)  h_out = "
    + branch("high", "RESULT = CHANGE (v)", KEEP),
}
CODES = {"float32": 1, "float16": 10, "int32": 6, "int64": 7, "int8": 3, "uint8": 2, "bool": 9}


def graph_of(form, dtype, size):
    """Return a graph of ``h``, as ``form`` says, beside a counter ``n`` of int32."""
    by = r"Not (\1)" if dtype == "bool" else r"Add (\1, one)"
    body = re.sub(r"CHANGE \((\w+)\)", by, form)
    shown = "s" if "  s = " in form else "h_out"
    kind = f"{'float' if dtype == 'float32' else dtype}[{size},2]"
    text = f"""g (float[time,{size},2] x, KIND h_in, int32 n_in)
      => (bool[{size},2] is_on, bool counted, float capped, float[{size},2] y, float[{size},2] z,
          KIND same, KIND h_out, int32 n_out)
      <bool yes = {{1}}, int32 unit = {{1}}> {{
        {HEADER}
        one = Cast <to = {CODES[dtype]}> (unit)
        {body}
        capped, n_out = If (high) <
          then_branch = ta () => (float tc, int32 tn) {{
            tc = Identity (four)  tn = Add (n_in, unit) }},
          else_branch = tb () => (float ec, int32 en) {{
            ec = Identity (largest)  en = Identity (n_in) }}>
        is_on = Cast <to = 9> (h_out)  counted = Cast <to = 9> (n_out)
        y = Cast <to = 1> ({shown})  z = Cast <to = 1> (h_in)  same = Identity (h_out)
      }}"""
    return text.replace("KIND", kind)


def contract_of(dtype, size):
    shape = (size, 2)
    init = Initial.inline(np.zeros((1 if size == "batch" else size, 2), dtype))
    outputs = (
        ("is_on", "bool", shape), ("counted", "bool", ()), ("capped", "float32", ()),
        ("y", "float32", shape), ("z", "float32", shape), ("same", dtype, shape),
    )  # fmt: skip
    return Contract(
        (Value("x", "float32", ("time", size, 2)),),
        tuple(Value(*output) for output in outputs),
        (
            State("h", "h_in", "h_out", dtype, shape, init, "h", None),
            State("n", "n_in", "n_out", "int32", (), Initial.inline(np.int32(0)), "n", None),
        ),
    )


def step_of_both(ours, reference, numbers, time):
    """Take a step with both runners, and compare what they give and hold."""
    x = numbers.normal(scale=2.5, size=(time, 3, 2)).astype(np.float32)
    want, got = reference.run({"x": x}), ours.run({"x": x.copy()})
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    for name, value in reference.state.items():
        np.testing.assert_array_equal(ours.state[name], value, err_msg=name)


@pytest.mark.parametrize("size", ["batch", 3])
@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_a_state_of_any_dtype_is_carried_through_control_flow(save_openvino, form, dtype, size):
    path = save_openvino(graph_of(form, dtype, size), contract_of(dtype, size))
    ours = OpenVinoRunner(path, threads=1)
    reference = StatefulRunner(path.parents[1] / "model.onnx", threads=1)
    numbers = np.random.default_rng(0)
    for steps, time in ((9, 3), (4, 2), (9, 3)):
        ours.reset()
        reference.reset()
        for _ in range(steps):
            step_of_both(ours, reference, numbers, time)
    for _ in range(3):
        kept = reference.state
        step_of_both(ours, reference, numbers, 3)
        ours.load_state(kept)
        reference.load_state(kept)
