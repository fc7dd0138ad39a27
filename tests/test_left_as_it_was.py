"""However an export ends, the user's module, the process and the folder are as they were."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import stateful_pipeline as sp
from stateful_pipeline.errors import PipelineError, StageError
from stateful_pipeline.model.settings import settings_kept
from stateful_pipeline.model.snapshot import Snapshot


def load(name: str) -> ModuleType:
    """Load a file beside this one: test modules cannot import each other."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


awkward, pictures = load("awkward"), load("pictures")
FRONTENDS = ("export", "torchscript", "auto")


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    module = getattr(awkward, name)().eval()
    if name == "Parameters":
        module.linear.train()
    return module


@pytest.fixture(scope="module", autouse=True)
def _loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What PyTorch loads and sets up at the first export stays so."""
    for frontend in FRONTENDS:
        path = tmp_path_factory.mktemp("first") / "m.onnx"
        export(made("Buffers"), path=path, frontend=frontend)


@pytest.fixture
def unchanged(tmp_path, monkeypatch) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """A block at whose end all is as at its start, but for the files that it is told are new."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "folder"))

    @contextlib.contextmanager
    def block(*watched: object, new: tuple[str, ...] = ()) -> Iterator[None]:
        before, around = pictures.picture(*watched), pictures.world()
        yield
        for name in new:
            (tmp_path / name).unlink()
        changed = pictures.differences(before, pictures.picture(*watched))
        changed += pictures.differences(around, pictures.world())
        assert changed == []

    return block


def export(module: nn.Module, x: torch.Tensor | None = None, **options: Any) -> None:
    given = torch.ones(2, 3) if x is None else x
    options = {"path": "m.onnx", "dynamic_axes": {"x": {0: "batch"}}, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these modules do what PyTorch warns of
        sp.export_onnx(module, (given,), options.pop("path"), **options)


@contextlib.contextmanager
def failing(
    error: BaseException, when: Callable[[int, torch.Tensor], bool]
) -> Iterator[list[BaseException]]:
    """Raise ``error`` in the middle of the calls whose number and tensor ``when`` picks."""
    numbers = itertools.count(1)
    raised: list[BaseException] = []

    def hook(module: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(module, nn.Identity) and when(next(numbers), arguments[0]):
            raised.append(error)
            raise error

    handle = register_module_forward_hook(hook)
    try:
        yield raised
    finally:
        handle.remove()


def attempt(module: nn.Module, error: type[BaseException], **options: Any) -> BaseException | None:
    """Export and return what that raised, alive with its traceback, as a debugger would have it."""
    try:
        export(module, **options)
    except (error, PipelineError) as caught:
        return caught
    Path("m.onnx").unlink()
    return None


NAMES = [cls.__name__ for cls in awkward.AWKWARD]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, error) for name in NAMES for error in (ValueError, KeyboardInterrupt)),
        *(("Containers", error) for error in (SystemExit, MemoryError, StopIteration)),
    ],
)
def test_a_call_that_raises_half_way_leaves_no_trace(name, error, unchanged) -> None:
    module = made(name)
    for first in (1, 2, 4, 8):
        with (
            unchanged(module),
            failing(error("told to"), lambda number, _, first=first: number >= first) as raised,
        ):
            caught = attempt(module, error, frontend="torchscript")
        assert caught is not None
        assert "told to" in str(caught) or first > 2
        assert raised or first > 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["Containers", "Objects", "Views", "Created", "Enclosing"])
def test_raising_in_the_tracer_alone_leaves_no_trace(name, error, unchanged) -> None:
    module = made(name)
    with (
        unchanged(module),
        failing(error("told to"), lambda *_: torch.compiler.is_exporting()) as raised,
    ):
        caught = attempt(module, error, frontend="export")
    assert raised
    assert "told to" in str(caught)


@pytest.mark.parametrize("name", ["Containers", "Objects", "Views", "Created", "Enclosing"])
def test_raising_at_other_sizes_alone_leaves_no_trace(name, unchanged) -> None:
    module = made(name)
    with (
        unchanged(module),
        failing(ValueError("told to"), lambda _, tensor: tensor.shape[0] > 2) as raised,
    ):
        caught = attempt(module, ValueError)
    assert raised
    assert isinstance(caught, PipelineError)


REFUSED = ("Hooked", "Outside", "Rare", "Replacing")


