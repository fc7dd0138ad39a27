"""Make ``words.npz``, the recording that the voice gate is verified on: words and pauses in noise.

Run ``python -m stateful_pipeline.zoo.words``.  Nobody speaks in it: a word is a sum of harmonics of
a gliding voice under a rising and falling envelope, sampled at 8 kHz, that reaches four microphones
one sample after another; each has its own noise, which is louder in the second half.  Pauses are
shorter and longer than the gate's hangover.  Samples are multiples of 1/64 and stored in half
precision, which holds them exactly: the file stays small.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parent / "data"
RECORDING = DATA / "words.npz"

RATE = 8000
"""Samples per second."""
FRAME = 80
"""Samples in a frame: 10 ms."""
CHANNELS = 4
WORDS = ((6, 9), (25, 7), (35, 8), (58, 12), (80, 6), (94, 6))
"""First frame and number of frames of each word."""
FRAMES = 104
NOISE = (0.012, 0.024)
"""Spread of the noise in the first and in the second half; full scale is 1."""
LOUDNESS = 0.4
"""Largest amplitude of a word, about."""
HARMONICS = 6

Float16 = npt.NDArray[np.float16]


def recording(seed: int = 0) -> Float16:
    """Return the samples frame by frame, ``[FRAMES, CHANNELS, 1, FRAME]``, within -1 .. 1.

    The first axis is the step, the third is ``time``.

    Args:
        seed: Seeds the noise.
    """
    count = FRAMES * FRAME
    voice = np.zeros(count + CHANNELS)
    for number, (first, length) in enumerate(WORDS):
        word = _word(length * FRAME, pitch=100.0 + 15.0 * number)
        voice[first * FRAME : first * FRAME + len(word)] = word
    random = np.random.RandomState(seed)  # its numbers are the same in every version of numpy
    spread = np.repeat(NOISE, count // 2)
    channels = [
        np.roll(voice, channel)[:count] * 0.9**channel + spread * random.standard_normal(count)
        for channel in range(CHANNELS)
    ]
    samples = np.clip(np.round(np.stack(channels) * 64) / 64, -1, 1).astype(np.float16)
    frames: Float16 = samples.reshape(CHANNELS, FRAMES, 1, FRAME).transpose(1, 0, 2, 3)
    return frames


def _word(samples: int, pitch: float) -> npt.NDArray[np.float64]:
    """Return a vowel of ``samples`` samples whose pitch in Hz falls by a fifth of it."""
    part = np.arange(samples) / samples
    phase = 2 * np.pi * np.cumsum(pitch * (1 - 0.2 * part)) / RATE
    orders = np.arange(1, HARMONICS + 1)
    vowel = (np.sin(orders[:, None] * phase) / orders[:, None]).sum(axis=0)
    word: npt.NDArray[np.float64] = LOUDNESS / 2 * vowel * np.sin(np.pi * part)
    return word


def write(path: Path) -> None:
    """Write the recording to ``path``, in one move."""
    partial = path.with_name(f".{path.name}.partial.npz")
    np.savez_compressed(partial, x=recording())
    os.replace(partial, path)


def main() -> None:
    """Write the recording."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to")
    options = parser.parse_args()
    path = options.out / RECORDING.name
    write(path)
    print(f"wrote {path.name} to {options.out}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
