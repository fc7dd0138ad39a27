import re

import pytest

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec import check_spec, load_spec, template
from stateful_pipeline.spec.model import Spec


@pytest.mark.parametrize("name", ["demo", "a.b-c_1", "123", "1e5", "null"])
def test_the_template_is_a_spec_as_it_is(tmp_path, name):
    path = tmp_path / "spec.yaml"
    path.write_text(template(name))
    spec = load_spec(path)
    assert spec.name == spec.mlflow.experiment == name
    check_spec(spec)


@pytest.mark.parametrize("name", ["a/b", "", "..", "x" * 101, "a b", "é"])
def test_a_name_that_no_spec_can_have_is_refused(name):
    with pytest.raises(SpecError, match="name of a spec"):
        template(name)


def test_its_commented_lines_are_right_too(tmp_path):
    """Uncomment everything but what excludes something else."""
    text = template("demo")
    for name in ("file", "torchscript", "exported_program", "onnx", "enabled"):
        text = re.sub(rf"^ *#  *{name}: .*\n", "", text, flags=re.M)
    text = re.sub(
        r"^( *)# ( *[A-Za-z.]+: *[^ ].*|(attributes|classes|dynamic_axes|states|mlflow):.*)$",
        r"\1\2",
        text,
        flags=re.M,
    )
    text = text.replace("extends: defaults.yaml", "# ").replace("[1, 3]", "[batch, time]")
    text = text.replace("dynamic_axes:", "dynamic_axes:\n  time: {opt: 2, max: 3}")
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    spec = load_spec(path)
    assert set(spec.inputs) == {"x", "token", "frames", "rate"}
    assert set(spec.attributes) == {"mode"}
    assert set(spec.classes) == {"acme.Ring"}
    assert set(spec.states) == {"h", "k", "calls"}
    assert spec.targets["cpu"].verify.atol == 1e-3
    assert spec.mlflow.required


def test_it_mentions_every_section():
    text = template("demo")
    later = {"operators"}
    for name, field in Spec.model_fields.items():
        assert name in later or f"{field.alias or name}:" in text
