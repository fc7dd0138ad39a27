"""What people see: progress while a run goes on, tables at its end.

On a terminal rich draws colours and a spinner; elsewhere the same is said in plain lines.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console as RichConsole
from rich.markup import escape
from rich.table import Table

from stateful_pipeline.errors import TargetError
from stateful_pipeline.report import show_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.status import Status

    from stateful_pipeline.available import TargetRow
    from stateful_pipeline.inspection import Inspection, StateRow
    from stateful_pipeline.outcome import Outcome
    from stateful_pipeline.stages.artifacts import TargetBuild

_MARKS = {
    "done": "[green]✓[/]",
    "reused": "[cyan]↺[/]",
    "failed": "[red]✗[/]",
    "interrupted": "[red]✗[/]",
    "skipped": "[dim]–[/]",
}
_WORDS = {True: "[green]PASSED[/]", False: "[red]FAILED[/]", None: "[yellow]not checked[/]"}


_UNFOLDED = 1000
"""Columns of a file or a pipe: no cell of a table is folded there, so that `grep` finds it."""


class Console(RichConsole):
    """A console whose reader may leave, as `| head` does, without harm to what is going on."""

    def on_broken_pipe(self) -> None:
        """Print nothing from here on; rich would end the process."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Terminal:
    """Prints to ``stream``; hears the progress of a run."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        width = None if stream.isatty() else _UNFOLDED
        self._console = Console(file=stream, highlight=False, soft_wrap=True, width=width)
        self._status: Status | None = None
        self._stage = ""

    def title(self, name: str, path: Path) -> None:
        """Say which spec is run."""
        self._console.print(f"[bold]{escape(name)}[/]  {escape(str(path))}")

    def begin(self, stage: str) -> None:
        """Start the spinner of ``stage``."""
        self._stage = stage
        if self._console.is_terminal:
            self._status = self._console.status(f"  {stage}")
            self._status.start()

    def say(self, text: str) -> None:
        """Show what goes on within the stage, where a spinner can show it."""
        if self._status is not None:
            self._status.update(f"  {self._stage}: {escape(text)}")

    def end(self, stage: str, status: str, seconds: float, error: str | None) -> None:
        """Say how ``stage`` ended."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if status in ("not asked", "not needed"):
            return
        mark = _MARKS.get(status, "?")
        note = "" if status == "done" else f"  {status}"
        self._console.print(f"  {mark} {stage:<10}{seconds:7.2f} s{note}")
        if error:
            for line in error.splitlines():
                self._console.print(f"      [red]{escape(line)}[/]")

    def verdict(self, outcome: Outcome) -> None:
        """Print the table of targets and where to look next."""
        table = Table("target", "verdict", "steps", "max error", "p50", "p95", "p99", "eager p50")
        for name, target in outcome.targets.items():
            verify, timed = target.verify or {}, target.benchmark or {}
            verdict = _verdict(target)
            table.add_row(
                escape(name),
                verdict,
                str(verify.get("steps", "–")),
                _number(verify.get("max_abs_error")),
                *(_ms(timed.get(key)) for key in ("p50_ms", "p95_ms", "p99_ms")),
                _ms(timed.get("eager", {}).get("p50_ms")),
            )
        if outcome.targets:
            self._console.print(table)
        for name, target in outcome.targets.items():
            self._explain(name, target)
        notes = outcome.summary.get("notes", {})
        for place in notes.get("rewrite", {}).get("never_raised", []):
            self._console.print(f"  [yellow]{escape(place)} may raise; an engine goes on there[/]")
        for graph in notes.get("script", {}).get("carried_graphs", []):
            self._console.print(f"  [yellow]{escape(graph)}[/]")
        self._left_by_reset(notes.get("script", {}).get("left_by_reset", ()))
        for gate in outcome.missed:
            self._console.print(f"  [red]gate missed: {escape(gate)}[/]")
        self._console.print(_verdict_line(outcome))
        self._where(outcome)

    def _left_by_reset(self, paths: Sequence[str]) -> None:
        """Say that the module's own reset takes a part of the state back, an engine's all of it."""
        for path in paths:
            said = f"the module's reset leaves '{path}' as it is; an engine's takes it back, too"
            self._console.print(f"  [yellow]{escape(said)}[/]")

    def _explain(self, name: str, target: TargetBuild) -> None:
        if target.error is not None:
            colour = "yellow" if isinstance(target.error, TargetError) else "red"
            self._console.print(f"  [{colour}]{escape(name)}: {escape(str(target.error))}[/]")
        bad = (target.verify or {}).get("first_bad")
        if bad:
            at = show_sizes(bad["sizes"])
            self._console.print(
                f"  [red]{escape(name)}: {bad['kind']} '{escape(bad['tensor'])}' is off from step "
                f"{bad['step']} on ({bad['mode']}, {at}, seed {bad['seed']}): expected "
                f"{bad['expected']}, got {bad['got']}[/]"
            )
            hint = (target.verify or {}).get("hint")
            if hint:
                self._console.print(f"  [red]  try: {escape(hint)}[/]")
        elif target.verify and not target.verify["reset"]["passed"]:
            self._console.print(f"  [red]{escape(name)}: reset does not restore the first steps[/]")
        for reason in target.owed:
            self._console.print(f"  [yellow]{escape(name)}: owed: {escape(reason)}[/]")

    def _where(self, outcome: Outcome) -> None:
        if outcome.kept is not None:
            kept = escape(str(outcome.kept))
            self._console.print(
                f"  [yellow]{kept} stays the build that was verified; this one was not:[/]"
            )
        folder = outcome.link if outcome.link is not None else outcome.folder
        self._console.print(f"  build   {folder}")
        if "report" not in outcome.stages:  # it is there where writing it did not fail
            self._console.print(f"  report  {folder / 'report.html'}")
        log = outcome.log
        if log is None:
            return
        if log.warning:
            self._console.print(f"  [yellow]mlflow  not logged: {escape(log.warning)}[/]")
            return
        self._console.print(f"  mlflow  {escape(log.url or log.tracking_uri)}")
        if log.ui_command:
            self._console.print(f"          after: {escape(log.ui_command)}")

    def inspection(self, found: Inspection) -> None:
        """Print a model's states, and what would block an export."""
        count = f"{len(found.states)} state{'' if len(found.states) == 1 else 's'}"
        self._console.print(f"[bold]{escape(found.module)}[/]: {count}")
        if found.reset is not None:
            self._console.print(f"initial values: as '{escape(found.reset)}' leaves them")
        self._left_by_reset(found.left_by_reset)
        self._states(found.states)
        for frontend, reason in found.frontends.items():
            chosen = ", and an export uses it" if frontend == found.frontend else ""
            said = f"captures the model{chosen}"
            if reason is not None:
                said = f"refuses it: {escape(reason)}"
            self._console.print(f"{frontend}: {said}")
        for graph in found.carried_graphs:
            self._console.print(f"[yellow]{escape(graph)}[/]")
        for blocker in found.blockers:
            told = blocker  # what front ends say is said above
            if found.frontends:
                other = None in found.frontends.values()
                told = f"{'the front end of the spec' if other else 'every front end'} refuses it"
            self._console.print(f"[red]blocks an export: {escape(told)}[/]")

    def _states(self, states: Sequence[StateRow]) -> None:
        """Print a line for each state, or two where the terminal is narrow."""
        if not states:
            return
        rows = [("state", "dtype", "shape", "initial", "held as", "changed")]
        rows += [(s.name, s.dtype, s.shape, s.initial, s.held, _change(s)) for s in states]
        widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
        if sum(widths) <= self._console.width:
            for row in rows:
                cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                self._console.print(escape("".join(cells).rstrip()))
            return
        for name, dtype, shape, initial, held, change in rows[1:]:
            self._console.print(escape(f"{name}  {dtype}  {shape}  {initial}"))
            self._console.print(escape(f"    {held}: {change}"))

    def targets(self, rows: Sequence[TargetRow]) -> None:
        """Print what this machine can build and run."""
        table = Table("runtime", "provider", "builds", "runs", "why not, and what to do")
        for row in rows:
            can = (_yes(row.builds), _yes(row.runs))
            table.add_row(row.runtime, row.provider, *can, escape(row.reason))
        self._console.print(table)


