"""What one would write without this project: the LSTM forecaster, its states passed by hand.

Constructs the model, exports it with ``torch.onnx.export``, opens a session, and checks the very
steps that ``pipeline run configs/lstm.yaml`` checks: free-running over the held-out recording, at
the same sizes and seeds, with the same resets, outputs and states compared.

    python by_hand_lstm.py OUT.onnx
"""

import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from safetensors.torch import load_file
from torch import nn

from stateful_pipeline.zoo.lstm import StreamingLSTM

DATA = Path(__file__).parents[1] / "stateful_pipeline" / "zoo" / "data"
BATCH, TIME = (1, 4, 16), (1, 20, 200)
STEPS, SEEDS, RESET_EVERY = 64, (0, 1), 16


class Explicit(nn.Module):
    """The forecaster with ``h`` and ``c`` as arguments and results."""

    def __init__(self, model: StreamingLSTM) -> None:
        super().__init__()
        self.lstm, self.head = model.lstm, model.head

    def forward(self, x, h, c):
        """Return the forecast and the states after it."""
        y, (h, c) = self.lstm(x, (h, c))
        return self.head(y), h, c


def chunks(recording, batch, time, seed):
    """Yield the steps: chunk after chunk of the recording, rows spread over it."""
    start = np.random.default_rng(seed).integers(0, len(recording))
    rows = np.arange(batch)[:, None] * max(1, len(recording) // batch)
    for step in range(STEPS):
        index = start + step * time + rows + np.arange(time)[None, :]
        yield recording[index % len(recording)]


def main(path: str) -> None:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = StreamingLSTM(features=6, hidden=64, layers=2, outputs=4)
    model.load_state_dict(load_file(DATA / "lstm.safetensors"), strict=False)
    model.eval()
    explicit = Explicit(model)
    example = (torch.randn(4, 20, 6), torch.zeros(2, 4, 64), torch.zeros(2, 4, 64))
    torch.onnx.export(
        explicit,
        example,
        path,
        dynamo=True,
        opset_version=20,
        verbose=False,
        input_names=["x", "h_in", "c_in"],
        output_names=["output", "h_out", "c_out"],
        dynamic_shapes=({0: "batch", 1: "time"}, {1: "batch"}, {1: "batch"}),
    )
    options = ort.SessionOptions()
    options.log_severity_level = 3  # the exporter mislabels a dimension: a warning at each step
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    recording = np.load(DATA / "held_out.npz")["x"][:, 0, 0]
    corners = list(zip(BATCH, TIME, strict=True))
    corners = [corners[1], corners[0], corners[2]]
    corners += [c for c in itertools.product(BATCH[::2], TIME[::2]) if c not in corners]
    worst = 0.0
    for (batch, time), seed in itertools.product(corners, SEEDS):
        for step, x in enumerate(chunks(recording, batch, time, seed)):
            if step % RESET_EVERY == 0:
                model.h = torch.zeros(2, batch, 64)
                model.c = torch.zeros(2, batch, 64)
                h = c = np.zeros((2, batch, 64), np.float32)
            with torch.no_grad():
                expected = model(torch.from_numpy(x))
            y, h, c = session.run(None, {"x": x, "h_in": h, "c_in": c})
            for want, got in ((expected, y), (model.h, h), (model.c, c)):
                np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)
                worst = max(worst, float(np.abs(got - want.numpy()).max()))
    print(f"{len(corners) * len(SEEDS) * STEPS} steps equal; worst absolute error {worst:.2g}")


if __name__ == "__main__":
    main(sys.argv[1])
