"""The denoiser with a C++ ring: its equations, and the explicit form of its class."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from stateful_pipeline.zoo.tensor_ring import ExplicitTensorRing, RingDenoiser

FEATURES = 3


@pytest.fixture(autouse=True)
def loaded(ring):
    """The class is there in every test."""


@torch.inference_mode()
def test_a_frame_is_cleaned_of_the_mean_of_those_before_it():
    torch.manual_seed(0)
    model = RingDenoiser(features=FEATURES, outputs=2, capacity=2).eval()
    frames = torch.randn(5, FEATURES)
    for step, frame in enumerate(frames):
        past = frames[max(0, step - 2) : step]
        floor = past.mean(0) if len(past) else torch.zeros(FEATURES)
        clean = frame - torch.sigmoid(model.gate(frame)) * floor
        torch.testing.assert_close(model(frame), model.output(torch.tanh(clean)))


@torch.inference_mode()
def test_a_reset_model_is_as_a_new_one():
    torch.manual_seed(0)
    model = RingDenoiser(features=FEATURES).eval()
    new, frame = copy.deepcopy(model), torch.randn(FEATURES)
    model(frame)
    model.reset()
    assert torch.equal(model(frame), new(frame))


CALLS = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"), st.lists(st.floats(-1e3, 1e3, width=32), min_size=2, max_size=2)
        ),
        st.tuples(st.sampled_from(["mean", "reset"]), st.none()),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), CALLS)
def test_the_explicit_form_does_what_the_class_does_in_any_order(capacity, calls):
    ring = torch.classes.stateful.TensorRing(capacity, 2)
    form = ExplicitTensorRing(ring.__getstate__()[0])
    for method, values in calls:
        given_ = [] if values is None else [torch.tensor(values)]
        expected, got = getattr(ring, method)(*given_), getattr(form, method)(*given_)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-3)
        torch.testing.assert_close(form.to_state(), ring.__getstate__()[0], rtol=0, atol=0)
