"""The stage ``export``: the portable ONNX model with explicit states."""

from __future__ import annotations

from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.stages.artifacts import Artifacts
from stateful_pipeline.stages.export.export import export_program


def run(artifacts: Artifacts) -> None:
    """Leave ``model`` and ``contract`` in ``export/``.

    Raises:
        StageError: The program has no ONNX form, or the model is wrong.
    """
    subject = artifacts.need("subject", "export")
    options = artifacts.spec.export
    exported = export_program(
        artifacts.need("functional", "export"),
        artifacts.need("discovery", "export").reference,
        subject.plan,
        artifacts.folder / "export" / "model.onnx",
        opset=options.opset,
        sizes=corner_sizes(subject.axes)[:3],
        external_data_threshold=options.external_data_threshold,
    )
    artifacts.model, artifacts.contract = exported.model, exported.contract
    artifacts.notes["export"] = {
        "opset": options.opset,
        "bytes": sum(file.stat().st_size for file in exported.files),
        "in_place": [state.name for state in exported.contract.states if state.in_place],
    }