def _change(state: StateRow) -> str:
    """Say how a state is changed, and where: from the working directory, if the file is in it."""
    place = "" if state.changed is None else state.changed.removeprefix(f"{Path.cwd()}{os.sep}")
    if state.exercised:
        return f"{state.how} at {place}" if place else state.how
    return f"not seen to change; written at {place}" if place else "not seen to change"


def _verdict(target: TargetBuild) -> str:
    """Return the word for one target: what is absent here has not failed."""
    if isinstance(target.error, TargetError):
        return "[yellow]not available[/]"
    if target.error is not None:
        return _WORDS[False]
    return "[yellow]owed[/]" if target.owed else _WORDS[target.passed]


def _verdict_line(outcome: Outcome) -> str:
    match outcome.status:
        case "passed":
            explicit = outcome.summary.get("frontend") == "onnx"
            other = "the file with plain feeds" if explicit else "eager PyTorch"
            return f"[bold green]equal to {other}[/]"
        case "built":
            return "[bold]done; not verified[/]"
        case "interrupted":
            return "[bold yellow]interrupted[/]"
        case "owed":
            return "[bold yellow]a required target could not be checked here[/]"
        case "refused":
            return "[bold red]refused[/]"
    return "[bold red]failed[/]"


def _number(value: Any) -> str:
    return "–" if value is None else f"{float(value):.2g}"


def _ms(value: Any) -> str:
    return "–" if value is None else f"{value:.3f} ms"


def _yes(value: bool) -> str:
    return "[green]yes[/]" if value else "no"
