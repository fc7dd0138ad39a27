"""What a user may declare: the models of the spec, its reader, its static checks and its schema."""

from stateful_pipeline.spec.check import check_spec
from stateful_pipeline.spec.dims import AxisSpec, is_axis
from stateful_pipeline.spec.from_python import parse_states
from stateful_pipeline.spec.inputs import AttributeSpec, DataSpec, InputSpec
from stateful_pipeline.spec.job import Gates, Job, load_job
from stateful_pipeline.spec.job import plan as plan_runs
from stateful_pipeline.spec.load import load_spec
from stateful_pipeline.spec.model import Spec
from stateful_pipeline.spec.options import (
    MAX_OPSET,
    MIN_OPSET,
    BenchmarkOptions,
    ExportOptions,
    MlflowOptions,
    ScriptOptions,
    VerifyOptions,
)
from stateful_pipeline.spec.schema_builder import json_schema
from stateful_pipeline.spec.source import Source, Weights
from stateful_pipeline.spec.states import InitFile, InitValue, StateSpec
from stateful_pipeline.spec.targets import (
    LibtorchTarget,
    OnnxRuntimeTarget,
    OpenVinoTarget,
    Target,
    TargetVerify,
    TensorRtRtxTarget,
    TensorRtTarget,
)
from stateful_pipeline.spec.template import template

__all__ = [
    "MAX_OPSET",
    "MIN_OPSET",
    "AttributeSpec",
    "AxisSpec",
    "BenchmarkOptions",
    "DataSpec",
    "ExportOptions",
    "Gates",
    "InitFile",
    "InitValue",
    "InputSpec",
    "Job",
    "LibtorchTarget",
    "MlflowOptions",
    "OnnxRuntimeTarget",
    "OpenVinoTarget",
    "ScriptOptions",
    "Source",
    "Spec",
    "StateSpec",
    "Target",
    "TargetVerify",
    "TensorRtRtxTarget",
    "TensorRtTarget",
    "VerifyOptions",
    "Weights",
    "check_spec",
    "is_axis",
    "json_schema",
    "load_job",
    "load_spec",
    "parse_states",
    "plan_runs",
    "template",
]
