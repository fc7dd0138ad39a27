"""Writes ``docs/frontends.md``: which front end takes which module of the test corpora.

Each module is exported with each front end and rolled out through ONNX Runtime beside eager
PyTorch, from a reset. ``--check`` compares with the file instead of writing it.
"""

import importlib.util
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "frontends.md"

HEAD = """\
# The two front ends

`script: {frontend: export}` captures a module with `torch.export`, which runs the module's own
Python: whatever Python does with state comes out right, but there is one graph for all inputs, so
that code which branches or loops on the values of tensors is refused. `script: {frontend:
torchscript}` compiles it with `torch.jit.script` and rewrites its graph; branches and loops on data
stay as `If` and `Loop`, but the code has to be TorchScript. `auto`, the default, tries them in this
order and takes the first that gives a model which equals eager PyTorch; the terminal and
`manifest.json` (`stages.script.notes`) say which, and why the other did not. In Python it is
`sp.export_onnx(..., frontend="auto")`. A ScriptModule or a file of one goes through `torchscript`
alone.

`rewrite/graph.py` in a build is the module as a pure function; for `torchscript`,
`rewrite/before.py` is its code before. Where the rewrite cannot tell which of two tensors a write
in place goes to, because a loop decides it, the model is refused with the line.

The table is generated (`make frontends`) by exporting every module of the test corpora and
comparing a whole rollout with eager PyTorch.

| module | what is special | `export` | `torchscript` | `auto` |
|---|---|---|---|---|
"""


def load(name: str):
    path = ROOT / "tests" / "corpus" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def follows(case, path: Path, contract) -> bool:
    runner, module = sp.StatefulRunner(path), case.build()
    for step in range(case.steps):
        arguments = case.inputs(step)
        with torch.no_grad():
            expected = module(*arguments).numpy()
        given = {v.name: a.numpy() for v, a in zip(contract.inputs, arguments, strict=True)}
        if not np.allclose(runner.run(given)["output"], expected, rtol=1e-4, atol=1e-5):
            return False
    return True


def verdict(case, frontend: str) -> str:
    dynamic = getattr(case, "dynamic", None) or None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            contract = sp.export_onnx(
                case.build(), case.inputs(0), path, dynamic_axes=dynamic, frontend=frontend
            )
        except PipelineError as error:
            return "refused: " + reason(error.message)
        return "right" if follows(case, path, contract) else "**wrong**"


def reason(message: str) -> str:
    """Return the first sentence of a refusal, without places and numbers that may change."""
    text = message.splitlines()[0]
    if text.startswith("script: torch.jit.script refused: RuntimeError: "):
        text = text.removeprefix("script: torch.jit.script refused: RuntimeError: ")
        text = f"no TorchScript: {text}"
    text = re.sub(r"(/\S+/)?(\w+\.py):\d+", r"\2", text)
    text = re.sub(r"by [\d.e+-]+ .*", "", text).replace("|", r"\|").strip(" (:")
    return text if len(text) < 140 else text[:137].rsplit(" ", 1)[0] + " ..."


def rows():
    cases = [*load("cases").CASES, *load("streams").STREAMS]
    for case in cases:
        ways = [verdict(case, frontend) for frontend in ("export", "torchscript")]
        picks = next(
            (n for n, way in zip(("export", "torchscript"), ways, strict=True) if way == "right"),
            "refuses",
        )
        kind = getattr(case, "kind", "") or (case.build().__doc__ or "").strip().split("\n")[0]
        yield f"| `{case.name}` | {kind} | {ways[0]} | {ways[1]} | {picks} |\n"


def main() -> None:
    text = HEAD + "".join(rows())
    if "--check" in sys.argv:
        if TARGET.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{TARGET.name} is not what the corpora give: run `make frontends`")
        return
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
