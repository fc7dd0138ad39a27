"""``export_onnx``: arguments by keyword, defaults, and outputs in tuples and dicts, also nested."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import stateful_pipeline as sp
from stateful_pipeline.errors import SpecError, StageError


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("h", torch.zeros(1, 3))

    def up(self, x: torch.Tensor) -> torch.Tensor:
        self.h = self.h * 0.5 + x
        return self.h


class Pair(NamedTuple):
    mean: torch.Tensor
    scale: torch.Tensor


class Masked(Cell):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, gain: float = 2.0):
        y = self.up(x) * gain
        if mask is not None:
            y = y * mask
        return y


class KeywordOnly(Cell):
    def forward(self, x: torch.Tensor, *, bias: torch.Tensor):
        return self.up(x) + bias


class Nested(Cell):
    def forward(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, list[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]:
        y = self.up(x)
        return y, {"a": [x + 1, y * 2], "b": [y]}, (x, y - 1)


class NamedTuples(Cell):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(self.up(x), x * 2)


class WithNone(Cell):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        return self.up(x), None, x


class Repeated(Cell):
    """The same tensor twice, an input, and a state as it is held."""

    def forward(self, x: torch.Tensor):
        y = self.up(x)
        return y, y, x, self.h


FRONTENDS = pytest.mark.parametrize("frontend", ["export", "torchscript"])
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn((2, 3), generator=GENERATOR)
MASK = torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def follow(module, path, args, kwargs, names, outputs) -> None:
    """Check outputs by name over some steps; ``names`` are those of the tensors that are given."""
    runner = sp.StatefulRunner(path)
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
    feeds = {name: value.numpy() for name, value in zip(names, tensors, strict=True)}
    with torch.no_grad():
        for _ in range(4):
            expected = flat(module(*args, **kwargs))
            got = runner.run(feeds)
            assert tuple(got) == outputs
            for name, value in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(got[name], value.numpy(), atol=1e-6)


def flat(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    return [tensor for item in items if item is not None for tensor in flat(item)]


@FRONTENDS
@pytest.mark.parametrize(
    ("args", "kwargs", "names"),
    [
        ((X,), {}, ["x"]),
        ((X,), {"mask": MASK}, ["x", "mask"]),
        ((X, MASK), {"gain": 0.5}, ["x", "mask"]),
        ((X, None, 0.5), {}, ["x"]),
        ((X,), {"mask": None, "gain": 0.5}, ["x"]),
        ((), {"mask": MASK, "x": X}, ["mask", "x"]),
    ],
)
def test_arguments_come_by_position_and_by_keyword(frontend, args, kwargs, names, path) -> None:
    module = Masked()
    axes = {name: {0: "batch"} for name in names}
    sp.export_onnx(module, args, path, kwargs=kwargs, dynamic_axes=axes, frontend=frontend)
    follow(module, path, args, kwargs, names, ("output",))


@FRONTENDS
def test_a_tensor_that_goes_by_keyword_alone_is_an_input(frontend, path) -> None:
    module, kwargs = KeywordOnly(), {"bias": MASK}
    axes = {"x": {0: "batch"}, "bias": {0: "batch"}}
    sp.export_onnx(module, (X,), path, kwargs=kwargs, dynamic_axes=axes, frontend=frontend)
    follow(module, path, (X,), kwargs, ["x", "bias"], ("output",))


def test_names_of_inputs_count_those_by_keyword(path) -> None:
    module, kwargs = Masked(), {"mask": MASK}
    axes = {"a": {0: "batch"}, "b": {0: "batch"}}
    sp.export_onnx(module, (X,), path, kwargs=kwargs, input_names=["a", "b"], dynamic_axes=axes)
    follow(module, path, (X,), kwargs, ["a", "b"], ("output",))


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((X,), {"x": X}, "multiple values"),
        ((X,), {"msak": MASK}, "unexpected keyword argument 'msak'"),
        ((X,), {"mask": [MASK]}, "argument mask is a list"),
        ((X, {"mask": MASK}), {}, "argument 1 is a dict"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args, kwargs, said, path) -> None:
    with pytest.raises(SpecError, match=said):
        sp.export_onnx(Masked(), args, path, kwargs=kwargs)
    assert not path.exists()


@FRONTENDS
@pytest.mark.parametrize(
    ("cls", "outputs"),
    [
        (Nested, ("output_0", "output_1.a_0", "output_1.a_1", "output_1.b_0", "output_2_0",
                  "output_2_1")),
        (NamedTuples, ("mean", "scale")),
        (WithNone, ("output_0", "output_2")),
        (Repeated, ("output_0", "output_1", "output_2", "output_3")),
    ],
)  # fmt: skip
def test_outputs_come_in_containers_of_containers(frontend, cls, outputs, path) -> None:
    module = cls()
    sp.export_onnx(module, (X,), path, dynamic_axes={"x": {0: "batch"}}, frontend=frontend)
    follow(module, path, (X,), {}, ["x"], outputs)


@FRONTENDS
def test_two_outputs_of_one_name_are_refused(frontend, path) -> None:
    class Clash(Cell):
        def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
            return {"a": [self.up(x)], "a_0": x}

    with pytest.raises(StageError, match="two tensors that are called 'a_0'"):
        sp.export_onnx(Clash(), (X,), path, frontend=frontend)
