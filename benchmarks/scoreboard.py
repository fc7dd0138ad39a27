"""Runs every module of the corpora through this project and through the tools that people use.

Each tool gets the module and one example, as its documentation says; what comes out is run step
after step as its user would, each step fed with what that form carries on its own, and compared
with eager PyTorch:

* right: every step's output is eager's;
* silently wrong: no error was raised, and some step's output is another;
* refused: an error, when it is made or when it is run; a crash and a timeout count as this too.

``python benchmarks/scoreboard.py`` writes ``docs/scoreboard.md`` and the block in the README.  With
``--tool`` only those tools run, and the others' results are those of the last run, from ``build/``;
with ``--only`` it prints the outcomes of these modules and writes nothing.  Tools that are not
installed have a row that says so; they need not be in ``.venv``:

    pip install --no-deps --target peers openvino openvino-telemetry
    PYTHONPATH=peers make scoreboard
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import inspect
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scoreboard.md"
README = ROOT / "README.md"
KEPT = ROOT / "build" / "scoreboard.json"
MARKS = ("<!-- What follows is written by `make scoreboard`. -->\n", "<!-- Up to here. -->\n")
SECONDS = 180
CONTROL = "stateless"
CORPORA = {
    "no state: a control": CONTROL,
    "one module per way that state hides": "cases",
    "streaming and decoding": "streams",
    "as people deploy them": "deployed",
}

Step = Callable[..., Any]
"""Takes the inputs of one call as tensors, and gives the output as an array or a tensor."""


@dataclass(frozen=True)
class Given:
    """What a tool is given.

    Attributes:
        module: The module, as it was constructed.
        example: The inputs of one call.
        dynamic: Which of their axes are dynamic, as ``export_onnx`` takes it.  The corpora have
            it where a module holds states of size 1 along an axis on which inputs are larger.
    """

    module: Any
    example: tuple[Any, ...]
    dynamic: dict[str, dict[int, str]] | None


def names(module: Any) -> list[str]:
    return list(inspect.signature(module.forward).parameters)


def by_name(module: Any, arguments: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(names(module), (a.numpy() for a in arguments), strict=True))


def ours(given: Given, folder: Path) -> Step:
    import stateful_pipeline as sp

    contract = sp.export_onnx(
        given.module, given.example, folder / "model.onnx", dynamic_axes=given.dynamic
    )
    runner = sp.StatefulRunner(folder / "model.onnx")
    inputs = [value.name for value in contract.inputs]
    return lambda *arguments: runner.run(
        dict(zip(inputs, (a.numpy() for a in arguments), strict=True))
    )["output"]


def onnx_file(module: Any, path: Path) -> Step:
    """Return a step of an ONNX file that its exporter gave no state: inputs only."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}

    def step(*arguments: Any) -> Any:
        given = by_name(module, arguments)
        return session.run(None, {name: given[name] for name in wanted})[0]

    return step


def onnx_by_dynamo(given: Given, folder: Path) -> Step:
    import torch

    path = folder / "model.onnx"
    torch.onnx.export(
        given.module,
        given.example,
        path,
        input_names=names(given.module),
        dynamo=True,
        verbose=False,
    )
    return onnx_file(given.module, path)


def onnx_by_torchscript(given: Given, folder: Path) -> Step:
    import torch

    path = folder / "model.onnx"
    torch.onnx.export(
        given.module, given.example, str(path), input_names=names(given.module), dynamo=False
    )
    return onnx_file(given.module, path)


def torch_export(given: Given, folder: Path) -> Step:
    """The exported program as a module, which carries the buffers that it knows of."""
    import torch

    torch.export.save(torch.export.export(given.module, given.example), folder / "model.pt2")
    captured: Step = torch.export.load(folder / "model.pt2").module()
    return captured


def openvino(given: Given, folder: Path) -> Step:
    """At the sizes of the example: with its own dynamic ones it cannot run recurrent layers."""
    import openvino as ov

    sizes = [list(value.shape) for value in given.example]
    converted = ov.convert_model(given.module, example_input=given.example, input=sizes)
    ov.save_model(converted, folder / "model.xml", compress_to_fp16=False)
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    request = ov.Core().compile_model(folder / "model.xml", "CPU", settings).create_infer_request()
    return lambda *arguments: request.infer([a.numpy() for a in arguments])[0].copy()


