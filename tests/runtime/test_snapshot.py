import zipfile

import ml_dtypes
import numpy as np
import pytest

from stateful_pipeline.contract import DTYPES, Contract, Initial, State, numpy_dtype
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime import StatefulRunner

pytestmark = pytest.mark.usefixtures("memory")

X = np.array([[1.0, 2.0, 3.0]], np.float32)


def first(runner):
    return runner.run({"x": X})["output"][0, 0]


def test_a_snapshot_is_a_dict_of_copies(counter):
    runner = StatefulRunner(counter)
    first(runner)
    snapshot = runner.state
    snapshot["h"][()] = 100
    assert first(runner) == 5
    runner.load_state(snapshot)
    snapshot["h"][()] = 0
    assert first(runner) == 101


def test_a_loaded_state_continues_the_rollout(counter):
    runner, other = StatefulRunner(counter), StatefulRunner(counter)
    for _ in range(3):
        first(runner)
    other.load_state(runner.state)
    assert [first(other), first(other)] == [first(runner), first(runner)] == [7, 8]
    other.reset()
    assert first(other) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": None}, "takes an array or numbers, not a NoneType"),
        ({"h": np.array(1.0)}, "'h' is float32, the value given is float64"),
        ({"h": np.zeros(1, np.float32)}, r"has shape \[\], the value given has \[1\]"),
        ({"hidden": np.zeros(1)}, "no state 'hidden'"),
        ({"n": "absent"}, "the snapshot lacks state 'n'"),
    ],
)
def test_a_snapshot_that_does_not_fit_changes_nothing(counter, change, message):
    runner = StatefulRunner(counter)
    first(runner)
    snapshot = {k: v for k, v in {**runner.state, **change}.items() if not isinstance(v, str)}
    with pytest.raises(ContractError, match=message):
        runner.load_state(snapshot)
    assert first(runner) == 5


def test_loading_binds_the_sizes_of_the_snapshot(accumulator):
    runner, other = StatefulRunner(accumulator), StatefulRunner(accumulator)
    runner.run({"x": np.ones((4, 2), np.float32)})
    other.run({"x": np.ones((2, 2), np.float32)})
    other.load_state(runner.state)
    assert other.sizes == {"batch": 4}
    assert other.run({"x": np.ones((4, 1), np.float32)})["total"].tolist() == [3] * 4


def test_save_and_load(accumulator, tmp_path):
    runner, other = StatefulRunner(accumulator), StatefulRunner(accumulator)
    runner.run({"x": np.ones((4, 2), np.float32)})
    runner.save(tmp_path / "s.npz")
    other.load(tmp_path / "s.npz")
    assert other.sizes == {"batch": 4}
    assert other.run({"x": np.ones((4, 1), np.float32)})["total"].tolist() == [3] * 4
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["sum"].tolist() == [2] * 4


def test_every_dtype_survives_the_file_and_so_does_any_name(save_model, tmp_path):
    names = {dtype: f"layers/{k}.file" if k else "file" for k, dtype in enumerate(DTYPES)}
    kinds = {"float32": "float", "float64": "double"}
    inits = {d: Initial.inline(np.array([0, 1, 1]).astype(numpy_dtype(d))) for d in DTYPES}
    contract = Contract(
        (),
        (),
        tuple(
            State(names[d], f"i_{d}", f"o_{d}", d, (3,), inits[d], names[d]) for d in DTYPES
        ),
    )  # fmt: skip
    takes = ", ".join(f"{kinds.get(d, d)}[3] i_{d}" for d in DTYPES)
    gives = ", ".join(f"{kinds.get(d, d)}[3] o_{d}" for d in DTYPES)
    body = " ".join(f"o_{d} = Identity(i_{d})" for d in DTYPES)
    runner = StatefulRunner(save_model(f"g ({takes}) => ({gives}) {{ {body} }}", contract))
    runner.run({})
    runner.save(tmp_path / "s.npz")
    runner.reset({name: np.zeros(3, numpy_dtype(d)) for d, name in names.items()})
    runner.load(tmp_path / "s.npz")
    for dtype, name in names.items():
        assert runner.state[name].dtype == numpy_dtype(dtype)
        assert runner.state[name].tolist() == np.array([0, 1, 1], ml_dtypes.bfloat16).tolist()


def test_a_file_that_is_not_a_state_is_refused_by_name(counter, accumulator, tmp_path):
    runner = StatefulRunner(counter)
    first(runner)
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, h=np.array({}, object), n=np.array(0))
    foreign = tmp_path / "foreign.npz"
    StatefulRunner(accumulator).save(foreign)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("h.npy", b"\x93NUMPY")
    runner.save(tmp_path / "cut.npz")
    cut = tmp_path / "cut.npz"
    cut.write_bytes(cut.read_bytes()[:-40])
    for name in ("text", "pickled", "foreign", "other", "cut", "absent"):
        with pytest.raises(ContractError, match=rf"{name}\.npz: "):
            runner.load(tmp_path / f"{name}.npz")
    assert first(runner) == 5


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_no_damage_to_a_file_escapes_as_a_foreign_error(counter, tmp_path, method):
    runner, path = StatefulRunner(counter), tmp_path / "state.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, value in runner.state.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, value, allow_pickle=False)
    whole, refused = path.read_bytes(), 0
    for bit in range(0, 8 * len(whole), 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            runner.load(path)
        except ContractError:
            refused += 1
    assert refused > len(whole)


def test_saving_replaces_the_file_in_one_piece(counter, tmp_path):
    runner = StatefulRunner(counter)
    path = tmp_path / "s.npz"
    runner.save(path)
    first(runner)
    runner.save(str(path))
    assert [p.name for p in tmp_path.iterdir() if p.suffix != ".onnx"] == ["s.npz"]
    runner.reset()
    runner.load(str(path))
    assert first(runner) == 5


def test_a_save_that_fails_leaves_no_trace(counter, tmp_path):
    runner = StatefulRunner(counter)
    (tmp_path / "s.npz").mkdir()
    with pytest.raises(ContractError, match=r"s\.npz: the states cannot be written"):
        runner.save(tmp_path / "s.npz")
    with pytest.raises(ContractError, match="the states cannot be written"):
        runner.save(tmp_path / "absent" / "s.npz")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["counter.onnx", "s.npz"]
