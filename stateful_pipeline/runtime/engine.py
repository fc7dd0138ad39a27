"""The one door to ONNX Runtime: sessions of model files.

A provider that cannot be had is replaced by the CPU without an error: what was asked for is checked
before the session is made, and the session is asked afterwards which provider it has, and whether
that runs any node at all.

**Nodes on the CPU.**  With a GPU's provider, ONNX Runtime still puts some nodes on the CPU: those
that the provider has no kernel for, and arithmetic on shapes, which is faster there and on purpose.
``session.disable_cpu_ep_fallback`` refuses a model for a single one of them, of either kind, so
that it would refuse most models with dynamic axes, and is left off.  What matters here is what each
step costs: a state that such a node reads lies in host memory, where it reads it without a copy,
and :meth:`Engine.on_host` names every state that is read or written there.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from stateful_pipeline.errors import ContractError, TargetError
from stateful_pipeline.runtime.device_memory import Block, DeviceBlock, HostBlock, OrtDevice
from stateful_pipeline.runtime.ort_binding import ONNX_TYPES as ONNX_TYPES
from stateful_pipeline.runtime.ort_binding import Array as Array
from stateful_pipeline.runtime.ort_binding import Binding as Binding
from stateful_pipeline.runtime.ort_binding import shared_value
from stateful_pipeline.runtime.ort_options import (
    SessionOptions,
    check_options,
    provider_chain,
    run_options,
    session_options,
)
from stateful_pipeline.runtime.ort_options import check_threads as check_threads
from stateful_pipeline.runtime.ort_provider import CPU, find_provider, require_provider
from stateful_pipeline.runtime.ort_provider import PROVIDERS as PROVIDERS
from stateful_pipeline.runtime.ort_provider import import_onnxruntime as import_onnxruntime

_DEFAULTS = SessionOptions()


def first_line(error: BaseException, limit: int = 400) -> str:
    """Return the first line of a foreign error's message, for use inside another."""
    text = str(error).strip() or repr(error)
    line = text.splitlines()[0]
    return line if len(line) <= limit else line[: limit - 3] + "..."


