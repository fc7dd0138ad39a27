"""What is written beside an engine of TensorRT: the contract, and where the engine can run.

An engine file says nothing about itself before it is loaded, and loading one that was made for
another GPU, version or library ends in an error without a reason, or in a crash.  The file
``model.engine.json`` beside ``model.engine`` has what is needed to refuse it with one.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stateful_pipeline.contract import Contract
from stateful_pipeline.contract_json import contract_of
from stateful_pipeline.errors import ContractError, TargetError
from stateful_pipeline.json_fields import (
    FLAG,
    LIST,
    MAPPING,
    NAME,
    SIZE,
    TEXT,
    checked,
    list_of,
    one_of,
    other_schema,
    read_json,
)

SCHEMA = 1
SUFFIX = ".json"
LIBRARIES = ("tensorrt", "tensorrt_rtx")
"""The libraries that have engines, by the names of their modules."""

Ranges = Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
"""Graph input to its least, usual and largest shape."""


@dataclass(frozen=True)
class EngineProfile:
    """An optimization profile of an engine: its name in the spec, and the shapes it covers."""

    name: str
    ranges: Ranges


@dataclass(frozen=True)
class EnginePlugin:
    """A plugin that an engine calls, as the plugin registry knows it."""

    name: str
    version: str
    namespace: str = ""


@dataclass(frozen=True)
class EngineSidecar:
    """All that is known of an engine before it is loaded.

    Attributes:
        library: One of :data:`LIBRARIES`.
        version: The version of the library that built it.
        sha256: Of the engine file, in hexadecimal.
        contract: The state contract; its dtypes are those of the engine.
        profiles: In the engine's order.
        compute_capabilities: Of the GPUs that it was built for, as ``"8.9"``; empty for any.
        plugins: What must be registered before it is loaded.
        precision: What floats are computed in.
        host: The platform that built it, as ``"linux_x86_64"``.
        version_compatible: Whether it was built to run with later versions of the same major one.
        schema: The version of this format.
    """

    library: str
    version: str
    sha256: str
    contract: Contract
    profiles: tuple[EngineProfile, ...]
    compute_capabilities: tuple[str, ...] = ()
    plugins: tuple[EnginePlugin, ...] = ()
    precision: str = "fp32"
    host: str = ""
    version_compatible: bool = False
    schema: int = field(default=SCHEMA)

    def to_json(self) -> str:
        """Return this as indented, stable JSON, the contract as ``Contract.to_json`` has it."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["contract"] = json.loads(self.contract.to_json())
        plain["profiles"] = [asdict(profile) for profile in self.profiles]
        plain["plugins"] = [asdict(plugin) for plugin in self.plugins]
        return json.dumps(plain, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> EngineSidecar:
        """Read :meth:`to_json`'s form.

        Raises:
            ContractError: The text is something else, or of a newer schema.
        """
        data = read_json(text)
        schema = other_schema(data, SCHEMA)
        if schema is not None:
            raise ContractError(
                f"the description of the engine has schema {schema}, this version reads {SCHEMA}",
                hint="upgrade stateful-pipeline, or build the engine again",
            )
        try:
            return _sidecar(data)
        except ContractError as error:
            raise ContractError(
                f"not the description of an engine: {error.message}", hint=error.hint
            ) from error


def sidecar_path(engine: Path) -> Path:
    """Return where the description of an engine is: ``model.engine.json``."""
    return engine.with_name(engine.name + SUFFIX)


def read_sidecar(engine: Path) -> EngineSidecar:
    """Return the description beside an engine file.

    Raises:
        ContractError: The engine or its description is missing, or cannot be read.
    """
    if not engine.is_file():
        raise ContractError.in_file(engine, "there is no such engine file")
    path = sidecar_path(engine)
    try:
        return EngineSidecar.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ContractError.in_file(
            engine,
            f"the engine has no description beside it ({path.name})",
            "copy both files; a target with `runtime: tensorrt` leaves them in `targets/`",
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError.in_file(path, f"it cannot be read: {error}") from error
    except ContractError as error:
        raise ContractError.in_file(path, error.message, error.hint) from error


def engine_sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def host_platform() -> str:
    """Return what a description calls the platform of this machine."""
    return f"{platform.system()}_{platform.machine()}".lower()


def check_engine(sidecar: EngineSidecar, path: Path, library: Any, capability: str) -> None:
    """Check, before it is loaded, that an engine can run here.

    Args:
        sidecar: What :func:`read_sidecar` gave.
        path: The engine file.
        library: The module ``tensorrt`` or ``tensorrt_rtx``.
        capability: The compute capability of the GPU, as ``"8.9"``.

    Raises:
        ContractError: The file is not the one that was described: another build, or half copied.
        TargetError: The library, its version, the platform, the GPU or a plugin is another.
    """
    _check_file(sidecar, path)
    _check_library(sidecar, library)
    wanted = sidecar.compute_capabilities
    if wanted and capability not in wanted:
        raise TargetError(
            f"the engine was built for GPUs of compute capability {', '.join(wanted)}, "
            f"this one has {capability}",
            target=sidecar.library,
            hint="build the engine on, or for, a GPU of this kind",
        )
    for plugin in sidecar.plugins:
        _check_plugin(plugin, library, sidecar.library)


def _check_file(sidecar: EngineSidecar, path: Path) -> None:
    found = engine_sha256(path)
    if found != sidecar.sha256:
        raise ContractError.in_file(
            path,
            f"the engine is not the one that {sidecar_path(path).name} describes: its sha256 "
            f"begins with {found[:12]}, not {sidecar.sha256[:12]}",
            "one of the files is of another build, or was copied in part: copy both again",
        )


def _check_library(sidecar: EngineSidecar, library: Any) -> None:
    name, version = library.__name__.partition(".")[0], str(library.__version__)
    if name != sidecar.library:
        raise TargetError(
            f"the engine is of {sidecar.library}, which cannot be run with {name}",
            target=sidecar.library,
        )
    if version != sidecar.version and not (
        sidecar.version_compatible and _serves(version, sidecar.version)
    ):
        raise TargetError(
            f"the engine was built by version {sidecar.version}, and this is {version}: engines "
            "run only in the version that built them",
            target=sidecar.library,
            hint=f"install {sidecar.library} {sidecar.version}, or build the engine again",
        )
    # Engines of TensorRT for RTX run on any platform that it has.
    here = host_platform()
    if name == "tensorrt" and sidecar.host and sidecar.host != here:
        raise TargetError(
            f"the engine was built on {sidecar.host}, and this is {here}",
            target=sidecar.library,
            hint="build the engine on this platform",
        )


def _serves(version: str, built: str) -> bool:
    """Whether a version runs what an older one built: the same major version, and no older."""
    have, need = (
        [int(part) for part in text.split(".") if part.isdecimal()] for text in (version, built)
    )
    return have[:1] == need[:1] and have >= need


def _check_plugin(plugin: EnginePlugin, library: Any, target: str) -> None:
    registry = library.get_plugin_registry()
    if registry.get_creator(plugin.name, plugin.version, plugin.namespace) is None:
        full = f"{plugin.namespace}::{plugin.name}" if plugin.namespace else plugin.name
        raise TargetError(
            f"the engine calls the plugin {full}, version {plugin.version}, which is not "
            "registered",
            target=target,
            hint="load its library, or import its Python module, before the runner is made",
        )


_SIDECAR = {
    "library": one_of(LIBRARIES), "version": NAME, "sha256": NAME, "contract": MAPPING,
    "profiles": LIST, "compute_capabilities": list_of(NAME), "plugins": LIST, "precision": TEXT,
    "host": TEXT, "version_compatible": FLAG, "schema": SIZE,
}  # fmt: skip
_PROFILE = {"name": TEXT, "ranges": MAPPING}
_PLUGIN = {"name": NAME, "version": TEXT, "namespace": TEXT}


def _sidecar(data: Any) -> EngineSidecar:
    found = checked(data, _SIDECAR)
    profiles, plugins = found["profiles"], found["plugins"]
    return EngineSidecar(
        **{
            **found,
            "contract": contract_of(found["contract"]),
            "profiles": tuple(_profile(p, f"profiles.{i}") for i, p in enumerate(profiles)),
            "plugins": tuple(
                EnginePlugin(**checked(p, _PLUGIN, f"plugins.{i}")) for i, p in enumerate(plugins)
            ),
            "compute_capabilities": tuple(found["compute_capabilities"]),
        }
    )


def _profile(item: Any, where: str) -> EngineProfile:
    found = checked(item, _PROFILE, where)
    ranges = found["ranges"]
    shapes = checked(ranges, dict.fromkeys(ranges, list_of(list_of(SIZE))), f"{where}.ranges")
    for name, three in shapes.items():
        if len(three) != 3:
            raise ContractError(f"{where}.ranges.{name} has {len(three)} shapes, and should have 3")
    return EngineProfile(
        found["name"],
        {name: (tuple(a), tuple(b), tuple(c)) for name, (a, b, c) in shapes.items()},
    )
