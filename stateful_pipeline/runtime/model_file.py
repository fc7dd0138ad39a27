"""The contract inside an ONNX file, checked against the graph that it describes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from stateful_pipeline.contract import METADATA_KEY, Contract
from stateful_pipeline.errors import ContractError
from stateful_pipeline.runtime.engine import ONNX_TYPES, Engine
from stateful_pipeline.runtime.sizes import AxisRules

_ORT_NAMES = {"float32": "float", "float64": "double"}


def read_contract(engine: Engine, path: Path) -> Contract:
    """Return the contract of the loaded model.

    Args:
        engine: The session of the model.
        path: The model file, for messages.

    Raises:
        ContractError: The file has no contract, or the graph is not as the contract says.
    """
    text = engine.session.get_modelmeta().custom_metadata_map.get(METADATA_KEY)
    if text is None:
        raise ContractError.in_file(
            path,
            f"the model has no state contract (metadata '{METADATA_KEY}')",
            "export it with stateful_pipeline.export_onnx",
        )
    try:
        contract = Contract.from_json(text)
        AxisRules(contract)
    except ContractError as error:
        raise ContractError.in_file(path, error.message, error.hint) from error
    _check_graph(engine, contract, path)
    return contract


def _check_graph(engine: Engine, contract: Contract, path: Path) -> None:
    inputs = {node.name: node.type for node in engine.session.get_inputs()}
    outputs = {node.name: node.type for node in engine.session.get_outputs()}
    takes = [(v.name, v.dtype) for v in contract.inputs]
    takes += [(s.input, s.dtype) for s in contract.states]
    gives = [(s.output, s.dtype) for s in contract.states]
    _check_unique([name for name, _ in takes], "graph input", path)
    _check_unique([name for name, _ in gives], "graph output", path)
    _check_unique([s.name for s in contract.states], "state", path)
    _check_unique([v.name for v in contract.outputs], "output", path)
    _check_types(takes, inputs, "input", path)
    _check_types(gives + [(v.name, v.dtype) for v in contract.outputs], outputs, "output", path)
    unknown = inputs.keys() - {name for name, _ in takes}
    if unknown:
        raise ContractError.in_file(
            path, f"graph input '{min(unknown)}' is neither an input nor a state of the contract"
        )
    unknown = outputs.keys() - {name for name, _ in gives} - {v.name for v in contract.outputs}
    if unknown:
        raise ContractError.in_file(
            path, f"graph output '{min(unknown)}' is neither an output nor a state of the contract"
        )


def _check_types(
    declared: list[tuple[str, str]], graph: dict[str, str], kind: str, path: Path
) -> None:
    for name, dtype in declared:
        if name not in graph:
            names = ", ".join(graph) or "none"
            raise ContractError.in_file(
                path,
                f"the contract names graph {kind} '{name}', which the graph lacks",
                f"its {kind}s are: {names}; export the model again",
            )
        if dtype not in ONNX_TYPES or graph[name] != f"tensor({_ORT_NAMES.get(dtype, dtype)})":
            raise ContractError.in_file(
                path, f"graph {kind} '{name}' is {graph[name]}, the contract says {dtype}"
            )


def _check_unique(names: list[str], kind: str, path: Path) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ContractError.in_file(path, f"the contract names {kind} '{name}' {count} times")
