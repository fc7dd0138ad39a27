"""What an import costs: heavy libraries load only where they are used."""

import json
import pkgutil
import subprocess
import sys

import pytest

import stateful_pipeline

HEAVY = ("torch", "onnx", "onnxscript", "onnx_ir", "onnxruntime", "mlflow", "pydantic", "numpy")

SPEC = """\
name: counter
source: {python: "stateful_pipeline.zoo.counter:Counter"}
inputs: {x: {shape: [1, 3]}}
"""


def loaded_after(code, *arguments):
    """Run ``code`` in a fresh process and return the top-level packages that it has loaded."""
    script = (
        "import json, sys\n"
        "try:\n"
        + "".join(f"    {line}\n" for line in code.splitlines())
        + "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        "names = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "print(json.dumps(names), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_package_itself_imports_nothing_heavy():
    assert not set(HEAVY) & loaded_after("import stateful_pipeline")


def test_the_runtime_imports_numpy_and_onnxruntime_at_most():
    loaded = loaded_after("import stateful_pipeline.runtime")
    assert not {"torch", "mlflow", "pydantic", "onnx", "yaml", "rich", "typer"} & loaded


def test_the_public_runner_needs_no_more_than_the_runtime():
    loaded = loaded_after("import stateful_pipeline\nstateful_pipeline.StatefulRunner")
    assert not {"torch", "mlflow", "pydantic", "onnx", "yaml", "rich", "typer"} & loaded


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["run", "--help"], ["schema"], ["check", "counter.yaml"], ["init", "mine"]],
    ids=" ".join,
)
def test_commands_that_run_no_model_do_not_load_torch(tmp_path, monkeypatch, arguments):
    (tmp_path / "counter.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    code = "from stateful_pipeline.cli import main\nmain()"
    loaded = loaded_after(code, *arguments)
    assert not {"torch", "onnx", "onnxscript", "onnxruntime", "mlflow"} & loaded


def test_inspect_loads_torch_but_neither_onnx_nor_mlflow(tmp_path, monkeypatch):
    (tmp_path / "counter.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    code = "from stateful_pipeline.cli import main\nmain()"
    loaded = loaded_after(code, "inspect", "counter.yaml")
    assert "torch" in loaded
    assert not {"mlflow", "onnx", "onnxscript", "onnx_ir"} & loaded


def test_help_loads_no_spec_and_no_tables_either():
    loaded = loaded_after("from stateful_pipeline.cli import main\nmain()", "--help")
    assert not {"pydantic", "numpy", "yaml"} & loaded


@pytest.mark.parametrize(
    "each", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(5, id="every fifth")]
)
def test_every_module_imports_on_its_own(each):
    names = sorted(
        module.name
        for module in pkgutil.walk_packages(stateful_pipeline.__path__, "stateful_pipeline.")
        if not module.name.endswith("__main__")
    )
    assert len(names) > 50
    names = names[::each]
    # One process each would take minutes; a fork after the heavy libraries takes milliseconds.
    script = (
        "import gc, importlib, os, sys\n"
        "gc.disable()\n"
        "import numpy, onnx, onnxruntime, onnxscript, pydantic, torch, torch.export, typer\n"
        "import rich.console, rich.table\n"
        "for name in sys.argv[1:]:\n"
        "    assert not any(n.startswith('stateful_pipeline') for n in sys.modules)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        importlib.import_module(name)\n"
        "        os._exit(0)\n"
        "    if os.waitpid(child, 0)[1]:\n"
        "        sys.exit(f'{name} does not import on its own')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_public_names_are_these_and_all_are_there():
    assert stateful_pipeline.__all__ == [
        "Contract",
        "Spec",
        "StatefulRunner",
        "__version__",
        "explicit_form",
        "export_onnx",
        "load_spec",
        "run_spec",
    ]
    for name in stateful_pipeline.__all__:
        assert getattr(stateful_pipeline, name) is not None
        assert name in dir(stateful_pipeline)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'export_onxn'"):
        _ = stateful_pipeline.export_onxn
