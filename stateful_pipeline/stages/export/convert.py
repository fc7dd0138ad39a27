"""Converts a program to an ONNX model, by the way that its front end has."""

from __future__ import annotations

import onnx_ir as ir

from stateful_pipeline.model.exported import ExportProgram
from stateful_pipeline.model.phased_program import PaddedProgram, PhasedProgram
from stateful_pipeline.model.program import Program
from stateful_pipeline.model.script_program import ScriptProgram
from stateful_pipeline.stages.export.convert_exported import convert_exported
from stateful_pipeline.stages.export.convert_script import convert_script
from stateful_pipeline.stages.export.phased import choose, padded
from stateful_pipeline.stages.export.sigmoids import write_out_sigmoids


def convert(program: Program, opset: int) -> ir.Model:
    """Return the ONNX model of ``program`` at ``opset``, inputs and outputs in the program's order.

    Raises:
        StageError: An operator has no ONNX form, or the exporter failed; with the user's line.
    """
    if isinstance(program, PhasedProgram):
        models = [convert(phase, opset) for phase in program.programs]
        return choose(models)
    if isinstance(program, PaddedProgram):
        return padded(convert(program.program, opset), program)
    if isinstance(program, ScriptProgram):
        model = convert_script(program, opset)
    else:
        assert isinstance(program, ExportProgram)
        model = convert_exported(program, opset)
    write_out_sigmoids(model)
    return model
