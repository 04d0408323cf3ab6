"""`regard attack`: the accuracy of a trained classifier under attack, and how far its attention moved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from regard.errors import BadValue
from regard_workbench.cli.common.loading import add_checkpoint, add_device, add_run
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.attacks.report import AttackReport
    from regard_workbench.attacks.settings import AttackSettings
    from regard_workbench.cli.common.parser import Parser

SUMMARY = "Attack a trained classifier of pictures or texts: accuracy for each budget, and how far its attention moved."
EXAMPLES = (
    "regard attack runs/digits-1 --method pgd --eps 0.01,0.03,0.1",
    "regard attack runs/digits-1 --method attention --places 2 --against runs/digits-2 --figure attack.svg",
)

Number = TypeVar("Number", int, float)


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser)
    method = (
        "fgsm or pgd: all pixels, by gradients; words: replace words by near ones; attention: only the positions that "
        "are attended to most, beside random ones and those of the largest gradient (default: pgd, for texts words)"
    )
    parser.add_argument("--method", choices=["fgsm", "pgd", "attention", "words"], help=method)
    eps = "budgets, joined by commas: how far a picture may move (0.01,0.03,0.1); for texts, the share of its words"
    parser.add_argument("--eps", type=str, metavar="E,…", help=eps)
    norm = "what --eps limits: each pixel (linf), or the length of the whole change (l2) (default: linf)"
    parser.add_argument("--norm", choices=["linf", "l2"], help=norm)
    parser.add_argument("--steps", type=int, metavar="N", help="steps of pgd (default: 40)")
    parser.add_argument("--step-size", type=float, metavar="A", help="length of a step (default: 2.5 · eps / steps)")
    parser.add_argument("--restarts", type=int, metavar="N", help="random starts; the strongest counts (default: 1)")
    parser.add_argument("--start", choices=["random", "clean"], help="where pgd starts (default: random)")
    places = "with --method attention: how many positions of a picture are attacked (default: a quarter of them)"
    parser.add_argument("--places", type=int, metavar="N", help=places)
    words = "budgets for texts, joined by commas: how many words may be replaced (default: 1,2,3)"
    parser.add_argument("--words", type=str, metavar="N,…", help=words)
    nearest = "replace a word only by one of its N nearest, by the cosine of the model's vectors (default: 16)"
    parser.add_argument("--nearest", type=int, metavar="N", help=nearest)
    parser.add_argument("--cosine", type=float, metavar="C", help="only where the cosine is at least C (default: 0)")
    against = "another run, attacked in the same way and put beside it; may come several times"
    parser.add_argument("--against", type=str, action="append", metavar="RUN", help=against)
    figure = "draw one example before and after into this file (.svg, .pdf, .png), with the attention to it"
    parser.add_argument("--figure", type=str, metavar="FILE", help=figure)
    data = "other files than the run's, joined by commas; a single file is attacked as a whole"
    parser.add_argument("--data", type=str, metavar="PATH", help=data)
    parser.add_argument("--split", choices=["train", "validation", "test"], default="test", help="which examples")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of random starts and random places")
    parser.add_argument("--batch-size", type=int, metavar="N", help="examples at once (default: 64)")
    add_checkpoint(parser)
    add_device(parser)
    parser.add_argument(
        "--keep", action="store_true", help="store the result in the run's folder; reports of compare show it"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(options: Namespace) -> int:
    """Attack and print. 0, 2 for a wrong call, 1 for a damaged checkpoint."""
    from regard_workbench.attacks.attack import attack_runs
    from regard_workbench.cli.common.console import progress

    settings = _settings(options)
    with progress("attacking") as on_progress:
        report = attack_runs(
            [options.run, *(options.against or ())],
            settings,
            options.split,
            checkpoint=options.checkpoint,
            data=options.data,
            device=options.device,
            batch_size=options.batch_size,
            limit=options.limit,
            on_progress=on_progress,
        )
    if options.keep:
        for path in report.keep():
            tell(f"kept {path}")
    if options.figure is not None:
        _draw(report, Path(options.figure))
    if options.json:
        print(json.dumps(report.to_dict(), indent=1, ensure_ascii=False))
    else:
        _show(report)
    return 0


def _settings(options: Namespace) -> AttackSettings:
    from regard_workbench.attacks.settings import AttackSettings

    same = ("method", "norm", "steps", "step_size", "restarts", "start", "places", "nearest", "cosine", "seed")
    return AttackSettings(
        **{name: options[name] for name in same},
        eps=None if options.eps is None else tuple(_numbers("eps", options.eps, float)),
        words=None if options.words is None else tuple(_numbers("words", options.words, int)),
    )


def _numbers(name: str, text: str, read: type[Number]) -> list[Number]:
    """Numbers that are joined by commas."""
    try:
        return [read(number) for number in text.split(",")]
    except ValueError:
        kind = "whole numbers" if read is int else "numbers"
        raise BadValue(f"{name}: expected {kind} joined by commas, got {text!r}.") from None


def _draw(found: AttackReport, path: Path) -> None:
    try:
        found.figure().savefig(path, dpi=160)
    except (OSError, ValueError) as trouble:  # no such folder; a format that matplotlib does not know
        raise BadValue(f"figure: {str(path)!r} cannot be written: {trouble}. Try name.svg.") from None


def _show(found: AttackReport) -> None:
    from rich.table import Table
    from rich.text import Text

    from regard_workbench.cli.common.console import console, put

    out = console()
    for run in found.runs:
        differences = None if run is found.runs[0] else found.differences(run)
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        table.add_column("budget", no_wrap=True)
        table.add_column("accuracy (95 % interval)", no_wrap=True)
        if differences is not None:
            table.add_column("first − this, points", no_wrap=True)
        table.add_column("moved, bits")
        rows = [("none", run.clean, ""), *((row.budget, row.accuracy, _moved(row.moved)) for row in run.rows)]
        for number, (budget, accuracy, moved) in enumerate(rows):
            points = [] if differences is None else [differences[number].points]
            table.add_row(budget, str(accuracy), *points, moved)
        title = Text.assemble((run.run, "bold"), f": {run.task}, {run.name}")
        put(out, title, Text(f"{run.split}, {len(run.right):,} examples, {run.checkpoint}", "dim"), Text(""), table)
        example = next((row.examples[0] for row in run.rows if row.examples), None)
        if example is not None:
            put(out, Text(""), Text(printable(f"{example.label}: {example.before}")))
            put(out, Text(printable(f"{example.predicted}: {example.after}")))
        put(out, Text(""))
        for note in run.notes:
            tell(f"note: {note}.")
    put(out, Text(_said(found), "dim"))
    for note in found.notes:
        tell(f"note: {note}.")


def _moved(moved: dict[str, float]) -> str:
    return "  ".join(f"{value:.3f}" for value in moved.values())


def _said(found: AttackReport) -> str:
    """The settings in one line, and which layers the columns are."""
    settings = {name: value for name, value in found.plan.described().items() if value is not None}
    written = ", ".join(f"{name} {value}" for name, value in settings.items())
    layers = "; ".join(dict.fromkeys(", ".join(run.layers) for run in found.runs if run.layers))
    moved = f". Moved: Jensen–Shannon divergence of the attention of {layers}" if layers else ""
    return printable(f"{written}{moved}.")
