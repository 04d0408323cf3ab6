"""`regard evaluate`: every metric of a run's task on a split, and a signature of what was evaluated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from regard_workbench.cli.common.loading import add_checkpoint, add_device, add_run

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.comparison.evaluate import Evaluation

SUMMARY = "Measure a trained run on a split: every metric of its task, with what exactly was measured."
EXAMPLES = (
    "regard evaluate runs/dates-1",
    "regard evaluate runs/book-1 --data other.txt --split test --checkpoint last --json",
)


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser)
    data = "other files than the run's, joined by commas; a single file is measured as a whole"
    parser.add_argument("--data", type=str, metavar="PATH", help=data)
    parser.add_argument("--split", choices=["train", "validation", "test"], default="test", help="which examples")
    add_checkpoint(parser)
    add_device(parser)
    parser.add_argument("--batch-size", type=int, metavar="N", help="examples at once; as in training by default")
    parser.add_argument("--beam", type=int, metavar="N", help="generate with a beam of N (default: greedily)")
    penalty = "with --beam: divide the log-probability of a text by its length to the power A (default: the task's, 1)"
    parser.add_argument("--length-penalty", type=float, metavar="A", help=penalty)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N examples")
    bad = "at a picture that cannot be read: stop, or skip it and say so (default: as in training)"
    parser.add_argument("--bad-files", choices=["stop", "skip"], help=bad)
    parser.add_argument("--json", action="store_true", help="metrics and signature as JSON on stdout")


def run(options: Namespace) -> int:
    """Measure and print. 0, 2 for a wrong call, 1 for a damaged checkpoint."""
    from regard_workbench.cli.common.console import progress
    from regard_workbench.comparison.evaluate import evaluate_run

    with progress("measuring") as on_progress:
        evaluation = evaluate_run(
            options.run,
            options.split,
            checkpoint=options.checkpoint,
            data=options.data,
            device=options.device,
            batch_size=options.batch_size,
            beam=options.beam,
            length_penalty=options.length_penalty,
            limit=options.limit,
            bad_files=options.bad_files,
            on_progress=on_progress,
        )
    if options.json:
        print(json.dumps(evaluation.to_dict(), indent=1, ensure_ascii=False))
    else:
        _show(evaluation)
    return 0


def _show(found: Evaluation) -> None:
    from rich.table import Table
    from rich.text import Text

    from regard_workbench.cli.common.console import console, put

    signature = found.signature
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("over", no_wrap=True)
    for row in found.metrics:
        value = "none" if row.value is None else f"{row.value:.6g}"
        deciding = "bold" if row.metric == found.decides else ""
        over = "" if row.count is None else f"{row.count:,} {row.of}"
        table.add_row(Text(row.metric, style=deciding), value, over)
    about = Table(box=None, pad_edge=False, show_header=False, padding=(0, 3, 0, 0))
    about.add_column(style="dim", no_wrap=True)
    about.add_column(overflow="fold")
    for name, text in _protocol(found).items():
        about.add_row(name, Text(text))
    title = Text.assemble((str(signature["run"]), "bold"), f": {signature['task']}, {signature['model']}")
    put(console(), title, Text(""), table, Text(""), about)


def _protocol(found: Evaluation) -> dict[str, str]:
    """How the metrics were measured, line by line."""
    from regard_workbench.tasks.formats.direction import Direction
    from regard_workbench.training.run_folder.changes import Change

    signature = found.signature
    data = ", ".join(signature["data"] or ["the task's own"])
    lines = {
        "split": f"{found.split}, {found.examples:,} examples",
        "data": f"{data} (sha256 {signature['data_sha256'][:12]})",
        "checkpoint": f"{signature['checkpoint']} (sha256 {signature['checkpoint_sha256'][:12]})",
    }
    if signature["direction"]:
        lines["direction"] = str(Direction(*signature["direction"]))
    if signature["changes"]:
        lines["changed on resume"] = "; ".join(str(Change(**row)) for row in signature["changes"])
    decoding = signature["decoding"]
    if decoding:
        width = f" of {decoding['beam']}" if "beam" in decoding else ""
        penalty = f", length penalty {decoding['length_penalty']:g}" if "length_penalty" in decoding else ""
        lines["decoding"] = f"{decoding['method']}{width}{penalty}, at most {decoding['max_length']} tokens"
    lines |= found.protocol
    lines["with"] = (
        f"regard {signature['regard']}, torch {signature['torch']}, {signature['device']}, {signature['dtype']}"
    )
    return lines
