"""`regard compare`: models × attentions × seeds on one task; a table, files, and a report."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from regard_workbench.cli.common.settings import add_settings, given_settings
from regard_workbench.cli.common.terminal import tell

if TYPE_CHECKING:
    from types import TracebackType

    from jsonargparse import Namespace
    from rich.progress import Progress, TaskID

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.comparison.comparison import Comparison
    from regard_workbench.comparison.engines.engine import Event
    from regard_workbench.comparison.job import Job

SUMMARY = "Train several models on a task side by side, with the same data, budget and seeds; a table and a report."
EXAMPLES = (
    "regard compare",
    "regard compare dates --models seq2seq,transformer --seeds 5 --steps 2000",
    'regard compare language --data book.txt --models decoder --attention "causal,local(window=65),linear"',
    "regard compare copy --models ntm,lstm-attention --sweep 8 --budget 90s --out runs/copy-race",
)

FAILED = 1
SINGLE = ("model", "attention", "seed", "out", "name")  # settings of one run, not of a comparison
OWN = (
    "models",
    "attention",
    "seeds",
    "sweep",
    "space",
    "out",
    "engine",
    "address",
    "workers",
    "threads",
    "beam",
    "timeout",
    "heartbeat",
    "match",
    "target",
    "columns",
)
SECONDS_BETWEEN_LINES = 10.0
NEWS = {"began": "begins", "silent": "silent", "again": "again", "done": "done", "failed": "FAILED"}


def add_arguments(parser: Parser) -> None:
    """Declare the options: what to compare and where, and every setting the runs share."""
    models = "names joined by commas, or all (default: those of the task's recipe)"
    parser.add_argument("--models", type=str, metavar="A,B", help=models)
    attention = "attentions to put into each model, joined by commas, or all (default: each model's own)"
    parser.add_argument("--attention", type=str, metavar="X,Y", help=attention)
    seeds = "how many seeds (3: 0, 1, 2), or a list of them (0,7,11)"
    parser.add_argument("--seeds", type=str, default="3", metavar="N", help=seeds)
    tuning = "tune each model with so many trials first, by validation alone"
    parser.add_argument("--sweep", type=int, default=0, metavar="N", help=tuning)
    space = "the search space of --sweep: NAME=LOW..HIGH, NAME=LOW..HIGH:log or NAME=A|B, joined by commas"
    parser.add_argument("--space", type=str, metavar="SPACE", help=space)
    out = "the folder of the comparison; repeat the command to resume it (default: one inside runs)"
    parser.add_argument("--out", type=str, metavar="DIR", help=out)
    parser.add_argument("--engine", choices=["local", "ray"], default="local", help="what runs the runs")
    address = "of the Ray cluster (default: a new one on this machine)"
    parser.add_argument("--address", type=str, metavar="HOST", help=address)
    workers = "runs at once (default: as many as there are cores; one on a GPU)"
    parser.add_argument("--workers", type=int, metavar="N", help=workers)
    parser.add_argument("--threads", type=int, metavar="N", help="of each run (default: 1 where several run)")
    beam = "generate with a beam of N for the test (default: greedily)"
    parser.add_argument("--beam", type=int, metavar="N", help=beam)
    timeout = "stop a run that takes longer, for instance 90s or '2 hours'; the others continue (default: never)"
    parser.add_argument("--timeout", type=str, metavar="TIME", help=timeout)
    heartbeat = "stop a run that makes no progress, not one batch, for so long (default: 30 min)"
    parser.add_argument("--heartbeat", type=str, metavar="TIME", help=heartbeat)
    match = (
        "choose widths at which all contestants have the same size within 5 %% (default: parameters for the models of "
        "the task's recipe, none for models that you name)"
    )
    parser.add_argument("--match", choices=["parameters", "flops", "none"], help=match)
    target = "the validation score for steps-to-target and seconds-to-target (default: the best that every run reaches)"
    parser.add_argument("--target", type=str, metavar="SCORE", help=target)
    columns = (
        "the columns of the table, joined by commas, or all: speed, validation, test (these by default), "
        "steps-to-target, seconds-to-target, width, parameters, batch, flops, memory, steps, seconds, seeds, "
        "validation.METRIC, test.METRIC"
    )
    parser.add_argument("--columns", type=str, metavar="A,B", help=columns)
    paired = "also print the difference of each pair of contestants on the test, with its interval over seeds"
    parser.add_argument("--differences", action="store_true", help=paired)
    add_settings(parser, less=(*SINGLE, "init_from"))
    origin = (
        "a run whose matching weights all contestants begin with; several, joined by commas, are compared, scratch "
        "(random weights) among them: scratch,runs/pretrained"
    )
    parser.add_argument("--init-from", type=str, metavar="RUN", help=origin)
    parser.add_argument("--json", action="store_true", help="the rows as JSON on stdout")


def run(options: Namespace) -> int:
    """Compare and print. 0, 1 if a run failed, 2 for a wrong call, 128 + n after signal n."""
    from regard_workbench.comparison.compare import compare
    from regard_workbench.comparison.engines.stopped import ClusterLost, Stopped
    from regard_workbench.comparison.plan import make_plan
    from regard_workbench.training.run_folder.durable import StorageFailed

    settings = given_settings(options, less=(*OWN, "differences", "json"))
    command = shlex.join(["regard", *sys.argv[1:]])
    plan = make_plan(settings, **{name: options[name] for name in OWN}, command=command)
    try:
        with ProgressDisplay() as display:
            comparison = compare(plan, display.on_event, display.tell)
    except Stopped as stopped:
        for job in stopped.unsaved:
            tell(f"{name_of(job)} did not stop when asked and was killed; it resumes from its last checkpoint.")
        saved = "the other runs are saved" if stopped.unsaved else "the runs are saved"
        tell(f"{stopped}: {saved}. To resume, repeat the command:\n  {plan.command}")
        return stopped.exit_code
    except (ClusterLost, StorageFailed) as trouble:
        tell(f"regard compare: {trouble}")
        return FAILED
    if options.json:
        print(json.dumps(comparison.rows, indent=1, ensure_ascii=False))
    else:
        _show(comparison, options.differences)
    return FAILED if any(outcome.error for outcome in comparison.outcomes) else 0


def _show(comparison: Comparison, differences: bool) -> None:
    from rich.text import Text

    from regard_workbench.cli.common.console import console, put
    from regard_workbench.comparison import table
    from regard_workbench.comparison.comparison import DEFAULT_COLUMNS

    report = comparison.report
    if report.is_relative_to(Path.cwd()):
        report = report.relative_to(Path.cwd())
    title = Text.assemble((comparison.task, "bold"), f": {comparison.budget} each")
    rendered = table.render(comparison.rows, comparison.columns)
    more = "" if comparison.columns != DEFAULT_COLUMNS else "more columns: --columns all\n"
    compared = [table.render_pairs(comparison.pairs), Text("")] if differences else []
    put(console(), title, Text(""), rendered, Text(""), *compared, Text(f"{more}report: {report}"))


class ProgressDisplay:
    """Shows the events of a comparison on stderr: a bar for each run in a terminal, else plain lines."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.console = Console(stderr=True)
        self.bars: dict[str, TaskID] = {}  # by the run's folder
        self.printed: dict[str, float] = {}
        self.progress: Progress | None = None
        if self.console.is_terminal:
            self.progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress is not None:
            self.progress.stop()

    def tell(self, text: str) -> None:
        """Print a line, above the bars where there are some."""
        if self.progress is not None:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def on_event(self, event: Event) -> None:
        """Show what happened to a run."""
        if event.news != "step":
            line = f"{NEWS[event.news]:7} {name_of(event.job)}"
            self.tell(f"{line}: {event.text}" if event.text else line)
        elif self.progress is None and self._is_due(event.job):
            self.tell(f"        {name_of(event.job)}: step {event.step}")
        if self.progress is not None:
            self._update_bar(self.progress, event)

    def _update_bar(self, progress: Progress, event: Event) -> None:
        from regard_workbench.training.config import budget
        from regard_workbench.training.config.recipe import complete

        folder = event.job.folder
        if event.news in ("done", "failed"):
            if folder in self.bars:
                progress.remove_task(self.bars.pop(folder))
            if not self.bars:  # an empty display would keep printing empty lines
                progress.stop()
            return
        if folder not in self.bars:
            length = budget.budget_of(complete(event.job.settings))
            total = length.amount if length.kind == "steps" else None
            self.bars[folder] = progress.add_task(name_of(event.job), total=total)
            progress.start()
        progress.update(self.bars[folder], completed=event.step)

    def _is_due(self, job: Job) -> bool:
        instant = time.monotonic()
        due = instant - self.printed.setdefault(job.folder, instant) >= SECONDS_BETWEEN_LINES
        if due:
            self.printed[job.folder] = instant
        return due


def name_of(job: Job) -> str:
    """A run as its user knows it: contestant, seed, and the number of a trial."""
    trial = "" if job.test else f", {Path(job.folder).name}"
    return f"{job.contestant.label}, seed {job.seed}{trial}"