@pytest.mark.parametrize(
    ("name", "frontend"),
    [
        *((name, frontend) for name in NAMES for frontend in ("export", "torchscript")),
        *((name, "auto") for name in ("Containers", "Hooked")),
    ],
)
def test_an_export_that_works_or_is_refused_leaves_no_trace(name, frontend, unchanged) -> None:
    module = made(name)
    with unchanged(module):
        caught = attempt(module, PipelineError, frontend=frontend)
    if frontend != "torchscript":
        assert (caught is not None) == (name in REFUSED)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Random", "random numbers"),
        ("OtherText", "'text'"),
        ("Decided", "refused"),
        ("NoForm", "no ONNX operator"),
        ("Impure", "differs from eager|refused"),
    ],
)
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_refusal_leaves_no_trace(name, said, frontend, unchanged) -> None:
    module = made(name)
    with unchanged(module):
        caught = attempt(module, PipelineError, frontend=frontend)
    assert re.search(said, str(caught))


@pytest.mark.parametrize("name", ["Uncopied", "OtherShape"])
def test_a_module_whose_copy_fails_or_whose_shape_changes_is_left_alone(name, unchanged) -> None:
    module = made(name)
    with unchanged(module):
        attempt(module, PipelineError, frontend="torchscript")


def test_arguments_that_do_not_fit_leave_no_trace(unchanged) -> None:
    module = made("Containers")
    wrong = (
        {"x": torch.ones(2, 4)},
        {"x": torch.ones(3, dtype=torch.int64)},
        {"dynamic_axes": {"x": {5: "batch"}}},
        {"dynamic_axes": {"y": {0: "batch"}}},
        {"states": {"nothing": {"init": "zeros"}}},
        {"states": {"h": {"shape": ["batch", 7]}}},
        {"input_names": ["a", "b"]},
        {"output_names": ["a", "b"]},
        {"opset": 3},
        {"frontend": "magic"},
    )
    for options in wrong:
        with unchanged(module), pytest.raises(PipelineError):
            export(module, **options)


@pytest.mark.parametrize("path", ["folder", "file/m.onnx", "file/deep/m.onnx"])
def test_a_file_that_cannot_be_written_leaves_no_trace(path, unchanged, tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    module = made("Views")
    with unchanged(module), pytest.raises(StageError, match="cannot write"):
        export(module, path=path, frontend="torchscript")


def test_a_model_that_turns_out_wrong_leaves_neither_file_nor_folder(
    unchanged, monkeypatch
) -> None:
    def refuse(*_: object) -> None:
        raise StageError("not equal", stage="export")

    monkeypatch.setattr("stateful_pipeline.api.check_draft", refuse)
    module = made("Views")
    with unchanged(module), pytest.raises(StageError, match="not equal"):
        export(module, path="new/deep/m.onnx", frontend="torchscript")


def test_an_earlier_file_stays_where_an_export_fails(unchanged) -> None:
    export(made("Views"))
    before = Path("m.onnx").read_bytes()
    module = made("NoForm")
    with unchanged(module), pytest.raises(StageError):
        export(module)
    assert Path("m.onnx").read_bytes() == before


def test_a_signal_at_any_moment_leaves_the_module_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # Python drops some interrupts
    module = made("Views")
    before = pictures.picture(module)
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    ends = set()
    try:
        for milliseconds in range(1, 240, 12):
            with settings_kept():
                signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
                try:
                    ends.add(type(attempt(module, KeyboardInterrupt, frontend="torchscript")))
                except KeyboardInterrupt:
                    ends.add(KeyboardInterrupt)  # it came when all was done
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert pictures.differences(before, pictures.picture(module)) == []
            Path("m.onnx").unlink(missing_ok=True)
            assert list(tmp_path.iterdir()) == []
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert KeyboardInterrupt in ends


def test_an_interrupt_while_the_module_is_put_back_waits_for_it(unchanged) -> None:
    module = made("Containers")

    def interrupt_at(number: int) -> Callable[..., None]:
        calls = itertools.count(1)

        def interrupt(frame: Any, event: str, argument: object) -> None:
            ours = frame.f_globals["__name__"].startswith("stateful_pipeline")
            if event == "call" and ours and next(calls) == number:
                raise KeyboardInterrupt

        return interrupt

    ends: list[str] = []
    for number in itertools.count(2, 31):  # the first call is that of restore itself
        with unchanged(module):
            snapshot = Snapshot(module)
            module(torch.ones(2, 3))
            sys.setprofile(interrupt_at(number))
            try:
                snapshot.restore()
                ends.append("restored")
            except KeyboardInterrupt:
                ends.append("interrupted")
            finally:
                sys.setprofile(None)
        if ends[-1] == "restored":
            break
    assert len(ends) > 10
