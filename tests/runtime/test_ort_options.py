"""What is asked for reaches ONNX Runtime in its own words."""

import numpy as np
import onnxruntime
import pytest

from stateful_pipeline.errors import ContractError, SpecError, TargetError
from stateful_pipeline.runtime import StatefulRunner
from stateful_pipeline.runtime.ort_options import (
    SessionOptions,
    provider_chain,
    run_options,
    session_options,
)
from stateful_pipeline.runtime.ort_provider import PROVIDERS

CPU, CUDA, TENSORRT = (PROVIDERS[name] for name in ("cpu", "cuda", "tensorrt"))
SHRINK = "memory.enable_memory_arena_shrinkage"


@pytest.mark.parametrize(
    ("level", "theirs"),
    [
        ("none", "ORT_DISABLE_ALL"),
        ("basic", "ORT_ENABLE_BASIC"),
        ("extended", "ORT_ENABLE_EXTENDED"),
        ("all", "ORT_ENABLE_ALL"),
    ],
)
def test_a_session_has_the_level_and_the_arena_that_were_asked_for(counter, level, theirs):
    options = SessionOptions(graph_optimization=level, arena=False)
    runner = StatefulRunner(counter, threads=2, options=options)
    used = runner._engine.session.get_session_options()
    assert used.graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, theirs)
    assert used.enable_cpu_mem_arena is False
    assert used.intra_op_num_threads == 2
    assert runner.run({"x": np.zeros((1, 3), np.float32)})["output"].tolist() == [[3, 3, 3]]


def test_by_default_a_session_is_as_onnxruntime_makes_it(counter):
    used = StatefulRunner(counter)._engine.session.get_session_options()
    theirs = onnxruntime.SessionOptions()
    assert used.graph_optimization_level == theirs.graph_optimization_level
    assert used.enable_cpu_mem_arena is theirs.enable_cpu_mem_arena is True


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"gpu": 0}, "options"),
        (5, "options"),
        (SessionOptions(arena="no"), "arena"),
        (SessionOptions(gpu=-1), "gpu"),
        (SessionOptions(gpu="x"), "gpu"),
        (SessionOptions(tf32=1), "tf32"),
    ],
)
def test_options_that_are_none_are_refused_by_their_key(counter, options, key):
    with pytest.raises(SpecError, match=f"{key} is ") as caught:
        StatefulRunner(counter, options=options)
    assert caught.value.hint


def test_a_file_of_another_runtime_names_its_runner(tmp_path):
    (tmp_path / "model.xml").write_text("<net/>")
    with pytest.raises(ContractError) as caught:
        StatefulRunner(tmp_path / "model.xml")
    assert "OpenVinoRunner" in caught.value.hint


def test_an_unknown_level_is_refused(counter):
    with pytest.raises(SpecError, match="graph_optimization is 'most'\n  try: one of: none, basic"):
        StatefulRunner(counter, options=SessionOptions(graph_optimization="most"))


def test_which_provider_runs_a_node_is_recorded_for_devices_alone():
    for provider, recorded in ((CPU, None), (CUDA, "1")):
        theirs = session_options(onnxruntime, provider, None, SessionOptions())
        if recorded is None:
            with pytest.raises(RuntimeError, match="record_ep_graph_assignment_info"):
                theirs.get_session_config_entry("session.record_ep_graph_assignment_info")
        else:
            entry = theirs.get_session_config_entry("session.record_ep_graph_assignment_info")
            assert entry == recorded


def test_tf32_is_off_on_cuda_unless_asked_for():
    assert provider_chain(CUDA, SessionOptions(gpu=2)) == [
        ("CUDAExecutionProvider", {"device_id": "2", "use_tf32": "0"})
    ]
    assert provider_chain(CUDA, SessionOptions(tf32=True))[0][1]["use_tf32"] == "1"


def test_tensorrt_needs_tf32_to_be_asked_for_or_forbidden(monkeypatch):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    with pytest.raises(TargetError, match=r"TF32(.|\n)*set NVIDIA_TF32_OVERRIDE=0"):
        provider_chain(TENSORRT, SessionOptions())
    assert provider_chain(TENSORRT, SessionOptions(tf32=True))[1][1]["use_tf32"] == "1"
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert provider_chain(TENSORRT, SessionOptions())[1][1]["use_tf32"] == "0"


def test_tensorrt_gets_the_ranges_and_cuda_takes_what_it_leaves():
    ranges = {
        "x": ((1, 1, 40), (4, 20, 40), (16, 200, 40)),
        "n_in": ((), (), ()),
        "k_in": ((1, 0), (4, 64), (16, 1024)),
    }
    options = SessionOptions(gpu=1, tf32=True, ranges=ranges)
    assert provider_chain(TENSORRT, options) == [
        (
            "TensorrtExecutionProvider",
            {
                "device_id": "1",
                "trt_profile_min_shapes": "x:1x1x40,k_in:1x0",
                "trt_profile_opt_shapes": "x:4x20x40,k_in:4x64",
                "trt_profile_max_shapes": "x:16x200x40,k_in:16x1024",
            },
        ),
        ("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "1"}),
    ]


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_name_that_the_ranges_cannot_hold_is_refused(name):
    options = SessionOptions(tf32=True, ranges={name: ((1,), (1,), (1,))})
    with pytest.raises(SpecError, match=f"graph input '{name}' has a ':' or ','"):
        provider_chain(TENSORRT, options)


def test_without_an_arena_a_gpus_memory_is_given_back_after_each_step():
    options = SessionOptions(arena=False, gpu=3)
    theirs = run_options(onnxruntime, CUDA, options)
    assert theirs.get_run_config_entry(SHRINK) == "gpu:3"
    assert provider_chain(CUDA, options)[0][1]["arena_extend_strategy"] == "kSameAsRequested"
    assert run_options(onnxruntime, CUDA, SessionOptions()) is None
    assert run_options(onnxruntime, CPU, options) is None
