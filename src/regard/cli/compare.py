"""`regard compare`: models × attentions × seeds on one task; a table, files, and a report."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from regard.cli.pages.settings import add_settings, given_settings
from regard.cli.pages.terminal import tell
from regard.errors import BadValue
from regard.registry import parse, split

if TYPE_CHECKING:
    from regard.cli.parser import Parser
    from regard.comparison.compare import Plan
    from regard.comparison.comparison import Comparison

SUMMARY = (
    "Train several models on a task side by side, with the same data, budget and seeds; a table and a report."
)
EXAMPLES = (
    "regard compare",
    "regard compare dates --models seq2seq,transformer --seeds 5 --steps 2000",
    'regard compare language --data book.txt --models decoder --attention "causal,local(window=65),linear"',
    "regard compare copy --models ntm,lstm-attention --sweep 8 --budget 90s --out runs/copy-race",
)

FAILED = 1
DEFAULT_TASK = "digits"
SINGLE = ("model", "attention", "seed", "out", "name")  # settings of one run, not of a comparison
OWN = (
    "models", "attention", "seeds", "sweep", "space", "out", "engine", "address", "workers", "threads", "beam",
    "timeout", "heartbeat", "json",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Declare the options: what to compare and where, and every setting the runs share."""
    models = (
        "names joined by commas, or all (default: on digits the three of the table, else the task's recipe)"
    )
    parser.add_argument("--models", type=str, metavar="A,B", help=models)
    attention = "attentions to put into each model, joined by commas, or all (default: each model's own)"
    parser.add_argument("--attention", type=str, metavar="X,Y", help=attention)
    seeds = "how many seeds (3: 0, 1, 2), or a list of them (0,7,11)"
    parser.add_argument("--seeds", type=str, default="3", metavar="N", help=seeds)
    tuning = "tune each model with so many trials first, by validation alone"
    parser.add_argument("--sweep", type=int, default=0, metavar="N", help=tuning)
    parser.add_argument(
        "--space", type=str, metavar="SPACE", help="what --sweep tunes, and within which bounds"
    )
    out = "the folder of the comparison; give the command again to go on (default: one inside runs)"
    parser.add_argument("--out", type=str, metavar="DIR", help=out)
    parser.add_argument("--engine", choices=["local", "ray"], default="local", help="where the runs run")
    parser.add_argument(
        "--address", type=str, metavar="HOST", help="of the Ray cluster (default: one made here)"
    )
    workers = "runs at once (default: as many as there are cores; one on a GPU)"
    parser.add_argument("--workers", type=int, metavar="N", help=workers)
    parser.add_argument("--threads", type=int, metavar="N", help="of each run (default: 1 where several run)")
    parser.add_argument(
        "--beam", type=int, metavar="N", help="write with a beam of N for the test (default: greedily)"
    )
    timeout = "stop a run that takes longer, for instance 90s or '2 hours'; the others go on (default: never)"
    parser.add_argument("--timeout", type=str, metavar="TIME", help=timeout)
    heartbeat = "stop a run that makes no progress, not one batch, for so long (default: 30 min)"
    parser.add_argument("--heartbeat", type=str, metavar="TIME", help=heartbeat)
    add_settings(parser, less=SINGLE)
    parser.add_argument("--json", action="store_true", help="the rows as JSON on stdout")


def run(options: Namespace) -> int:
    """Compare and print. 0, 1 if a run failed, 2 for a wrong call, 128 + n after signal n."""
    plan = _plan(options)

    from regard.cli.pages.watching import Watch, name_of
    from regard.comparison.compare import compare
    from regard.comparison.engines.stopped import ClusterLost, Stopped
    from regard.comparison.results import rows
    from regard.training.run_folder.durable import StorageFailed

    try:
        with Watch() as watch:
            comparison = compare(plan, watch.hear, watch.tell)
    except Stopped as stopped:
        for job in stopped.unsaved:
            said = "did not stop when asked and was killed; it goes on from its last checkpoint."
            tell(f"{name_of(job)} {said}")
        saved = "the other runs are saved" if stopped.unsaved else "the runs are saved"
        tell(f"{stopped}: {saved}. The same command goes on:\n  {plan.command}")
        return stopped.exit_code
    except (ClusterLost, StorageFailed) as trouble:
        tell(f"regard compare: {trouble}")
        return FAILED
    found = rows(comparison)
    if options.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        _show(comparison, found)
    return FAILED if any(outcome.error for outcome in comparison.outcomes) else 0


def _plan(options: Namespace) -> Plan:
    for name, least in (("sweep", 0), ("workers", 1), ("threads", 1), ("beam", 1)):
        if options[name] is not None and options[name] < least:
            raise BadValue(f"--{name}: expected at least {least}, got {options[name]}.")

    from regard.comparison import limits, use
    from regard.comparison.compare import Plan
    from regard.comparison.grid import read_seeds, usual_models
    from regard.tasks import TASKS

    settings = given_settings(options, less=OWN)
    single = {name: settings.pop(name, None) for name in SINGLE}  # a file of one run holds them, too
    settings["task"] = settings.get("task") or DEFAULT_TASK
    seeds = read_seeds(options.seeds)
    attentions = _names("--attention", options.attention, single["attention"])
    models = _names("--models", options.models, single["model"])
    if not models:
        TASKS[parse(settings["task"])[0]]  # says which there are
        models = usual_models(settings["task"], attentions)
    asked = [settings, models, attentions, seeds, options.sweep, options.space, options.beam]
    return Plan(
        settings=settings, models=models, attentions=attentions, seeds=seeds,
        out=Path(options.out) if options.out is not None else _usual_folder(settings["task"], asked),
        trials=options.sweep, space=options.space, engine=options.engine, address=options.address,
        workers=options.workers, threads=options.threads, beam=options.beam, use=use.loaded(),
        timeout=limits.seconds("--timeout", options.timeout, usual=None),
        heartbeat=limits.seconds("--heartbeat", options.heartbeat, usual=limits.HEARTBEAT),
        command=shlex.join(["regard", *sys.argv[1:]]),
    )  # fmt: skip


def _names(option: str, given: str | None, usual: object) -> list[str]:
    """Names joined by commas; those inside parentheses do not count. Where none are given, the usual one, if any."""
    if given is None:
        return [] if usual is None else [str(usual)]
    found = [name.strip() for name in split(given)]
    if not found:
        raise BadValue(
            f"{option}: expected names joined by commas, got {given!r}. `regard list` shows what there is."
        )
    return found


def _usual_folder(task: str, asked: list[Any]) -> Path:
    """Where a comparison goes when nothing is said: the same place for the same question, so that it can go on."""
    from regard.training.run_folder.folder import HOME, checked_name

    mark = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return Path(HOME) / checked_name(f"compare-{parse(task)[0]}-{mark}")


def _show(comparison: Comparison, found: list[dict[str, Any]]) -> None:
    from rich.text import Text

    from regard.cli.pages.page import console, put
    from regard.comparison import table
    from regard.comparison.compare import REPORT

    shown = comparison.out
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    title = Text.assemble((comparison.task, "bold"), f": {comparison.budget} each")
    put(console(None), title, Text(""), table.render(found), Text(""), Text(f"report: {shown / REPORT}"))
