"""The voice gate: its decisions on words and pauses, against the same rules in plain Python."""

import math

import numpy as np
import pytest
import torch

from stateful_pipeline.errors import StageError
from stateful_pipeline.zoo.gate import VoiceGate
from stateful_pipeline.zoo.words import FRAMES, RECORDING, WORDS, main, recording

AXES = {"x": {0: "channels", 1: "time"}}
TINY = 4
HOLD = 5


def tiny() -> VoiceGate:
    return VoiceGate(frame=TINY, hold=HOLD).eval()


def loud_and_soft(frames: int, channels: int = 1) -> torch.Tensor:
    """Return frames of noise, ``[channels, frames, TINY]``: 7 soft ones, 7 loud ones, and so on."""
    noise = torch.randn(channels, frames, TINY, generator=torch.Generator().manual_seed(0))
    return noise * torch.where(torch.arange(frames) // 7 % 2 == 1, 0.3, 0.01)[:, None]


class PlainGate:
    """The rules of the gate on one frame after the other, in Python numbers."""

    def __init__(self) -> None:
        self.floor, self.is_open, self.hangover, self.gain = -30.0, False, 0, 0.1

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        level = 10 * math.log10((frame.astype(np.float64) ** 2).mean() + 1e-7)
        self.floor += 0.05
        if self.floor > level:
            self.floor -= math.ceil(self.floor - level)
        if level > self.floor + 9:
            self.is_open, self.hangover = True, HOLD
        elif self.hangover:
            self.hangover -= 1
        else:
            self.is_open = False
        last, target, share = self.gain, *((1.0, 0.8) if self.is_open else (0.1, 0.3))
        self.gain = last + share * (target - last)
        return frame * np.linspace(last, self.gain, frame.shape[-1] + 1)[1:]


@torch.inference_mode()
def test_gate_follows_its_rules_frame_by_frame() -> None:
    x, plain, model = recording().astype(np.float32), PlainGate(), VoiceGate(80, hold=HOLD)
    opened = []
    for frame in x:
        got = model(torch.from_numpy(frame)).numpy()
        np.testing.assert_allclose(got[:, 0], plain(frame[:, 0]), rtol=1e-4, atol=1e-6)
        assert (bool(model.is_open), int(model.hangover)) == (plain.is_open, plain.hangover)
        assert float(model.floor) == pytest.approx(plain.floor, abs=1e-3)
        opened.append(plain.is_open)
    assert np.diff(opened).sum() >= 8  # it opens and closes, again and again


@torch.inference_mode()
def test_gate_is_open_in_words_and_short_pauses_and_closed_in_long_ones() -> None:
    model = VoiceGate(80, hold=HOLD)
    is_open = []
    for frame in torch.from_numpy(recording()).float():
        model(frame)
        is_open.append(bool(model.is_open))
    ends = [(first, first + length) for first, length in WORDS]
    for first, end in ends:
        assert all(is_open[first + 1 : end])
    for (_, end), (begin, _) in zip(ends, [*ends[1:], (FRAMES, 0)], strict=True):
        if begin - end <= HOLD:
            assert all(is_open[end:begin])
        else:
            assert not any(is_open[end + HOLD + 1 : begin])


@torch.inference_mode()
def test_noise_is_turned_down_and_words_pass() -> None:
    x, model = torch.from_numpy(recording()).float(), VoiceGate(80, hold=HOLD)
    y = torch.stack([model(frame) for frame in x])
    (first, length), *_ = WORDS
    middle = slice(first + 3, first + length)
    torch.testing.assert_close(y[middle], x[middle], rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(y[: first - 1], 0.1 * x[: first - 1])


@torch.inference_mode()
def test_floor_adapts_to_louder_noise_until_the_gate_closes() -> None:
    noise = torch.randn(1, 600, TINY * 20, generator=torch.Generator().manual_seed(0))
    model = VoiceGate(frame=TINY * 20)
    model(noise[:, :50] * 0.002)
    model(noise[:, 50:60] * 0.02)
    assert bool(model.is_open)  # 20 dB louder: it sounds like speech
    model(noise[:, 60:] * 0.02)
    assert not bool(model.is_open)


@torch.inference_mode()
def test_frames_cut_anywhere_give_the_same() -> None:
    x, model = loud_and_soft(40, channels=2), tiny()
    whole = tiny()(x)
    parts = torch.cat([model(part) for part in x.split([1, 7, 30, 2], dim=1)], dim=1)
    assert torch.equal(parts, whole)


@torch.inference_mode()
def test_speech_in_one_channel_opens_all() -> None:
    x, model = torch.full((3, 2, TINY), 0.001), tiny()
    model(x.repeat(1, 20, 1))
    assert not bool(model.is_open)
    x[1] = 0.5
    model(x)
    assert bool(model.is_open)


@torch.inference_mode()
def test_silence_does_not_keep_the_floor_falling_for_ever() -> None:
    model = tiny()
    model(torch.zeros(1, 100, TINY))
    assert -72 < float(model.floor) <= -70


@torch.inference_mode()
def test_reset_closes_the_gate_and_forgets_the_noise() -> None:
    model, x = tiny(), loud_and_soft(20)
    first = model(x)
    model.reset_states()
    fresh = dict(tiny().named_buffers())
    assert all(torch.equal(value, fresh[name]) for name, value in model.named_buffers())
    assert torch.equal(model(x), first)


def test_shipped_recording_is_what_the_script_makes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["words", "--out", str(tmp_path)])
    main()
    with np.load(RECORDING) as shipped, np.load(tmp_path / RECORDING.name) as made:
        assert shipped.files == made.files == ["x"]
        np.testing.assert_array_equal(shipped["x"], recording())
        np.testing.assert_array_equal(made["x"], recording())
    assert RECORDING.stat().st_size < 20_000


def test_scripted_gate_equals_eager(script_equals_eager) -> None:
    script_equals_eager(tiny, loud_and_soft(40, channels=2).split([1, 7, 30, 2], dim=1))


def test_branches_on_its_state_are_refused_by_torch_export(exported) -> None:
    with pytest.raises(StageError, match="data-dependent") as caught:
        exported(tiny(), loud_and_soft(3, channels=2), AXES, frontend="export")
    assert caught.value.file is not None
    assert caught.value.file.endswith("gate.py")


@pytest.mark.parametrize("frontend", ["auto", "torchscript"])
def test_exported_gate_opens_and_closes_as_eager_does(runner_equals_eager, frontend) -> None:
    steps = loud_and_soft(60, channels=2).split([3, 1, 9, 7, 20, 1, 1, 18], dim=1)
    runner = runner_equals_eager(tiny, steps, AXES, frontend=frontend)
    assert {state.name: (state.shape, state.dtype) for state in runner.contract.states} == {
        "floor": ((), "float32"),
        "is_open": ((), "bool"),
        "hangover": ((), "int64"),
        "gain": ((), "float32"),
    }
