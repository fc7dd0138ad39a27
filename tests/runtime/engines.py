"""Engines to test the runner with: of the stand-in, or of the real library where there is a GPU."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import fake_tensorrt
import pytest

from stateful_pipeline.errors import TargetError
from stateful_pipeline.profiles import plan_profiles
from stateful_pipeline.runtime.cuda_device import CudaDevice
from stateful_pipeline.runtime.tensorrt_sidecar import (
    EngineProfile,
    EngineSidecar,
    engine_sha256,
    host_platform,
    sidecar_path,
)
from stateful_pipeline.stages.build.tensorrt import ENGINE, build_engine


@dataclass
class Target:
    """What builds engines, and the device that they run on.

    Attributes:
        device: The device, or None for the GPU 0 of this machine.
        atol: How far results may lie from those of ONNX Runtime.
    """

    folder: Path
    device: object
    atol: float

    def build(self, model, contract, profiles=None, **facts):
        """Return the engine file for an ONNX file.

        Args:
            model: The ONNX file.
            contract: Its contract.
            profiles: Profile name to axis name to its range.
            facts: What the stand-in cannot find out itself: see ``fake_tensorrt.Plan``.
        """
        if self.device is None:
            if facts.get("late") and "tensorrt" not in importable():
                pytest.skip("TensorRT for RTX has no operators whose shapes depend on data")
            return build_real(model, contract, self.folder, profiles)
        return build_fake(model, contract, self.folder, profiles, **facts)


def build_real(model, contract, folder, profiles):
    """Build an engine with the library that is installed."""
    library = "tensorrt" if "tensorrt" in importable() else "tensorrt_rtx"
    planned = plan_profiles(contract, profiles)
    build_engine(model, contract, folder, library=library, profiles=planned)
    return folder / ENGINE


def build_fake(model, contract, folder, profiles=None, library="tensorrt", **facts):
    """Build an engine of the stand-in, and write what describes it."""
    planned = plan_profiles(contract, profiles)
    ranges = [{name: list(shapes) for name, shapes in plan.ranges.items()} for plan in planned]
    path = folder / "model.engine"
    path.write_bytes(fake_tensorrt.serialize(model, "11.1.0", ranges, **facts))
    sidecar = EngineSidecar(
        library=library,
        version="11.1.0",
        sha256=engine_sha256(path),
        contract=contract,
        profiles=tuple(EngineProfile(plan.name, plan.ranges) for plan in planned),
        compute_capabilities=("8.9",),
        host=host_platform(),
    )
    sidecar_path(path).write_text(sidecar.to_json(), encoding="utf-8")
    return path


def fake_target(folder, device, monkeypatch):
    """Return a target of the stand-in; the library is found under the name ``tensorrt``."""
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt.library())
    return Target(folder, device, atol=0.0)


def real_target(folder):
    """Return a target of this machine's GPU; skip the test, with the reason, if there is none."""
    if not importable():
        pytest.skip("neither tensorrt nor tensorrt_rtx is installed")
    try:
        CudaDevice()
    except TargetError as error:
        pytest.skip(f"no GPU: {error}")
    return Target(folder, None, atol=1e-4)


def importable():
    """Return which of the libraries can be imported."""
    return {name for name in ("tensorrt", "tensorrt_rtx") if find_spec(name) is not None}
