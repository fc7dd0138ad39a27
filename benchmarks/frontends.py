"""Writes the tables of ``docs/frontends.md``: which front end takes which module of the corpora.

Each module is really exported, with either front end and with ``auto``, and each file that comes
out is rolled out in a ``StatefulRunner`` beside eager PyTorch, twice, with a reset in between.
What ``auto`` picked is told by the bytes: its file is the one that this front end wrote.

The text of the page above the mark is kept.  ``python benchmarks/frontends.py`` writes the page;
with ``--check`` it compares instead, and ends with 1 where they differ.
"""

import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "frontends.md"
MARK = "<!-- What follows is written by `make frontends`. -->\n"
FRONTENDS = ("export", "torchscript")
LONGEST = 200


@dataclass(frozen=True)
class Result:
    """What became of one module with one front end.

    Attributes:
        model: The bytes of the model, or None if it was refused.
        text: ``right``, ``**wrong**``, ``**crashed**``, or why it was refused.
        states: Names of the states that were found.
    """

    model: bytes | None
    text: str
    states: tuple[str, ...] = ()


def corpus(name: str) -> ModuleType:
    """Load a corpus of the tests, by path: the tests are no package."""
    qualified = f"corpus_{name}"
    if qualified not in sys.modules:
        path = ROOT / "tests" / "corpus" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(qualified, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[qualified] = module
        spec.loader.exec_module(module)
    return sys.modules[qualified]


def deployed() -> list[Any]:
    """Return the modules of the corpus that is in three files, in their order."""
    modules: list[Any] = corpus("deployed").DEPLOYED
    corpus("deployed_models")
    corpus("deployed_control")
    return modules


def example(case: Any) -> tuple[torch.Tensor, ...]:
    """Return the inputs that ``case`` is exported with: its own example, or those of step 0."""
    found: tuple[torch.Tensor, ...] = case.example() if hasattr(case, "example") else case.inputs(0)
    return found


def exported(case: Any, frontend: str) -> Result:
    """Export ``case`` with ``frontend`` and compare it with eager PyTorch."""
    dynamic = getattr(case, "dynamic", None) or None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            contract = sp.export_onnx(
                case.build(), example(case), path, dynamic_axes=dynamic, frontend=frontend
            )
        except PipelineError as error:
            return Result(None, f"refused: {reason(error)}")
        except Exception as error:  # noqa: BLE001 - no error of ours: the table has to show it
            return Result(None, f"**crashed**: {type(error).__name__}")
        text = "right" if follows_eager(case, path, contract) else "**wrong**"
        return Result(path.read_bytes(), text, tuple(state.name for state in contract.states))


def follows_eager(case: Any, path: Path, contract: sp.Contract) -> bool:
    """Say whether the model gives what eager PyTorch gives, from a reset, twice."""
    runner = sp.StatefulRunner(path)
    for _ in range(2):
        module = case.build()
        for step in range(case.steps):
            arguments = case.inputs(step)
            with torch.no_grad():
                expected = module(*arguments).numpy()
            given = {v.name: a.numpy() for v, a in zip(contract.inputs, arguments, strict=True)}
            got = runner.run(given)["output"]
            if got.dtype != expected.dtype or got.shape != expected.shape:
                return False
            if not np.allclose(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
                return False
        runner.reset()
    return True


def reason(error: PipelineError) -> str:
    """Return a refusal in one sentence: no folders, and no figures that differ between machines."""
    text = error.message.splitlines()[0]
    text = re.sub(r"^script: torch\.(export|jit\.script) refused: \w+: ", r"torch.\1: ", text)
    text = re.sub(r"^\w+: (?=\S)", "", text)  # the stage
    text = text.replace(" (unhinted: Eq(u0, 1))", "")
    text = re.split(r"\.(?=\s|$)|: \(|:$|, by \d", text, maxsplit=1)[0].strip()
    text = re.sub(r"(?:[\w.-]*/)+(?=[\w.-]+)", "", text)
    if len(text) > LONGEST:
        text = text[:LONGEST].rsplit(" ", 1)[0] + " ..."
    text += ")" * (text.count("(") - text.count(")"))
    if error.file is not None:
        text = f"{Path(error.file).name}:{error.line}: {text}"
    return text


def picked(results: Sequence[Result], auto: Result) -> str:
    """Return which front end made the model that ``auto`` gave."""
    if auto.model is None:
        return "refuses" if auto.text.startswith("refused") else auto.text
    for frontend, result in zip(FRONTENDS, results, strict=True):
        if result.model == auto.model:
            return frontend if auto.text == "right" else f"{frontend}: {auto.text}"
    raise SystemExit("auto wrote a model that no front end writes alone")


def cell(text: str) -> str:
    return re.sub(r"[|<>]", lambda match: f"\\{match[0]}", text)


def described(case: Any, states: Iterable[str]) -> str:
    """Say in words how a module holds its state, or name the states."""
    return getattr(case, "kind", "") or ", ".join(f"`{name}`" for name in states)


def table(cases: Iterable[Any], what: str) -> str:
    """Return the table of one corpus."""
    rows = [f"| module | {what} | `export` | `torchscript` | `auto` |", "|---|---|---|---|---|"]
    for case in cases:
        results = [exported(case, frontend) for frontend in FRONTENDS]
        auto = exported(case, "auto")
        texts = [described(case, auto.states), *(result.text for result in results)]
        line = [f"`{case.name}`", *map(cell, texts), picked(results, auto)]
        rows.append(f"| {' | '.join(line)} |")
    return "\n".join(rows) + "\n"


def page() -> str:
    """Return the whole page, its tables made anew."""
    head, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise SystemExit(f"docs/{PAGE.name} has lost the line {MARK.strip()}")
    cases = table(corpus("cases").CASES, "how its state is held or changed")
    streams = table(corpus("streams").STREAMS, "states")
    others = table(deployed(), "what it is, and how its state is held")
    return (
        f"{head}{mark}\n### One module per way that state hides (`cases.py`)\n\n{cases}"
        f"\n### Modules as streaming and decoding code has them (`streams.py`)\n\n{streams}"
        f"\n### Modules as people deploy them (`deployed*.py`)\n\n{others}"
    )


def main() -> None:
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit(f"docs/{PAGE.name} is not what the corpora give: run `make frontends`")


if __name__ == "__main__":
    main()
