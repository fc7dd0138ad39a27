"""A C++ process that cannot do what it is asked: a message and an exit code, never a core dump."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stateful_pipeline.errors import StageError
from stateful_pipeline.libraries import LoadedLibrary, run_infer, save

Script = Callable[[Any], Any]
Infer = Callable[..., subprocess.CompletedProcess[str]]


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x

    @torch.jit.export
    def fail(self, x: torch.Tensor) -> torch.Tensor:
        assert x.sum() < 0, "too much"
        return x


class Smoother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ring = torch.classes.stateful.TensorRing(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.ring.push(x)
        return self.ring.mean()


@pytest.fixture
def model(script: Script, tmp_path: Path) -> Path:
    save(script(Doubling()), tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.fixture
def smoother(ring: LoadedLibrary, script: Script, tmp_path: Path) -> Path:
    save(script(Smoother()), tmp_path / "smoother.pt")
    return tmp_path / "smoother.pt"


class Summing(nn.Module):
    def forward(self, xs: list[torch.Tensor], scales: dict[str, float]) -> torch.Tensor:
        return torch.stack(xs).sum(0) * scales["a"]


@pytest.mark.parametrize(
    "step",
    [([1, 2], {"a": 1.0}), ([torch.ones(2), "x"], {"a": 1.0}), ([torch.ones(2)], {"a": "b"})],
    ids=["ints", "mixed", "dict"],
)
def test_containers_of_the_wrong_elements_are_refused(
    script: Script, tmp_path: Path, cache: Path, step: Any
) -> None:
    save(script(Summing()), tmp_path / "summing.pt")
    good = ([torch.ones(2)], {"a": 2.0})
    done = run_infer(tmp_path / "summing.pt", [], [good], cache=cache)
    assert torch.equal(done.outputs[0], torch.full((2,), 2.0))
    with pytest.raises(StageError, match=r"step 0: forward\(\) Expected a value of type"):
        run_infer(tmp_path / "summing.pt", [], [step], cache=cache)


def test_missing_class_is_named(smoother: Path, cache: Path) -> None:
    with pytest.raises(StageError, match=r"class stateful\.TensorRing, which nobody registered"):
        run_infer(smoother, [], [torch.ones(2)], cache=cache)


def test_missing_operator_is_named(
    counter: LoadedLibrary, script: Script, tmp_path: Path, cache: Path
) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.counting.twice(x)

    save(script(Twice()), tmp_path / "twice.pt")
    inputs = [torch.ones(2)]
    with pytest.raises(StageError, match="operator counting::twice, which nobody registered"):
        run_infer(tmp_path / "twice.pt", [], inputs, cache=cache)
    done = run_infer(tmp_path / "twice.pt", [counter.path], inputs, cache=cache)
    assert torch.equal(done.outputs[0], torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["MODEL"], 2, "give either --inputs FILE or --string TEXT"),
        (["MODEL", "--string", "x", "--inputs", "f"], 2, "give either"),
        (["--string", "x"], 2, "no MODEL given"),
        (["MODEL", "OTHER", "--string", "x"], 2, "a second MODEL: 'OTHER'"),
        (["MODEL", "--strings", "x"], 2, "no option '--strings'"),
        (["MODEL", "--string"], 2, "--string takes a value"),
        (
            ["MODEL", "--string", "x", "--steps", "0"],
            2,
            "--steps takes a number from 1 on, not",
        ),
        (["MODEL", "--string", "x", "--steps", "3x"], 2, "not '3x'"),
        (["MODEL", "--string", "x", "--threads", "-1"], 2, "not '-1'"),
        (
            ["MODEL", "--string", "x", "--reset-method", "r"],
            2,
            "needs --reset-every",
        ),
        (["missing.pt", "--string", "x"], 2, "model missing.pt cannot be read"),
        (["MODEL", "--inputs", "missing.pt"], 2, "inputs missing.pt cannot be read"),
        (["MODEL", "--string", "x", "--library", "no.so"], 2, "library no.so: No such file"),
        (["MODEL", "--string", "x", "--library", "JUNK"], 3, "loading library"),
        (["JUNK", "--string", "x"], 3, "loading model"),
        (["MODEL", "--inputs", "JUNK"], 3, "inputs"),
        (["MODEL", "--inputs", "MODEL"], 3, "inputs"),
        (["MODEL", "--inputs", "TENSOR"], 3, "a Tensor, not a list of steps"),
        (["MODEL", "--inputs", "EMPTY"], 3, "not a list of steps"),
        (["MODEL", "--inputs", "GOOD", "--method", "nope"], 2, "has no method 'nope'"),
        (
            ["MODEL", "--inputs", "GOOD", "--reset-every", "1", "--reset-method", "nope"],
            2,
            "has no method 'nope'",
        ),
        (["MODEL", "--string", "x"], 3, "step 0: forward()"),
        (["MODEL", "--inputs", "GOOD", "--method", "fail"], 3, "too much"),
    ],
)
def test_wrong_call_or_file_ends_with_a_message(
    infer: Infer,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    files = {name: tmp_path / name.lower() for name in ("JUNK", "TENSOR", "EMPTY", "GOOD")}
    files["JUNK"].write_bytes(b"junk" * 100)
    torch.save(torch.ones(2), files["TENSOR"])
    torch.save([], files["EMPTY"])
    torch.save([(torch.ones(2),)], files["GOOD"])
    files["MODEL"] = model
    monkeypatch.chdir(tmp_path)
    done = infer(*(files.get(word, word) for word in arguments))
    assert done.stderr.startswith("infer: ")
    assert message in done.stderr
    assert (done.returncode, done.stdout) == (code, "")
    assert not list(tmp_path.glob("core*"))


def test_outputs_that_cannot_be_written_are_an_error(
    infer: Infer, smoother: Path, ring: LoadedLibrary, tmp_path: Path
) -> None:
    torch.save([torch.ones(2)], tmp_path / "in.pt")
    out = tmp_path / "no" / "where.pt"
    model = (smoother, "--library", ring.path, "--inputs", tmp_path / "in.pt", "--outputs", out)
    done = infer(*model)
    assert (done.returncode, done.stderr) == (2, f"infer: {out} cannot be written\n")


def test_string_that_is_asked_of_numbers_is_an_error(
    infer: Infer, script: Script, tmp_path: Path
) -> None:
    class Length(nn.Module):
        def forward(self, x: str) -> int:
            return len(x)

    save(script(Length()), tmp_path / "length.pt")
    done = infer(tmp_path / "length.pt", "--string", "abc")
    assert (done.returncode, done.stderr) == (3, "infer: the model returns a Int, not a string\n")


@pytest.mark.parametrize(
    ("harm", "code", "message"),
    [
        ("namespace", 3, "can be used to register the namespace my_classes"),
        ("class", 3, "my_classes.MyStackClass is already registered"),
        ("operator", 3, "my_classes::manipulate_instance"),
        ("throw", 3, "no licence found"),
        ("crash", 3, "crashed, signal 11"),
    ],
)
def test_library_that_does_harm_ends_with_a_message(
    infer: Infer, stack: LoadedLibrary, clash: Path, harm: str, code: int, message: str
) -> None:
    libraries = ("--library", stack.path, "--library", clash)
    done = infer("model.pt", *libraries, "--string", "x", CLASH=harm)
    assert done.stderr.startswith(f"infer: loading library {clash}: ")
    assert message in done.stderr
    assert done.returncode == code


def test_process_that_ends_in_silence_is_an_error(
    clash: Path, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLASH", "exit")
    with pytest.raises(StageError, match="ended with code 7 and said nothing"):
        run_infer(model, [clash], [()], cache=cache)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("Unsaved", "step 0"), ("Counter", "what the model returned in a C\\+\\+ process")],
)
def test_object_is_no_output(
    counter: LoadedLibrary, script: Script, tmp_path: Path, cache: Path, kind: str, message: str
) -> None:
    class Gives(nn.Module):
        def forward(self, x: int) -> torch.classes.counting.Unsaved:
            return torch.classes.counting.Unsaved()

    class Returns(nn.Module):
        def forward(self, x: int) -> torch.classes.counting.Counter:
            return torch.classes.counting.Counter(x)

    save(script(Gives() if kind == "Unsaved" else Returns()), tmp_path / "gives.pt")
    with pytest.raises(StageError, match=message):
        run_infer(tmp_path / "gives.pt", [counter.path], [1], cache=cache)
