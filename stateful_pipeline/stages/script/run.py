"""The stage ``script``: find the module's states and capture it with one front end, or compile it.

What needs explicit states is captured; what keeps them inside the module needs its TorchScript.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from torch import nn

from stateful_pipeline.errors import StageError
from stateful_pipeline.libraries import save
from stateful_pipeline.model.axes import probe_sizes
from stateful_pipeline.model.deployable import deployable, initial_module
from stateful_pipeline.model.frontends import capture_with, why_chosen
from stateful_pipeline.model.locate import is_user_file
from stateful_pipeline.model.reference import torch_threads
from stateful_pipeline.model.scripted import is_scripted, scripted_sources
from stateful_pipeline.model.sizes import corner_sizes
from stateful_pipeline.model.subject import Subject
from stateful_pipeline.stages.artifacts import Artifacts


def run(artifacts: Artifacts) -> None:
    """Leave ``discovery`` and ``captured``, or else ``scripted``; and the code in ``script/``.

    Raises:
        StateError: Something changes that cannot be made a state, or is not saved.
        StageError: The front end refused the module.
    """
    subject = artifacts.need("subject", "script")
    folder = artifacts.folder / "script"
    folder.mkdir(parents=True, exist_ok=True)
    # A few steps at small sizes: with more threads, small operators mostly wait for each other.
    with torch_threads(1):
        _note_graphs(artifacts, subject)
        if artifacts.make == "scripted":
            _compile(artifacts, subject, folder)
        else:
            _capture(artifacts, subject)
            captured = artifacts.need("captured", "script")
            code = captured.code("As captured: in-place operators stay.")
            (folder / "graph.py").write_text(code)
        _note_reset(artifacts, subject)
    (folder / "module.py").write_text("\n\n".join(_sources(subject.module)) or _NO_SOURCE)


def _note_reset(artifacts: Artifacts, subject: Subject) -> None:
    """Note what the module's own reset leaves as it is, which an engine's takes back."""
    reset, notes = artifacts.spec.source.reset, artifacts.notes.setdefault("script", {})
    if reset is not None and "left_by_reset" not in notes:
        notes["left_by_reset"] = list(subject.left_by_reset(reset))


def _note_graphs(artifacts: Artifacts, subject: Subject) -> None:
    """Note which C++ objects keep graphs of autograd from call to call, and since which method."""
    notes = artifacts.notes.setdefault("script", {})
    if "carried_graphs" not in notes:
        notes["carried_graphs"] = [str(graph) for graph in subject.carried_graphs()]


def _compile(artifacts: Artifacts, subject: Subject, folder: Path) -> None:
    source = artifacts.spec.source
    if source.kind in ("onnx", "exported_program"):
        raise StageError(
            f"a source of `{source.kind}` has no TorchScript, which the runtime libtorch runs",
            stage="script",
            place=artifacts.spec.place(source.key),
            hint="give the module that the file was exported from",
        )
    subject.refuse_sharing()
    reset = source.reset
    sizes = corner_sizes(subject.axes)
    made = deployable(initial_module(subject), subject.call, subject.plan, sizes, reset)
    save(made.module, folder / "model.pt")
    (folder / "torchscript.py").write_text("\n\n".join(scripted_sources(made.module)))
    artifacts.scripted = folder / "model.pt"
    known = {"reset": made.reset, "without_reset": made.without_reset}
    artifacts.notes.setdefault("script", {})["scripted"] = known


def _capture(artifacts: Artifacts, subject: Subject) -> None:
    if artifacts.discovery is None:
        artifacts.discovery = subject.discover()
    discovery = artifacts.discovery
    fixed = [d for value in subject.plan.inputs for d in value.shape if isinstance(d, int)]
    sizes = probe_sizes(subject.axes, fixed)
    asked = artifacts.spec.script.frontend
    artifacts.captured = capture_with(artifacts.frontend, discovery.reference, subject.plan, sizes)
    artifacts.notes.setdefault("script", {}).update(
        frontend=artifacts.frontend,
        why=why_chosen(artifacts.frontend, asked, artifacts.refused),
        refused=dict(artifacts.refused),
        traced_at=sizes,
        states=[state.name for state in discovery.reference.states],
        ignored=list(discovery.ignored),
    )


_NO_SOURCE = "# The module's classes have no source file.\n"


def _sources(module: nn.Module) -> Iterator[str]:
    """Yield the source of each of the user's classes in ``module``, once."""
    if is_scripted(module):
        yield from scripted_sources(module)
        return
    for cls in dict.fromkeys(type(inner) for inner in module.modules()):
        try:
            file = inspect.getsourcefile(cls)
            text = inspect.getsource(cls)
        except (OSError, TypeError):
            continue
        if file is not None and is_user_file(file):
            yield f"# {Path(file).name}\n{text}"