def executorch(given: Given, folder: Path) -> Step:
    """With the initial values of all buffers, which it leaves out unless it is told."""
    import torch
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
    from executorch.runtime import Runtime

    buffers = [name.replace(".", "_") for name, _ in given.module.named_buffers()]
    passes = [InitializedMutableBufferPass(buffers)]
    lowered = to_edge_transform_and_lower(torch.export.export(given.module, given.example))
    program = lowered.to_executorch(ExecutorchBackendConfig(passes=passes))
    (folder / "model.pte").write_bytes(program.buffer)
    method = Runtime.get().load_program(folder / "model.pte").load_method("forward")
    return lambda *arguments: method.execute(list(arguments))[0].clone()


def leapp(given: Given, folder: Path) -> Step:
    """With ``annotate.module``, which makes buffers that are reassigned inputs and outputs."""
    import leapp
    from leapp import annotate
    from leapp.inference_manager import InferenceManager

    module, example = given.module, given.example
    leapp.start(name="model", save_path=str(folder))
    traced = annotate.input_tensors("node", dict(zip(names(module), example, strict=True)))
    annotate.module("node", module)
    output = module(*(traced if isinstance(traced, tuple) else (traced,)))
    annotate.output_tensors("node", {"output": output}, export_with="onnx-torchscript")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    manager = InferenceManager(str(folder / "model" / "model.yaml"))

    def step(*arguments: Any) -> Any:
        named = dict(zip(names(module), arguments, strict=True))
        manager.run_policy({f"node/{name}": value.clone() for name, value in named.items()})
        return manager.value_dict["==out=="]["node/output"].clone()

    return step


@dataclass(frozen=True)
class Tool:
    """A tool, and the distribution that has its version.

    Attributes:
        name: What it is called in the tables.
        make: Makes a step from what it is given and a folder to write into.
        distribution: What has to be installed.
    """

    name: str
    make: Callable[[Given, Path], Step]
    distribution: str

    @property
    def version(self) -> str | None:
        """The version that is installed, or None."""
        if importlib.util.find_spec(self.distribution.replace("-", "_")) is None:
            return None
        return importlib.metadata.version(self.distribution).partition("+")[0]


TOOLS = (
    Tool("stateful-pipeline", ours, "stateful-pipeline"),
    Tool("`torch.onnx.export`, dynamo", onnx_by_dynamo, "torch"),
    Tool("`torch.onnx.export`, TorchScript", onnx_by_torchscript, "torch"),
    Tool("`torch.export`", torch_export, "torch"),
    Tool("OpenVINO", openvino, "openvino"),
    Tool("ExecuTorch", executorch, "executorch"),
    Tool("LEAPP", leapp, "leapp"),
)


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


def modules(name: str) -> list[Any]:
    """Return the modules of the corpus ``name``."""
    registered = corpus("deployed").DEPLOYED
    if name == "deployed":
        corpus("deployed_models")
        corpus("deployed_control")
        return list(registered)
    of = {"cases": "CASES", "streams": "STREAMS", CONTROL: "STATELESS"}
    return list(getattr(corpus(name), of[name]))


def outcome(tool: Tool, case: Any, folder: Path) -> str:
    """Return what becomes of ``case``: ``right``, ``wrong: ...`` or ``refused: ...``."""
    import numpy as np
    import torch

    example = case.example() if hasattr(case, "example") else case.inputs(0)
    given = Given(case.build(), example, getattr(case, "dynamic", None) or None)
    with torch.no_grad():
        try:
            step = tool.make(given, folder)
        except Exception as error:  # noqa: BLE001 - a tool may refuse with any exception
            return f"refused: {type(error).__name__}"
        eager = case.build()
        for number in range(case.steps):
            expected = eager(*case.inputs(number)).numpy().copy()
            try:
                got = np.asarray(step(*case.inputs(number)))
            except Exception as error:  # noqa: BLE001 - and when it is run
                return f"refused: {type(error).__name__} when run, step {number}"
            if got.shape != expected.shape:
                return f"wrong: the shape, from step {number}"
            if not np.allclose(
                got.astype(float), expected.astype(float), rtol=1e-4, atol=1e-5, equal_nan=True
            ):
                return f"wrong: from step {number}"
    return "right"


def work(connection: Connection, tool: int, corpus_name: str, case: int) -> None:
    """Send the outcome of one module with one tool; runs in a process of its own."""
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        connection.send(outcome(TOOLS[tool], modules(corpus_name)[case], Path(folder)))


