from __future__ import annotations

import torch


def test_each_target_is_timed_beside_eager(run_stages) -> None:
    threads = torch.get_num_threads()
    artifacts = run_stages()
    found = artifacts.targets["cpu"].benchmark
    assert 0 < found["p50_ms"] <= found["p95_ms"] <= found["p99_ms"]
    assert found["eager"]["p50_ms"] > 0
    assert found["ratio_p50"] == found["p50_ms"] / found["eager"]["p50_ms"]
    assert (found["steps"], found["warmup"], found["threads"]) == (20, 2, 1)
    assert found["sizes"] == {"batch": 2}
    assert torch.get_num_threads() == threads


def test_no_steps_are_no_benchmark(run_stages) -> None:
    artifacts = run_stages("benchmark.steps=0")
    assert artifacts.targets["cpu"].benchmark is None


def test_the_module_is_left_as_it_was(run_stages) -> None:
    artifacts = run_stages()
    assert artifacts.subject.module.h.tolist() == [[0.0] * 3]
