"""`proxemics sweep`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from proxemics.training.sweep.run import Sweep


def sweep(
    plan: Annotated[Path, typer.Argument(help="YAML file: base, variants, seeds, and, if any, grid and search.")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the sweep; each run gets a folder in it.")],
    workers: Annotated[int | None, typer.Option("--workers", help="Runs at a time; default: one a device.")] = None,
    devices: Annotated[
        str, typer.Option("--devices", help="auto (every GPU, else the CPU), cpu, or e.g. 0,1.")
    ] = "auto",
    threads: Annotated[int | None, typer.Option("--threads", help="CPU threads of each run.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run only this variant; may be repeated.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Also run cells again that failed.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Write report.html for each run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")] = False,
) -> None:
    """Run a recipe for several variants and seeds, and choose settings on validation classes.

    Finished runs are never computed again and interrupted ones go on, however they ended; give the same command again.
    Several sweeps on one folder share its work.
    """
    from rich.console import Console

    from proxemics.cli.sweep_screen import Screen
    from proxemics.training.sweep.plan import load_plan
    from proxemics.training.sweep.queue import Queue
    from proxemics.training.sweep.run import Sweep
    from proxemics.training.sweep.slots import make_slots

    laid_out = Sweep(load_plan(plan), out, tuple(only or ()))
    if dry_run:
        show_plan(laid_out, Console())
        return
    slots = make_slots(devices, workers, threads)
    screen = Screen(Console(stderr=True), laid_out, quiet=quiet)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with screen:
            laid_out.run(Queue(out, slots, report=report, watcher=screen), retry_failed=retry_failed)
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on from the latest checkpoints.", err=True)
        raise typer.Exit(130) from None
    failed = [cell for cell in laid_out.wanted(laid_out.trials + laid_out.final) if cell.state == "failed"]
    show_outcome(laid_out, Console())
    if failed:
        typer.echo(
            f"{len(failed)} of the runs failed; mend the cause and give the command again with --retry-failed.",
            err=True,
        )
        raise typer.Exit(1)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def show_plan(laid_out: Sweep, console: Console) -> None:
    """List the runs in their order, and what is known of each."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from proxemics.training.sweep.cells import read_failure

    cells = laid_out.wanted(list({cell.name: cell for cell in laid_out.trials + laid_out.final}.values()))
    table = Table(
        title=f"Runs of {laid_out.out}", title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD
    )
    for name in ("", "run", "seed", "epochs", "state"):
        table.add_column(name, justify="right" if name in ("", "seed", "epochs") else "left")
    states: dict[str, int] = {}
    for number, cell in enumerate(cells, 1):
        states[cell.state] = states.get(cell.state, 0) + 1
        state = f"failed: {read_failure(cell).get('error', '')}" if cell.state == "failed" else cell.state
        row = [str(number), cell.name, str(cell.seed), str(cell.config.train.epochs)]
        table.add_row(*row, Text(state))
    console.print(table)
    summary = ", ".join(f"{count} {state}" for state, count in states.items())
    console.print(f"{len(cells)} runs: {summary}.", highlight=False)
    if laid_out.trials and not laid_out.final:
        console.print(
            f"These are the trials. Then the best settings of each variant, by the validation classes of "
            f"{_seeds(laid_out.search_seeds)}, run on {_seeds(laid_out.plan.seeds)}.",
            highlight=False,
        )


def _seeds(numbers: Sequence[int]) -> str:
    return f"seed{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def show_outcome(laid_out: Sweep, console: Console) -> None:
    """Print what was chosen and the comparison of the runs that count."""
    from proxemics.cli.compare import show_comparison
    from proxemics.core.errors import ProxemicsError
    from proxemics.report.compare import compare
    from proxemics.report.compare_runs import read_runs
    from proxemics.training.sweep.cells import short

    for (dataset, variant), choice in laid_out.choices.items():
        where = f"{dataset}, {variant}" if dataset else variant
        console.print(
            f"{where}: {short(choice.settings) or 'as it is'}, best of {choice.trials} on the validation classes "
            f"({100 * choice.value:.1f})",
            highlight=False,
            markup=False,
        )
    if any(cell.state == "done" for cell in laid_out.final):
        try:
            show_comparison(compare(read_runs([str(laid_out.out)])), console)
        except ProxemicsError as error:  # the runs are safe; only this table is not to be had
            sys.stderr.write(f"No table: {error}\n")
        console.print(f"Rows:   {laid_out.out / 'sweep.jsonl'}", highlight=False, markup=False, soft_wrap=True)
        line = f"Next:   proxemics compare {laid_out.out} --out comparison.html"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
