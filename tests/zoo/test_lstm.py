"""The streaming LSTM: its memory, its reset, and how well the shipped weights forecast."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stateful_pipeline.zoo.lstm import StreamingLSTM
from stateful_pipeline.zoo.series import (
    HORIZONS,
    RECORDING,
    WEIGHTS,
    load_series,
    mean_absolute_error,
    recording,
    split,
)
from stateful_pipeline.zoo.train_lstm import STATE, compare, main, stream


@pytest.fixture
def trained() -> StreamingLSTM:
    model = StreamingLSTM()
    loaded = model.load_state_dict(load_file(WEIGHTS), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) == set(STATE)
    return model.eval()


def small() -> StreamingLSTM:
    torch.manual_seed(0)
    return StreamingLSTM(features=3, hidden=5, layers=2, outputs=2).eval()


@torch.inference_mode()
def test_stream_cut_anywhere_gives_the_same_forecasts() -> None:
    x = torch.randn(1, 12, 3)
    whole = small()(x)
    model = small()
    parts = torch.cat([model(part) for part in x.split([1, 4, 7], dim=1)], dim=1)
    assert whole.shape == (1, 12, 2)
    torch.testing.assert_close(parts, whole)


@torch.inference_mode()
def test_streams_of_a_batch_do_not_mix() -> None:
    x = torch.randn(4, 6, 3)
    model = small()
    model.h = model.h.expand(-1, 4, -1).contiguous()
    model.c = model.c.expand(-1, 4, -1).contiguous()
    together = model(x)
    alone = torch.cat([small()(row[None]) for row in x])
    torch.testing.assert_close(together, alone)


@torch.inference_mode()
def test_reset_forgets_what_was_seen() -> None:
    model, x = small(), torch.randn(1, 5, 3)
    first = model(x)
    assert not torch.equal(model(x), first)
    model.reset_states()
    assert torch.equal(model(x), first)


def test_shipped_weights_beat_both_naive_forecasts_on_the_held_out_years(
    trained: StreamingLSTM,
) -> None:
    _, held_out = split(load_series())
    error = mean_absolute_error(stream(trained, held_out.x), held_out.y)
    persistence = mean_absolute_error(np.zeros_like(held_out.y), held_out.y)
    seasonal = mean_absolute_error(held_out.seasonal, held_out.y)
    assert (error < 0.85 * persistence).all(), f"\n{compare(trained, held_out)}"
    assert (error < seasonal).all(), f"\n{compare(trained, held_out)}"


def test_memory_is_what_makes_the_forecasts_good(trained: StreamingLSTM) -> None:
    _, held_out = split(load_series())
    x = torch.from_numpy(held_out.x)
    trained.h = trained.h.expand(-1, len(x), -1).contiguous()
    trained.c = trained.c.expand(-1, len(x), -1).contiguous()
    with torch.inference_mode():
        without = trained(x[:, None, :])[:, 0].numpy()
    trained.h, trained.c = trained.h[:, :1], trained.c[:, :1]
    error = mean_absolute_error(stream(trained, held_out.x), held_out.y)
    assert (error < mean_absolute_error(without, held_out.y)).all()


def test_shipped_recording_is_what_the_series_gives() -> None:
    _, held_out = split(load_series())
    expected = recording(held_out)
    with np.load(RECORDING) as shipped:
        assert sorted(shipped.files) == sorted(expected)
        for key, array in expected.items():
            np.testing.assert_allclose(shipped[key], array, rtol=1e-6, atol=1e-6)
            assert shipped[key].dtype == np.float32


def test_training_twice_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    files = []
    try:
        for _ in range(2):
            folder = tmp_path_factory.mktemp("trained")
            monkeypatch.setattr("sys.argv", ["train_lstm", "--steps", "3", "--out", str(folder)])
            main()
            files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
    assert set(files[0]) == {WEIGHTS.name, RECORDING.name}
    assert files[0] == files[1]


def test_targets_reach_no_further_than_the_part_they_belong_to() -> None:
    series = load_series()
    seen, held_out = split(series)
    for column, horizon in enumerate(HORIZONS):
        last = np.flatnonzero(np.isfinite(seen.y[:, column])).max()
        assert seen.dates[last] + np.timedelta64(7 * horizon, "D") < held_out.dates[0]
