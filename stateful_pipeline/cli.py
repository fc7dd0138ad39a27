"""The command line: parse, call, print, exit with one of the codes of :mod:`.outcome`.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException

from stateful_pipeline.errors import PipelineError, Place, SpecError
from stateful_pipeline.outcome import Exit, code_of, line_without_build, worst
from stateful_pipeline.signals import as_interrupts, forget
from stateful_pipeline.unasked_exit import unasked_exits_fail

if TYPE_CHECKING:
    from stateful_pipeline.spec.job import Planned
    from stateful_pipeline.terminal import Terminal


app = typer.Typer(
    name="pipeline",
    help="Turn stateful PyTorch modules into explicit-state engines, and prove them equal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Specs = Annotated[
    list[Path], typer.Argument(metavar="SPEC|JOB...", help="Spec or job files (YAML).")
]
OneSpec = Annotated[Path, typer.Argument(metavar="SPEC", help="A spec file (YAML).")]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="K=V", help="Override a key: targets.cpu.threads=2."),
]


class _State:
    """What holds for every command.

    Attributes:
        debug: Whether tracebacks are shown.
        owed: The file that is run, and whose line of JSON is still to come, if any.
    """

    debug = False
    owed: Path | None = None


def _debug_too(value: bool) -> bool:
    _State.debug = _State.debug or value
    return value


Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", callback=_debug_too)]


@app.callback()
def _options(debug: Debug = False) -> None:
    """Take what holds for every command."""


@app.command()
def run(
    specs: Specs,
    targets: Annotated[
        list[str], typer.Option("--target", metavar="NAME", help="Build only this target.")
    ] = [],  # noqa: B006 - typer makes a new list for each call
    overrides: Sets = [],  # noqa: B006
    first: Annotated[
        str,
        typer.Option("--from", metavar="STAGE", help="Take earlier stages from the last build."),
    ] = "script",
    last: Annotated[
        str, typer.Option("--to", metavar="STAGE", help="Stop after this stage.")
    ] = "log",
    out: Annotated[Path, typer.Option(help="Where builds go.")] = Path("build"),
    force: Annotated[bool, typer.Option("--force", help="Reuse nothing; not with --from.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One line of JSON per spec on stdout.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run all stages for all targets: script, rewrite, export, build, verify, benchmark, log."""
    codes: list[Exit] = []
    for path in specs:
        _State.owed = path if as_json else None
        runs = _run_file(path, overrides, _Asked(targets, first, last, out, force, as_json))
        for code, line in runs:
            codes.append(code)
            if as_json:
                _print_line(line)
        _State.owed = None
        if Exit.INTERRUPTED in codes:
            break
    raise typer.Exit(worst(codes))


@dataclass(frozen=True)
class _Asked:
    """What the call says about every spec that it runs."""

    targets: Sequence[str]
    first: str
    last: str
    out: Path
    force: bool
    as_json: bool


def _run_file(
    path: Path, overrides: Sequence[str], asked: _Asked
) -> Iterator[tuple[Exit, dict[str, Any]]]:
    """Run what ``path``, a spec or a job, asks for; yield exit code and JSON of each run."""
    try:
        from stateful_pipeline.spec import plan_runs
        from stateful_pipeline.terminal import Terminal

        terminal = Terminal(sys.stderr if asked.as_json else sys.stdout)
        for planned in plan_runs(path, overrides):
            code, line = _run_one(planned, asked, terminal)
            yield code, line
            if code is Exit.INTERRUPTED:
                return
    except PipelineError as error:
        _print_error(error)
        yield _no_outcome(path, error)
    except KeyboardInterrupt as interrupt:
        print("interrupted", file=sys.stderr)
        yield _no_outcome(path, interrupt)


def _no_outcome(path: Path, error: BaseException) -> tuple[Exit, dict[str, Any]]:
    """Return the code and the line of a run that came to no build."""
    code = code_of(error)
    text = str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
    if code is Exit.INTERRUPTED:
        text = "interrupted"
    return code, line_without_build(path, code, text)


def _print_line(line: dict[str, Any]) -> None:
    """Print a line of JSON; that nobody reads it changes nothing about the run."""
    try:
        print(json.dumps(line), flush=True)
    except BrokenPipeError:
        forget(sys.stdout)


def _run_one(planned: Planned, asked: _Asked, terminal: Terminal) -> tuple[Exit, dict[str, Any]]:
    """Run one spec; return its exit code and its line of JSON."""
    from stateful_pipeline.spec import check_spec
    from stateful_pipeline.stages.log import LogWorker

    worker: LogWorker | None = None
    try:
        spec = planned.load()
        terminal.title(spec.name, planned.path)
        check_spec(spec)  # says more, and sooner, than failing to construct the model
        if spec.mlflow.enabled:
            # Its own process loads MLflow while this one loads torch and runs the stages.
            worker = LogWorker(spec.mlflow.tracking_uri, (asked.out / "mlflow.db").absolute())
        from stateful_pipeline.runner import run_spec

        outcome = run_spec(
            spec,
            out=asked.out,
            targets=asked.targets,
            first=asked.first,
            last=asked.last,
            force=asked.force,
            gates=planned.gates,
            progress=terminal,
            worker=worker,
        )
    except PipelineError as error:
        _print_error(error)
        return _no_outcome(planned.path, error)
    except Exception as error:  # noqa: BLE001 - a fault in one spec must not stop the others
        _print_fault(error)
        return _no_outcome(planned.path, error)
    finally:
        if worker is not None:
            worker.close()
    if _State.debug and outcome.error is not None:
        traceback.print_exception(outcome.error, file=sys.stderr)
    terminal.verdict(outcome)
    return outcome.exit_code, outcome.line(planned.path)


