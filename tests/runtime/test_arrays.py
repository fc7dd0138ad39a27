import ml_dtypes
import numpy as np
import pytest

from stateful_pipeline.contract import Contract, Value
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

X = np.array([[1.0, 2.0, 3.0]], np.float32)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 'x' is missing"),
        ({"x": X, "xx": X}, "no input 'xx'\n  try: did you mean 'x'"),
        ({"x": X, "h_in": X}, "'h_in' is state 'h', which the runner keeps"),
        ({"x": X, "h": X}, "'h' is state 'h', which the runner keeps"),
        ({"x": X.astype(np.float64)}, r"is float64, the model takes float32\n.*astype\(np.float32"),
        ({"x": X.astype(">f4")}, r"foreign byte order \(>f4\).*\n.*x.astype\(np.float32\)"),
        ({"x": [[1.0, 2.0, 3.0]]}, r"is a list, not a numpy array\n.*np.asarray\(x, np.float32\)"),
        ({"x": np.array([[None] * 3])}, "is object, the model takes float32"),
        ({"x": X[0]}, r"shape \[3\], the model takes \[rows, 3\]"),
        ({"x": X[:, :2]}, r"shape \[1, 2\], the model takes \[rows, 3\]"),
        ([X], r"takes a dict of arrays by name, not list"),
    ],
)
def test_a_wrong_input_is_refused_and_loses_nothing(counter, inputs, message):
    runner = StatefulRunner(counter)
    runner.run({"x": X})
    with pytest.raises(ContractError, match=message):
        runner.run(inputs)
    assert runner.run({"x": X})["output"].tolist() == [[5.0, 6.0, 7.0]]


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.tile(X, (2, 1))),
        np.tile(X, (4, 1))[::2],
        np.broadcast_to(X, (2, 3)),
        np.frombuffer(b"\0" + X.tobytes() * 2, np.uint8)[1:].view(np.float32).reshape(2, 3),
    ],
    ids=["fortran", "strided", "broadcast", "unaligned and read-only"],
)  # fmt: skip
def test_arrays_of_any_memory_layout_are_taken(counter, array):
    out = StatefulRunner(counter).run({"x": array})["output"]
    assert out.tolist() == [[4, 5, 6], [4, 5, 6]]


def test_the_input_array_is_left_as_it_was(counter):
    x = X.copy()
    runner = StatefulRunner(counter)
    for _ in range(3):
        runner.run({"x": x})
    assert x.tolist() == X.tolist()


def test_numpy_scalars_are_arrays_without_dimensions(save_model):
    contract = Contract((Value("x", "float32", ()),), (Value("y", "float32", ()),), ())
    path = save_model("g (float x) => (float y) { y = Neg(x) }", contract)
    runner = StatefulRunner(path)
    assert runner.run({"x": np.float32(2)})["y"] == -2
    assert runner.run({"x": np.array(2, np.float32)})["y"].shape == ()
    with pytest.raises(ContractError, match="is a float, not a numpy array"):
        runner.run({"x": 2.0})


def test_a_bfloat16_input_must_be_one(save_model):
    contract = Contract((Value("x", "bfloat16", (1,)),), (Value("y", "bfloat16", (1,)),), ())
    path = save_model("g (bfloat16[1] x) => (bfloat16[1] y) { y = Identity(x) }", contract)
    runner = StatefulRunner(path)
    assert runner.run({"x": np.ones(1, ml_dtypes.bfloat16)})["y"].tolist() == [1]
    with pytest.raises(ContractError, match=r"x.astype\(ml_dtypes.bfloat16\)"):
        runner.run({"x": np.ones(1, np.float32)})


def test_subclasses_of_arrays_are_taken_as_arrays(counter, tmp_path):
    mapped = np.memmap(tmp_path / "x.bin", np.float32, "w+", shape=(1, 3))
    mapped[:] = X
    out = StatefulRunner(counter).run({"x": mapped})["output"]
    assert type(out) is np.ndarray
    assert out.tolist() == [[4, 5, 6]]
    del mapped
