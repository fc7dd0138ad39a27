import subprocess
import sys

HEAVY = ("torch", "onnx", "onnxscript", "onnx_ir", "mlflow", "pydantic", "yaml", "rich", "typer")


def python(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_runtime_imports_nothing_heavy_and_onnxruntime_late():
    loaded = python("import stateful_pipeline.runtime, sys; print(*sys.modules)")
    assert not {*HEAVY, "onnxruntime", "ml_dtypes"}.intersection(loaded)


def test_running_a_model_needs_numpy_and_onnxruntime_alone(counter):
    code = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None  # importing it fails from here on
import numpy as np
from stateful_pipeline.runtime import StatefulRunner
runner = StatefulRunner(sys.argv[1])
print(*runner.run({"x": np.array([[1, 2, 3]], np.float32)})["output"][0])
"""
    assert python(code, counter, *HEAVY, "ml_dtypes") == ["4.0", "5.0", "6.0"]


def test_without_onnxruntime_the_error_says_what_to_install(counter):
    code = """
import sys
sys.modules["onnxruntime"] = None
from stateful_pipeline.errors import TargetError
from stateful_pipeline.runtime import StatefulRunner
try:
    StatefulRunner(sys.argv[1])
except TargetError as error:
    print(error)
"""
    assert {"pip", "install", "onnxruntime"} <= set(python(code, counter))
