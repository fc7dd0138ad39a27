"""``to`` in TorchScript: the tensor itself where nothing changes, else a copy of a known dtype."""

import pytest
import torch
from torch import nn

from stateful_pipeline.model import jit
from stateful_pipeline.model.jit import quiet_scripting


class Moved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))


class ToDevice(Moved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = torch.cat([self.h.to(x.device), x])[-1:]
        return self.h + x


class WrittenThrough(Moved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.h.to(x.device)
        h.add_(x.sum(0))
        return self.h + x


class ToDeviceAndDtype(Moved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.h.to(x.device, torch.float64)
        h.add_(1.0)  # a copy: the state is not written to
        self.h = self.h * 0.5 + x.sum(0)
        return (h + self.h).float()


class CopiedToDevice(Moved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.h.to(x.device, copy=True)
        h.add_(1.0)
        self.h = self.h * 0.5 + x.sum(0)
        return h + self.h


class ToDtypeOfHalf(Moved):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x.sum(0).to(torch.float16).to(x.device, torch.float32)
        return self.h + x


@pytest.mark.parametrize(
    "cls", [ToDevice, WrittenThrough, ToDeviceAndDtype, CopiedToDevice, ToDtypeOfHalf]
)
@pytest.mark.parametrize("is_scripted", [False, True])
def test_a_conversion_is_followed(roll, cls, is_scripted) -> None:
    module = cls().eval()
    if is_scripted:
        with quiet_scripting():
            module = torch.jit.script(module)
    contract = roll(module)
    assert [state.name for state in contract.states] == ["h"]


def test_the_overloads_of_torchscript_alone_are_met() -> None:
    with quiet_scripting():
        graph = jit.inlined_graph(torch.jit.script(ToDevice()), "forward")
    (node,) = graph.findAllNodes("aten::to")
    assert jit.schema_of(node).overload_name == "prim_Device"
