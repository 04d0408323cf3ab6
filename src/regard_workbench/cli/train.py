"""`regard train`: train a model on a task, or resume a run."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

from regard.errors import RegardError
from regard_workbench.cli.common.settings import add_settings, given_settings
from regard_workbench.cli.common.terminal import printable, tell
from regard_workbench.training.config import to_yaml

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.training.run import Result

SUMMARY = "Train a model on a task, from the task's own recipe or your settings."
EXAMPLES = (
    "regard train dates",
    'regard train language --data book.txt --model "decoder(layers=4)" --attention "local(window=65)"',
    "regard train copy --steps 2000 --optim.lr 3e-4 --out runs/copy-1",
    "regard train --resume runs/copy-1",
)

FAILED = 1
ACTIONS = ("print_config", "resume", "dry_run", "fast_dev_run", "json")


def add_arguments(parser: Parser) -> None:
    """Declare the options: one for each setting, and what to do with them."""
    add_settings(parser)
    parser.add_argument("--print-config", action="store_true", help="print all settings as YAML and exit")
    resume = "auto: resume the run in --out if there is one; or the folder of a run or checkpoint"
    parser.add_argument("--resume", type=str, metavar="auto|PATH", help=resume)
    dry = "print shapes, parameters, memory and epochs, and exit"
    parser.add_argument("--dry-run", action="store_true", help=dry)
    fast = "one batch of training and one of validation, then clean up"
    parser.add_argument("--fast-dev-run", action="store_true", help=fast)
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")


def run(options: Namespace) -> int:
    """Train, or show what would be trained. 0, 2 for a wrong call, 1 for a failure, 128 + n after signal n."""
    values = given_settings(options, less=ACTIONS)
    if options.print_config:
        from regard_workbench.training.resume import resolve

        print(to_yaml(resolve(values, options.resume)[0]), end="")
        return 0
    if options.dry_run:
        from regard_workbench.training.dry_run import dry_run

        _show_estimate(dry_run(values, options.resume), options.json)
        return 0

    from regard_workbench.training.engines.engine import NonFinite
    from regard_workbench.training.run import train
    from regard_workbench.training.run_folder.durable import StorageFailed

    try:
        result = train(values, resume=options.resume, fast_dev_run=options.fast_dev_run)
    except (NonFinite, StorageFailed) as trouble:
        tell(f"regard train: {trouble}")
        return FAILED
    except ConnectionError as lost:
        if not isinstance(lost, RegardError):
            raise
        return FAILED  # another process of the run is gone, which it has reported
    if os.environ.get("RANK", "0") == "0":  # under torchrun only rank 0 prints
        if not options.fast_dev_run:
            from regard_workbench.figures.run_curves import draw_run

            draw_run(result.folder)
        _show(result, options.json, kept=not options.fast_dev_run)
    return result.exit_code


def _show(result: Result, as_json: bool, kept: bool) -> None:
    facts = {**dataclasses.asdict(result), "folder": str(result.folder)}
    if result.exit_code:
        stopped = f"{result.stopped_by}: saved at step {result.steps}. Resume with:\n  {result.resume_command}"
        tell(stopped)
    if as_json:
        print(json.dumps({**facts, "folder": str(result.folder) if kept else None}, ensure_ascii=False))
        return
    if kept:
        print(printable(f"run: {result.folder}"))
    print(f"steps: {result.steps} ({result.steps_per_second:.3g}/s, {result.seconds:.1f} s, by {result.stopped_by})")
    for name, value in result.metrics.items():
        print(f"validation {name}: {'none' if value is None else f'{value:.6g}'}")
    if result.best is not None:
        print(f"best {result.best['metric']}: {result.best['value']:.6g} at step {result.best['step']}")


def _show_estimate(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {amount}" for key, amount in value.items())
        elif isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        print(printable(f"{name.replace('_', ' ')}: {value}"))