def isolated(context: Any, tool: int, corpus_name: str, case: int) -> str:
    """Run ``work`` in a process of its own, for no longer than ``SECONDS``."""
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sender, tool, corpus_name, case))
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return "refused: timeout"
        return str(receiver.recv())
    except EOFError:
        process.join()
        return f"refused: crash, exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def results(context: Any, tool: int, wanted: Iterable[str]) -> dict[str, str]:
    """Return the outcome of each module with one tool, by ``corpus/module``."""
    wanted, found = set(wanted), {}
    for corpus_name in CORPORA.values():
        for number, case in enumerate(modules(corpus_name)):
            if wanted and case.name not in wanted:
                continue
            began = time.perf_counter()
            key = f"{corpus_name}/{case.name}"
            found[key] = isolated(context, tool, corpus_name, number)
            seconds = time.perf_counter() - began
            print(f"{TOOLS[tool].name}  {key}  {found[key]}  ({seconds:.1f} s)", file=sys.stderr)
    return found


def kind(text: str) -> str:
    return text.partition(":")[0]


def counted(found: Mapping[str, str], corpora: Iterable[str]) -> list[str]:
    """Return how many modules of the corpora are right, silently wrong and refused."""
    inside = [text for key, text in found.items() if key.partition("/")[0] in corpora]
    number = Counter(kind(text) for text in inside)
    return [str(number[each]) for each in ("right", "wrong", "refused")]


def summary(kept: Mapping[str, Any]) -> str:
    """Return the table of all tools over the stateful modules."""
    rows = ["| tool | version | right | silently wrong | refused |", "|---|---|---:|---:|---:|"]
    stateful = [name for name in CORPORA.values() if name != CONTROL]
    for tool in TOOLS:
        cells = ["not installed", "–", "–", "–"]
        if tool.name in kept:
            found = kept[tool.name]
            cells = [found["version"], *counted(found["results"], stateful)]
        rows.append(f"| {tool.name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def by_corpus(kept: Mapping[str, Any]) -> str:
    """Return the table of all tools, corpus by corpus: right / silently wrong / refused."""
    titles = [f"{title} (`{name}`)" for title, name in CORPORA.items()]
    rows = [f"| tool | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    for tool in TOOLS:
        if tool.name in kept:
            found = kept[tool.name]["results"]
            cells = [" / ".join(counted(found, [name])) for name in CORPORA.values()]
            rows.append(f"| {tool.name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def each(kept: Mapping[str, Any]) -> str:
    """Return a table per corpus, with a row for each module."""
    tools = [tool for tool in TOOLS if tool.name in kept]
    head = f"| module | {' | '.join(tool.name for tool in tools)} |\n|---|{'---|' * len(tools)}\n"
    parts = []
    for title, name in CORPORA.items():
        parts.append(f"\n### {title[0].upper()}{title[1:]}\n\n{head}")
        for case in modules(name):
            cells = [kept[tool.name]["results"][f"{name}/{case.name}"] for tool in tools]
            cells = [text if kind(text) != "wrong" else f"**{text}**" for text in cells]
            parts.append(f"| `{case.name}` | {' | '.join(cells)} |\n")
    return "".join(parts)


def written(path: Path, text: str) -> None:
    """Put ``text`` between the marks of ``path``.

    Raises:
        SystemExit: It has lost them.
    """
    head, first, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    _, last, tail = rest.partition(MARKS[1])
    if not first or not last:
        raise SystemExit(f"{path.name} has lost a line {MARKS[0].strip()} or {MARKS[1].strip()}")
    path.write_text(f"{head}{first}\n{text}\n{last}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Which tool takes which stateful module.")
    parser.add_argument("--tool", nargs="*", default=[], help="run these tools alone")
    parser.add_argument("--only", nargs="*", default=[], help="print these modules, write nothing")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.onnx", "onnxscript", "stateful_pipeline.api"])
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    ran = {}
    for number, tool in enumerate(TOOLS):
        if arguments.tool and tool.make.__name__ not in arguments.tool:
            continue
        if tool.version is None:
            print(f"{tool.name}: not installed (pip install {tool.distribution})", file=sys.stderr)
            continue
        found = results(context, number, arguments.only)
        ran[tool.name] = {"version": tool.version, "results": found}
    if arguments.only:
        print(json.dumps({name: row["results"] for name, row in ran.items()}, indent=1))
        return
    kept = (kept if arguments.tool else {}) | ran
    KEPT.parent.mkdir(exist_ok=True)
    KEPT.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    written(PAGE, f"{summary(kept)}\n{by_corpus(kept)}{each(kept)}")
    written(README, summary(kept))


if __name__ == "__main__":
    main()