class Engine:
    """An ONNX Runtime session of one model file.

    Args:
        path: The model file.
        provider: A key of :data:`PROVIDERS`.
        threads: Threads within an operator; None leaves it to ONNX Runtime.
        options: What else the session is to be like.

    Raises:
        ContractError: The file is missing, or is not a model that ONNX Runtime can load.
        SpecError: ``threads`` or an option is out of range.
        TargetError: ONNX Runtime, the provider or its device is not available, or does not run
            the model.

    Attributes:
        session: The session.
        providers: Its providers, the one asked for first.
        nodes: Provider to operator to the number of nodes that it runs; empty on the CPU.
    """

    def __init__(
        self,
        path: Path,
        provider: str,
        threads: int | None,
        options: SessionOptions = _DEFAULTS,
    ) -> None:
        self.provider = find_provider(provider)
        check_threads(threads)
        check_options(options)
        if not path.is_file():
            raise ContractError.in_file(path, "there is no such model file")
        ort = require_provider(provider, options.gpu)
        self._ort_value = ort.OrtValue
        theirs = session_options(ort, self.provider, threads, options)
        self._run_options = run_options(ort, self.provider, options)
        try:
            self.session = _session(ort, path, theirs, provider_chain(self.provider, options))
        except TargetError:
            raise
        except Exception as error:
            raise self._refusal(ort, path, provider, error) from error
        self.providers: tuple[str, ...] = tuple(self.session.get_providers())
        self.nodes: dict[str, Counter[str]] = {}
        self._device: OrtDevice | None = None
        self._require_no_fallback(provider)
        if self.provider.device is not None:
            self._device = OrtDevice(ort.OrtValue, self.provider.device, options.gpu)
            self.nodes = _nodes(self.session)
            self._require_nodes(provider)
        self._read_on_device = self._on_device(
            self.session.get_inputs(), self.session.get_input_memory_infos()
        )
        self._written_on_device = self._on_device(
            self.session.get_outputs(), self.session.get_output_memory_infos()
        )

    def value(self, array: Array, dtype: str) -> Any:
        """Return an ``OrtValue`` that shares the memory of a C-contiguous ``array``."""
        return shared_value(self._ort_value, array, dtype)

    def binding(self) -> Binding:
        """Return a new, empty binding of this session."""
        return Binding(self.session, self._run_options)

    def block(self, graph_input: str, dtype: str, grows: bool) -> Block:
        """Return a new block where the session reads ``graph_input``."""
        if self._device is not None and graph_input in self._read_on_device:
            return DeviceBlock(self._device, dtype, grows)
        return HostBlock(self._ort_value, dtype, grows)

    def on_host(self, graph_input: str, graph_output: str) -> bool:
        """Whether a state crosses to the host in each step, or lies there, in spite of a device."""
        return self._device is not None and not (
            graph_input in self._read_on_device and graph_output in self._written_on_device
        )

    def _on_device(self, nodes: list[Any], memory: list[Any]) -> frozenset[str]:
        """Return the graph's inputs or outputs that lie on the device."""
        device = self.provider.device
        return frozenset(
            node.name
            for node, info in zip(nodes, memory, strict=True)
            if info.name.lower() == device
        )

    def _require_no_fallback(self, provider: str) -> None:
        if self.providers[0] != self.provider.ort_name:
            raise TargetError(
                f"ONNX Runtime fell back to {self.providers[0]}",
                target=provider,
                hint=f"see why {self.provider.ort_name} cannot be started on this machine",
            )

    def _require_nodes(self, provider: str) -> None:
        if self.nodes and self.provider.ort_name not in self.nodes:
            others = ", ".join(sorted(self.nodes))
            raise TargetError(
                f"{self.provider.ort_name} runs no node of the model: all of them went to {others}",
                target=provider,
                hint="its operators or dtypes have no kernels there; use another provider",
            )

    def _refusal(
        self, ort: Any, path: Path, provider: str, error: Exception
    ) -> ContractError | TargetError:
        """Return the error for a session that cannot be made: the model's fault, or the device's.

        What the CPU can load, the provider failed at.
        """
        if self.provider.device is not None:
            try:
                theirs = session_options(ort, CPU, None, _DEFAULTS)
                _session(ort, path, theirs, provider_chain(CPU, _DEFAULTS))
            except Exception as on_cpu:  # noqa: BLE001 - the same failure, told without a device
                error = on_cpu
            else:
                return TargetError(
                    f"{self.provider.ort_name} cannot load the model, which the CPU can: "
                    f"{first_line(error)}",
                    target=provider,
                )
        return ContractError.in_file(
            path, f"ONNX Runtime cannot load the model: {first_line(error)}", _hint(error, path)
        )


def _session(
    ort: Any, path: Path, options: Any, providers: list[tuple[str, dict[str, str]]]
) -> Any:
    # Left on, `enable_fallback` prints to stdout, and makes the session anew with other providers.
    return ort.InferenceSession(str(path), options, providers=providers, enable_fallback=0)


def _nodes(session: Any) -> dict[str, Counter[str]]:
    """Return how often each provider runs each operator."""
    nodes: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes.setdefault(part.ep_name, Counter()).update(node.op_type for node in part.get_nodes())
    return nodes


def _hint(error: Exception, path: Path) -> str:
    """Return what to try when a model cannot be loaded."""
    other = {".xml": "OpenVinoRunner", ".engine": "TensorRtRunner"}.get(path.suffix)
    if other is not None:
        return f"{other} runs files of this kind"
    if "NOT_IMPLEMENTED" in str(error):
        return (
            "a portable file may have dtypes that ONNX Runtime has no kernels for, bfloat16 above "
            "all: run the copy in `targets/` that `pipeline run` builds, or export it with "
            "runtime='onnxruntime'"
        )
    return "check the file with onnx.checker, and that its external data lies beside it"
