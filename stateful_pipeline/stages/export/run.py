"""The stage ``export``: the portable ONNX model with explicit states."""

from __future__ import annotations

from pathlib import Path

from stateful_pipeline.errors import StageError
from stateful_pipeline.model.explicit_onnx import OnnxProgram
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.export.explicit import export_explicit
from stateful_pipeline.stages.export.export import Exported, export_program


def run(artifacts: Artifacts) -> None:
    """Leave ``model`` and ``contract`` in ``export/``.

    Raises:
        StageError: The program has no ONNX form, or the model is wrong.
    """
    exported, opset = _export(artifacts, artifacts.folder / "export" / "model.onnx")
    artifacts.model, artifacts.contract = exported.model, exported.contract
    artifacts.notes["export"] = {
        "opset": opset,
        "bytes": sum(file.stat().st_size for file in exported.files),
        "in_place": [state.name for state in exported.contract.states if state.in_place],
    }


def _export(artifacts: Artifacts, path: Path) -> tuple[Exported, int]:
    """Write the model; return it and its opset, which a file that is explicit already keeps."""
    subject, options = artifacts.need("subject", "export"), artifacts.spec.export
    program = artifacts.need("functional", "export")
    reference = artifacts.need("discovery", "export").reference
    sizes = corner_sizes(subject.axes)[:3]
    threshold = options.external_data_threshold
    if isinstance(program, OnnxProgram):
        exported, opset = export_explicit(
            program, reference, subject.plan, path, sizes=sizes, external_data_threshold=threshold
        )
        if "opset" in options.model_fields_set and opset != options.opset:
            raise StageError(
                f"the file has opset {opset}, and the spec asks for {options.opset}",
                stage="export",
                place=artifacts.spec.place("export.opset"),
                hint="leave out `export.opset`; onnx.version_converter converts files",
            )
        return exported, opset
    exported = export_program(
        program, reference, subject.plan, path,
        opset=options.opset, sizes=sizes, runtime=None, external_data_threshold=threshold,
    )  # fmt: skip
    return exported, options.opset
