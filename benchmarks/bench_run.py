"""Whole-process time of ``pipeline run configs/lstm.yaml`` over that of the same work by hand.

Both processes import torch, construct the forecaster, export it with explicit states, and check
the same steps against eager PyTorch; the pipeline also finds the states, proves the rewrite,
measures declared dimensions, runs teacher-forced rollouts, times steps, writes a report and logs
to MLflow.  The MLflow store exists already. Runs alternate; medians are compared.  The pipeline's
runs reuse nothing (``--force``).

    python benchmarks/bench_run.py [--rounds 5]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).parents[1]
LIMIT = 1.6


def timed(command: list[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds


def check_equal(ours: Path, theirs: Path) -> float:
    """Return the largest difference of the two models over a free-running rollout."""
    options = ort.SessionOptions()
    options.log_severity_level = 3  # the model exported by hand mislabels a dimension
    sessions = [ort.InferenceSession(str(path), options) for path in (ours, theirs)]
    names = ["output", "h_out", "c_out"]
    states = [[np.zeros((2, 3, 64), np.float32)] * 2 for _ in sessions]
    random = np.random.default_rng(0)
    worst = 0.0
    for _ in range(32):
        x = random.standard_normal((3, 7, 6)).astype(np.float32)
        results = []
        for i, session in enumerate(sessions):
            y, *states[i] = session.run(names, {"x": x, "h_in": states[i][0], "c_in": states[i][1]})
            results.append(y)
        worst = max(worst, float(np.abs(results[0] - results[1]).max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        out, model = Path(folder) / "build", Path(folder) / "by_hand.onnx"
        pipeline = [sys.executable, "-m", "stateful_pipeline.cli", "run", "configs/lstm.yaml"]
        pipeline += ["--out", str(out)]
        by_hand = [sys.executable, str(ROOT / "benchmarks" / "by_hand_lstm.py"), str(model)]
        timed([*pipeline, "--force"])  # creates the MLflow store and fills the caches of files
        timed(by_hand)
        worst = check_equal(out / "lstm" / "export" / "model.onnx", model)
        assert worst < 1e-5, worst
        ours, reused, theirs = [], [], []
        for _ in range(rounds):
            theirs.append(timed(by_hand))
            ours.append(timed([*pipeline, "--force"]))
            reused.append(timed(pipeline))
        stages = json.loads((out / "lstm" / "timings.json").read_text())["stages"]
    hand = statistics.median(theirs)
    print(f"outputs equal within {worst:.2g} over 32 steps")
    print(f"by hand             {hand:6.2f} s   (median of {rounds})")
    for label, seconds in (("pipeline run --force", ours), ("pipeline run", reused)):
        median = statistics.median(seconds)
        print(f"{label:<20}{median:6.2f} s   {median / hand:.2f} times by hand")
    print("stages of the last run, s:", {k: round(v, 2) for k, v in stages.items()})
    ratio = statistics.median(ours) / hand
    verdict = "within" if ratio <= LIMIT else "OVER"
    print(f"ratio {ratio:.2f}, {verdict} the limit of {LIMIT}")


if __name__ == "__main__":
    main()