@app.command()
def inspect(
    spec: OneSpec,
    overrides: Sets = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    debug: Debug = False,
) -> None:
    """List the model's states: how each is held, and where it is changed."""
    from stateful_pipeline.spec import load_spec

    loaded = load_spec(spec, overrides)
    from stateful_pipeline.inspection import inspect_spec
    from stateful_pipeline.terminal import Terminal

    found = inspect_spec(loaded)
    if as_json:
        print(json.dumps(found.plain()))
    else:
        Terminal(sys.stdout).inspection(found)
    raise typer.Exit(Exit.FAILED if found.blockers else Exit.DONE)


@app.command()
def check(
    specs: Specs,
    overrides: Sets = [],  # noqa: B006
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Import and construct the model too.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Validate specs without importing, building or loading anything that could run code."""
    from stateful_pipeline.spec import check_spec, plan_runs

    codes = []
    for path in specs:
        try:
            for planned in plan_runs(path, overrides):
                spec = planned.load()
                check_spec(spec)
                if run_code:
                    from stateful_pipeline.stages.script.subject import prepare

                    prepare(spec)
        except PipelineError as error:
            _print_error(error)
            codes.append(code_of(error))
            continue
        print(f"{path}: good")
    raise typer.Exit(worst(codes))


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The spec's name; the file is NAME.yaml.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write NAME.yaml, a commented spec to start from."""
    from stateful_pipeline.spec import template

    text = template(name)
    path = Path(f"{name}.yaml")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SpecError(f"{path} exists already", hint="pass --force to overwrite it") from None
    except OSError as error:
        raise SpecError(f"cannot write {path}: {error}") from error
    print(f"wrote {path}; next: pipeline check {path} && pipeline run {path}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of specs."""
    from stateful_pipeline.spec.schema import schema_text

    print(schema_text(), end="")


@app.command()
def targets(
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
) -> None:
    """List what this machine can build and run, and why not."""
    from stateful_pipeline.available import available_targets
    from stateful_pipeline.terminal import Terminal

    rows = available_targets()
    if as_json:
        print(json.dumps([vars(row) for row in rows]))
    else:
        Terminal(sys.stdout).targets(rows)


def _print_error(error: PipelineError) -> None:
    sys.stdout.flush()
    print(f"error: {error}", file=sys.stderr)
    if _State.debug:
        traceback.print_exception(error, file=sys.stderr)


def _print_fault(error: BaseException) -> None:
    sys.stdout.flush()
    print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
    if _State.debug:
        traceback.print_exception(error, file=sys.stderr)
    elif isinstance(error, OSError):
        print("  the system refused this; --debug shows where", file=sys.stderr)
    else:
        print("  this is a fault of stateful-pipeline; --debug shows where", file=sys.stderr)


_COLLECT = (100_000, 20, 50)
"""How rarely Python looks for garbage: tracing makes millions of objects that live on, and looking
at them again and again takes a fifth of a run."""


def _print_unasked_exit(place: Place | None) -> None:
    """Say that something else than this command has ended the process."""
    error = PipelineError(
        "C++ code has ended the process by exit(), before all was done",
        place=place,
        hint="let it throw an exception instead, as TORCH_CHECK does",
    )
    _print_error(error)
    if _State.owed is not None:
        _print_line(line_without_build(_State.owed, Exit.FAILED, str(error)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; every error becomes a message and an exit code."""
    as_interrupts()
    gc.set_threshold(*_COLLECT)
    _State.debug, _State.owed = False, None
    with unasked_exits_fail(Exit.FAILED, _print_unasked_exit):
        _run_command(arguments)


def _run_command(arguments: Sequence[str] | None) -> NoReturn:
    try:
        result = app(args=arguments, standalone_mode=False)
        sys.exit(int(result or 0))
    except TyperException as error:
        show = getattr(error, "show", None)
        print(f"error: {error}", file=sys.stderr) if show is None else show()
        sys.exit(Exit.WRONG)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(Exit.INTERRUPTED)
    except PipelineError as error:
        _print_error(error)
        sys.exit(code_of(error))
    except BrokenPipeError:
        forget(sys.stdout)
        sys.exit(Exit.DONE)
    except Exception as error:  # noqa: BLE001 - the one boundary: no bare traceback reaches a user
        _print_fault(error)
        sys.exit(Exit.FAILED)


if __name__ == "__main__":
    main()
