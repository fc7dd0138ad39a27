"""The commented spec that ``pipeline init`` writes."""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError

from stateful_pipeline.errors import SpecError
from stateful_pipeline.spec.base import FileName
from stateful_pipeline.spec.faults import show
from stateful_pipeline.spec.scalars import resolve_plain

_TEMPLATE = """\
# A spec: what to build, from what, for which runtimes, and how to prove it.
#   pipeline check THIS_FILE     is it right?  (runs none of your code)
#   pipeline inspect THIS_FILE   which states does the model have?
#   pipeline run THIS_FILE       build, verify, benchmark, log
# Every key with its meaning: pipeline schema
schema: 1
# extends: defaults.yaml         # start from another spec; null deletes what it has
name: @NAME@

source:                          # exactly one of python, file, torchscript, exported_program, onnx
  python: stateful_pipeline.zoo.counter:Counter    # <- your class, package.module:Class
  # file: my_model.py:MyModel    # or a file, relative to this one
  # torchscript: my_model.jit    # what torch.jit.save wrote
  # exported_program: my_model.pt2
  # onnx: my_model.onnx          # its states explicit: states: {h: {input: h_in, output: h_out}}
  # kwargs: {hidden: 128}        # of the constructor; and args: [...]
  # weights: my_model.safetensors  # or {file: ..., ignore: [h, c]}; .pt works too
  # seed: 0                      # torch.manual_seed before construction
  # reset: reset_states          # the method that restores the initial state
  # method: forward              # the method that is one step
  # libraries: [native/ring]     # CMake projects, or .so files, of C++ classes and operators

# classes:                       # C++ classes whose objects the model holds, over tensors
#   acme.Ring: {file: "forms.py:ExplicitRing"}

inputs:                          # by the names of forward's parameters
  x: {shape: [1, 3]}             # a number is a fixed size, a word a dynamic axis: [batch, 3]
  # token: {shape: [batch, 1], dtype: int64, low: 0, high: 1000}     # random in [low, high)
  # frames: {shape: [batch, 40], data: {npz: steps.npz, key: frames}}   # first axis: the step
  # rate: {value: 16000}         # an argument fixed to a constant

# attributes:                    # attributes of the module, fixed to constants
#   mode: {value: fast}          # encoder.mode leads into a submodule

# dynamic_axes:                  # sizes of the words above; it is verified at all three
#   batch: {min: 1, opt: 4, max: 16}

# states:                        # only where discovery needs help
#   h: {shape: [2, batch, 128], init: zeros}     # or buffer, {value: 0}, {file: s.npz, key: h}
#   k: {shape: [1, 2, past, 4], out_shape: [1, 2, past + time, 4]}   # a state that grows
#   calls: {ignore: true, reason: "statistics nobody reads"}

script: {frontend: auto}         # how it is captured: auto, export or torchscript
export: {opset: 20}              # 18 to 24; external_data_threshold: bytes of weights in one file

targets:
  cpu:
    runtime: onnxruntime
    provider: cpu
    # threads: 1
    # optional: true             # go on where it cannot be built or run
    # verify: {atol: 1e-3, reason: "..."}        # tolerances of this target alone

verify: {steps: 64, seeds: [0], atol: 1e-5, rtol: 1e-4}    # reset_every: 16
benchmark: {steps: 200, warmup: 20}                        # steps: 0 leaves it out

# mlflow:
#   experiment: @NAME@
#   tracking_uri: sqlite:///mlflow.db    # or a server: http://host:5000
#   required: true               # fail where the results cannot be logged
#   enabled: false
"""


def template(name: str) -> str:
    """Return a commented spec called ``name``, which runs as it is.

    Raises:
        SpecError: The name cannot be that of a spec.
    """
    try:
        TypeAdapter(FileName).validate_python(name)
    except ValidationError as error:
        hint = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        raise SpecError(f"{show(name)} cannot be the name of a spec", hint=hint) from error
    quoted = name if isinstance(resolve_plain(name), str) else f'"{name}"'
    return _TEMPLATE.replace("@NAME@", quoted)
