"""Train :class:`~stateful_pipeline.zoo.lstm.StreamingLSTM` on the CO2 record of Mauna Loa.

Run ``python -m stateful_pipeline.zoo.train_lstm``: it takes under a minute, writes
``lstm.safetensors`` (the weights, without the state) and ``held_out.npz`` (the recorded steps of
the ten years that were held out), and prints the error on those years beside two naive forecasts.

Each training step takes random windows of the record, starts from no memory, and fits all horizons
at once (Huber loss, each horizon divided by the spread of its changes).  One thread and a fixed
seed make it repeatable on one machine; another processor may round differently.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from stateful_pipeline.zoo.lstm import StreamingLSTM
from stateful_pipeline.zoo.series import (
    DATA,
    FEATURES,
    HORIZONS,
    RECORDING,
    WEIGHTS,
    Float32,
    Series,
    load_series,
    mean_absolute_error,
    recording,
    split,
)

HIDDEN = 64
LAYERS = 2
WINDOW = 156
"""Weeks in one training window."""
BATCH = 32
STEPS = 200
"""Of 100, 150, 200, 300 and 400, the best at 1 and 4 weeks by ``--validate``, level later on."""
NOISE = 0.1
"""Spread of the noise added to the samples while training, in their own units."""
STATE = ("h", "c")


def train(seen: Series, *, steps: int, seed: int) -> StreamingLSTM:
    """Return a forecaster fitted to ``seen``.

    Args:
        seen: What may be trained on.
        steps: Optimizer steps.
        seed: Seeds the initial weights, the windows and the noise.
    """
    torch.manual_seed(seed)
    model = StreamingLSTM(len(FEATURES), HIDDEN, LAYERS, len(HORIZONS))
    spread = torch.from_numpy(np.nanstd(seen.y, axis=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for x, y in _windows(seen, steps, np.random.default_rng(seed)):
        model.h = torch.zeros(LAYERS, len(x), HIDDEN)
        model.c = torch.zeros(LAYERS, len(x), HIDDEN)
        known = torch.isfinite(y)
        error = torch.where(known, (model(x) - torch.nan_to_num(y)) / spread, 0.0)
        loss = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="sum")
        optimizer.zero_grad()
        (loss / known.sum()).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.h = torch.zeros(LAYERS, 1, HIDDEN)
    model.c = torch.zeros(LAYERS, 1, HIDDEN)
    return model.eval()


def stream(model: StreamingLSTM, x: Float32) -> Float32:
    """Return the forecasts of a model that sees the samples one by one, from no memory on.

    Args:
        model: For one stream.
        x: ``[weeks, features]``.

    Returns:
        ``[weeks, outputs]``.
    """
    model.reset_states()
    with torch.inference_mode():
        steps = [model(sample[None, None, :]) for sample in torch.from_numpy(x)]
    model.reset_states()
    forecast: Float32 = torch.cat(steps, dim=1)[0].numpy()
    return forecast


def compare(model: StreamingLSTM, held_out: Series) -> str:
    """Return a table: the error of the model and of two naive forecasts, for each horizon."""
    rows = {
        "LSTM": stream(model, held_out.x),
        "persistence (no change)": np.zeros_like(held_out.y),
        "seasonal naive (last year's change)": held_out.seasonal,
    }
    lines = [f"{'mean absolute error, ppm':36}" + "".join(f"{k:>6} wk" for k in HORIZONS)]
    for name, forecast in rows.items():
        errors = mean_absolute_error(forecast, held_out.y)
        lines.append(f"{name:36}" + "".join(f"{error:9.3f}" for error in errors))
    return "\n".join(lines)


def write(model: StreamingLSTM, held_out: Series, folder: Path) -> None:
    """Write the weights and the recorded steps into ``folder``, each in one move."""
    weights = {key: value for key, value in model.state_dict().items() if key not in STATE}
    partial = folder / f".{WEIGHTS.name}.partial"
    partial.write_bytes(save(weights))
    os.replace(partial, folder / WEIGHTS.name)
    partial = folder / f".{RECORDING.name}.partial.npz"
    steps = recording(held_out)
    np.savez(partial, x=steps["x"], y=steps["y"])
    os.replace(partial, folder / RECORDING.name)


def _windows(
    seen: Series, steps: int, random: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(steps):
        starts = random.integers(0, len(seen.x) - WINDOW + 1, BATCH)
        weeks = starts[:, None] + np.arange(WINDOW)
        x = seen.x[weeks]
        noise = random.normal(0.0, NOISE, x.shape).astype(np.float32)
        yield torch.from_numpy(x + noise), torch.from_numpy(seen.y[weeks])


def main() -> None:
    """Train, print the comparison, write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--validate",
        action="store_true",
        help="hold out the ten years before those that are held out, and write nothing: "
        "settings are chosen on these",
    )
    parser.add_argument("--out", type=Path, default=DATA, help="folder to write to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    seen, held_out = split(load_series())
    if options.validate:
        seen, held_out = split(seen)
    print(f"train    {seen.dates[0]} to {seen.dates[-1]}, {len(seen.x)} weeks")
    print(f"held out {held_out.dates[0]} to {held_out.dates[-1]}, {len(held_out.x)} weeks")
    model = train(seen, steps=options.steps, seed=options.seed)
    print(compare(model, held_out))
    if options.validate:
        return
    write(model, held_out, options.out)
    print(f"wrote {WEIGHTS.name} and {RECORDING.name} to {options.out}")


if __name__ == "__main__":
    main()
