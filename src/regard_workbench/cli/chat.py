"""`regard chat`: talk with a trained run in the terminal, and see what each word it writes attended to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue, RegardError
from regard_workbench.cli.common.loading import add_checkpoint, add_device, add_run
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.inspection.prediction import Prediction, Writing
    from regard_workbench.training.loading import Loaded

SUMMARY = "Talk with a trained run: type a turn, read its reply and what each of its words attended to."
EXAMPLES = ("regard chat runs/reply-1", "regard chat runs/reply-1 --json < turns.txt")

NEW, QUIT = "/new", "/quit"
HELP = f"Type a turn and press Enter. {NEW} begins another dialogue, {QUIT} or the end of the input ends."
WIDEST = 16  # columns of a written word


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser)
    attended = "how many words to show that each written word attended to most; 0 for none (default: 3)"
    parser.add_argument("--attended", type=int, default=3, metavar="N", help=attended)
    parser.add_argument("--beam", type=int, metavar="N", help="write with a beam of N (default: greedily)")
    drawn = "draw each word at random; below 1 favours likely words (default: take the likeliest)"
    parser.add_argument("--temperature", type=float, metavar="T", help=drawn)
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="with --temperature: which draw")
    parser.add_argument("--max-length", type=int, metavar="N", help="longest reply in tokens")
    add_checkpoint(parser)
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object for each reply, on a line of its own")


def run(options: Namespace) -> int:
    """Reply to each line of the input. 0; 2 for a wrong call; 1 for a damaged checkpoint."""
    from regard_workbench.inspection.prediction import check
    from regard_workbench.training.loading import load

    writing = _writing(options)
    loaded = load(options.run, options.checkpoint, options.device)
    loaded.task.conversation(["a turn"])  # raises where the task does not reply
    if loaded.task.problem.answer.writes:
        check(loaded, writing)
    turns: list[str] = []
    for turn in _lines():
        if turn == NEW:
            turns = []
            tell("A new dialogue.")
            continue
        try:
            reply = _reply(loaded, [*turns, turn], writing)
        except RegardError as mistake:  # an unreadable turn ends neither the chat nor what was said before
            tell(f"regard chat: {mistake}")
            continue
        turns += [turn, reply["output"] or "…"]  # an empty turn could not be told from none
        if options.json:
            from regard_workbench.tasks.text.characters import whole_characters

            print(whole_characters(json.dumps({"said": turn, **reply}, ensure_ascii=False)), flush=True)
        else:
            _show(reply, options.attended)
    return 0


def _writing(options: Namespace) -> Writing:
    from regard_workbench.inspection.prediction import Writing

    for name, least in (("beam", 1), ("max_length", 1), ("attended", 0)):
        if options[name] is not None and options[name] < least:
            raise BadValue(f"--{name.replace('_', '-')}: expected at least {least}, got {options[name]}.")
    drawn = options.temperature is not None
    if drawn and not 0 < options.temperature < float("inf"):
        raise BadValue(f"--temperature: expected a finite number above 0, got {options.temperature}.")
    if drawn and options.beam is not None:
        raise BadValue("--beam: expected --beam or --temperature, not both.")
    return Writing(
        beam=options.beam,
        sample=drawn,
        temperature=options.temperature or 1.0,
        seed=options.seed,
        max_length=options.max_length,
    )


def _lines() -> Iterator[str]:
    """What is typed, turn by turn, without blank lines."""
    typing = sys.stdin.isatty()
    if typing:
        tell(HELP)
    while True:
        if typing:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == QUIT:
            return
        if line.strip():
            yield line.strip()


def _reply(loaded: Loaded, turns: list[str], writing: Writing) -> dict[str, Any]:
    """The reply to the turns so far, and the attention of each of its words to what was read."""
    from regard_workbench.inspection.prediction import predict

    conversation = loaded.task.conversation(turns)
    prediction = predict(loaded, conversation, writing)
    return {"output": prediction["output"], "attention": _attention(prediction), "notes": prediction["notes"]}


def _attention(found: Prediction) -> dict[str, Any] | None:
    """Rows: the words that were written; columns: what they could attend to. None where there is nothing to show."""
    table: dict[str, Any] | None = found["alignment"] if found["kind"] == "translation" else found["attention"]
    return table


def _show(found: dict[str, Any], most: int) -> None:
    print(printable(found["output"]))
    table = found["attention"]
    if table is not None and most:
        for word, row in zip(table["rows"], table["weights"], strict=True):
            best = sorted(zip(row, table["columns"], strict=True), key=lambda pair: -pair[0])[:most]
            strongest = ", ".join(f"{printable(name)} {weight:.2f}" for weight, name in best if weight > 0)
            print(f"  {printable(word):>{WIDEST}} ← {strongest}")
        print(f"  ({table['source']})")
    for note in found["notes"]:
        print(f"note: {note}.", file=sys.stderr)
    sys.stdout.flush()
