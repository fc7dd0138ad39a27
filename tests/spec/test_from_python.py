import pytest

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import InitFile, StateSpec
from stateful_pipeline.spec.from_python import parse_states


def test_mappings_and_models_both_serve(tmp_path):
    file = {"file": tmp_path / "h.npz", "key": "h"}
    states = parse_states(
        {
            "cells.0.h": {"shape": (2, "batch"), "init": file},
            "n": {"ignore": True, "reason": "statistics"},
            "k": StateSpec(shape=("past",), out_shape=("past + 1",)),
        }
    )
    assert states["cells.0.h"].shape == (2, "batch")
    assert states["cells.0.h"].init == InitFile(**file)
    assert states["n"].ignore
    assert states["k"].out_shape == ("past + 1",)


def test_faults_name_the_key_and_what_would_be_right():
    with pytest.raises(SpecError, match="did you mean `zeros`") as caught:
        parse_states({"cells.0.h": {"init": "zero"}, "n": {"ignore": True}, 3: {"shap": [1]}})
    assert caught.value.key == 'states["cells.0.h"].init'
    assert caught.value.file is None
    assert len(caught.value.others) >= 2
