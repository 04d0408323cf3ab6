"""`regard predict`: what a trained run predicts for a text or an image, and what it attended to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue, RegardError
from regard_workbench.cli.common.loading import add_checkpoint, add_device, add_run

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.cli.predict.answers import Prediction, Writing
    from regard_workbench.tasks import Task

SUMMARY = "Let a trained run complete, translate or classify a text or an image, and see what it attended to."
EXAMPLES = (
    'regard predict runs/dates-1 --text "3rd of May, 1979"',
    'regard predict runs/story-1 --text "Once upon a time" --sample --temperature 0.8 --max-length 200',
)

WRONG_CALL = 2
INPUTS = ("text", "image", "sound", "table")
EXAMPLE = "example"
ONLY_SAMPLING = ("temperature", "top_k", "top_p", "seed")
SHOWN_PIECES = 12  # with the largest weights
BAR = 20  # columns of the longest bar


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser)
    text = "a text to predict from; may come several times. Without any input, each line of stdin is a text"
    parser.add_argument("--text", type=str, action="append", metavar="TEXT", help=text)
    image = "an image to predict from, for a run that reads images; may come several times"
    parser.add_argument("--image", type=str, action="append", metavar="FILE", help=image)
    sound = "a sound to predict from, for a run that reads sounds; may come several times"
    parser.add_argument("--sound", type=str, action="append", metavar="FILE", help=sound)
    table = "a CSV file whose last rows are continued, for a run that forecasts; may come several times"
    parser.add_argument("--table", type=str, action="append", metavar="FILE", help=table)
    example = "an example of the test split of the run's task, by its number from 0, as in `regard view`"
    parser.add_argument("--example", type=int, metavar="N", help=example)
    figure = "draw the prediction and what it looked at into this file (.svg, .pdf, .png); one input only"
    parser.add_argument("--figure", type=str, metavar="FILE", help=figure)
    parser.add_argument("--beam", type=int, metavar="N", help="generate with a beam of N (default: greedily)")
    penalty = "with --beam: divide the log-probability of a text by its length to the power A (default: the task's, 1)"
    parser.add_argument("--length-penalty", type=float, metavar="A", help=penalty)
    parser.add_argument("--sample", action="store_true", help="draw each token at random")
    parser.add_argument("--temperature", type=float, metavar="T", help="with --sample: below 1 favours likely tokens")
    parser.add_argument("--top-k", type=int, metavar="K", help="with --sample: only among the K likeliest")
    parser.add_argument("--top-p", type=float, metavar="P", help="with --sample: only among the likeliest that hold P")
    parser.add_argument("--seed", type=int, metavar="S", help="with --sample: which draw (default: 0)")
    length = "longest answer in tokens (default: 100 for a completion, else what the run learned)"
    parser.add_argument("--max-length", type=int, metavar="N", help=length)
    add_checkpoint(parser)
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="a list of answers as JSON on stdout")


def run(options: Namespace) -> int:
    """Predict from each input. 0; 2 for a wrong call or an input the run cannot read; 1 for a damaged checkpoint."""
    from regard_workbench.cli.predict.answers import check, draw, predict
    from regard_workbench.training.loading import load

    writing = _writing(options)
    loaded = load(options.run, options.checkpoint, options.device)
    check(loaded, writing, typed=options.example is None)
    found: list[dict[str, Any]] = []
    inputs = _inputs(options, loaded.task)
    if options.figure is not None and len(inputs) != 1:
        raise BadValue(f"--figure: expected one input to draw, got {len(inputs)}.")
    for number, given in enumerate(inputs):
        try:
            found.append(predict(loaded, given, writing))
            if options.figure is not None:
                draw(loaded, given, found[-1], Path(options.figure))
        except RegardError as mistake:  # one bad line of many must not cost the others
            found[number:] = [{**given, "error": str(mistake)}]
        if not options.json:
            _show(found[-1], first=number == 0)
    if options.json:
        from regard_workbench.tasks.text.characters import whole_characters

        print(whole_characters(json.dumps(found, indent=1, ensure_ascii=False)))
    return WRONG_CALL if any("error" in one for one in found) else 0


def _writing(options: Namespace) -> Writing:
    from regard_workbench.cli.predict.answers import Writing

    given = {name: options[name] for name in ONLY_SAMPLING if options[name] is not None}
    if given and not options.sample:
        name = next(iter(given)).replace("_", "-")
        raise BadValue(f"--{name}: only --sample draws at random. Add --sample, or leave it out.")
    if options.sample and options.beam is not None:
        raise BadValue("--beam: expected --beam or --sample, not both.")
    if options.length_penalty is not None and options.beam is None:
        raise BadValue("--length-penalty: only beam search compares texts of different lengths. Add --beam 5.")
    if options.length_penalty is not None:
        from regard.support.arguments import finite_number

        finite_number("--length-penalty", options.length_penalty)
    for name in ("beam", "top_k", "max_length"):
        if options[name] is not None and options[name] < 1:
            raise BadValue(f"--{name.replace('_', '-')}: expected at least 1, got {options[name]}.")
    if not given.get("temperature", 1.0) > 0 or given.get("temperature", 1.0) == float("inf"):
        raise BadValue(f"--temperature: expected a finite number above 0, got {given['temperature']}.")
    if not 0 < given.get("top_p", 1.0) <= 1:
        raise BadValue(f"--top-p: expected a probability above 0 and at most 1, got {given['top_p']}.")
    if not 0 <= given.get("seed", 0) < 2**63:
        raise BadValue(f"--seed: expected a whole number from 0 to 2^63 − 1, got {given['seed']}.")
    return Writing(
        beam=options.beam,
        length_penalty=options.length_penalty,
        sample=options.sample,
        max_length=options.max_length,
        **given,
    )


def _inputs(options: Namespace, task: Task) -> list[dict[str, Any]]:
    """What was typed, each input with the name of its option; the lines of stdin where nothing was."""
    found = [{name: text} for name in INPUTS for text in options[name] or ()]
    if task.together and found:
        found = [_joined(options)]
    if options.example is not None:
        return [*found, {EXAMPLE: options.example}]
    if not found and "text" not in task.takes:
        takes = " or ".join(f"--{name}" for name in task.takes)
        raise BadValue(
            f"{takes}: expected an input to predict from, got none. Give {takes} FILE, or --example 0 for one of the "
            "task's own."
        )
    found = found or [{"text": line} for line in _lines()]
    for given in found:
        unread = [name for name in given if name not in task.takes]
        if unread:
            task.parse(given)  # raises, and says what the task reads
    return [{name: _whole(text) for name, text in given.items()} for given in found]


def _joined(options: Namespace) -> dict[str, Any]:
    """All that was typed as one input; a list where an option came several times."""
    given = {name: options[name] for name in INPUTS if options[name]}
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in given.items()}


def _whole(typed: Any) -> Any:
    from regard_workbench.tasks.text.characters import whole_characters

    return whole_characters(typed) if isinstance(typed, str) else [_whole(one) for one in typed]


def _lines() -> list[str]:
    """The non-blank lines of stdin; bytes that are not UTF-8 become �."""
    from regard_workbench.tasks.text.split_words import trimmed

    if sys.stdin is None or sys.stdin.isatty():
        raise BadValue(
            '--text: expected an input to predict from, for instance --text "3rd of May, 1979", or lines on stdin.'
        )
    raw = getattr(sys.stdin, "buffer", None)
    whole = sys.stdin.read() if raw is None else raw.read().decode("utf-8", errors="replace")
    lines = [line for line in whole.replace("\r\n", "\n").replace("\r", "\n").split("\n") if trimmed(line)]
    if not lines:
        raise BadValue("--text: expected some text in --text or on stdin, got none.")
    return lines


def _show(found: Prediction, first: bool) -> None:
    from regard_workbench.cli.common.terminal import printable

    if "error" in found:
        typed = repr(printable(_short(_typed(found))))
        known = typed in found["error"]  # an error of a file names it already
        print(f"regard predict: {'' if known else typed + ': '}{found['error']}", file=sys.stderr)
        return
    if not first:
        print()
    for line in _SHOWN[found["kind"]](found):
        print(line)
    if found["kind"] == "answer" and found["attention"] is None and found["looked_at"] is not None:
        beside = "\n" in found["output"]  # a table, which may be written to a file
        print("\n".join(_bars(found["looked_at"])), file=sys.stderr if beside else sys.stdout)
    for note in found["notes"]:
        print(f"note: {note}.", file=sys.stderr)


def _typed(found: Prediction) -> str:
    """The input as it was typed."""
    if EXAMPLE in found:
        return f"example {found[EXAMPLE]}: {found.get('words', '')}".strip(": ")
    given = [found[name] for name in INPUTS if name in found]
    return " + ".join(one.strip() if isinstance(one, str) else " ".join(one) for one in given)


def _translation(found: Prediction) -> list[str]:
    from regard_workbench.cli.common.console import console
    from regard_workbench.cli.common.terminal import printable
    from regard_workbench.cli.predict.picture import drawn, legend

    unfinished = "" if found["finished"] else "  (cut at the longest length)"
    lines = [f"{printable(_typed(found))}  →  {printable(found['output'])}{unfinished}", ""]
    seen = found["alignment"]
    if seen is None:
        return [*lines, f"No picture: {printable(found['no_alignment'])}"]
    if "grid" in seen:
        return [*lines, *_glances(seen)]
    from regard_workbench.cli.predict.answers import with_null

    weights, columns = with_null(seen)
    lines += drawn(weights, seen["rows"], columns, console().width)
    return [
        *lines,
        f"Rows: what was written; columns: what was read. Weights of {seen['source']}.",
        f"Weights: {legend(weights)}.",
        *_unusual(seen),
    ]


def _glances(seen: Prediction) -> list[str]:
    """The patch that each written piece looked at most, and its weight: a picture has too many for a map of text."""
    from regard_workbench.cli.common.terminal import printable

    rows = [printable(row) for row in seen["rows"]]
    wide = max(map(len, rows))
    lines = [f"looked at most ({seen['source']}), row and column of the patch:"]
    for row, weights in zip(rows, seen["weights"], strict=True):
        most = max(range(len(weights)), key=weights.__getitem__)
        lines.append(f"  {row:>{wide}}  {seen['columns'][most]}  {weights[most]:.3f}")
    return [*lines, "--figure FILE draws all of it, `regard view` shows each head."]


def _unusual(seen: Prediction) -> list[str]:
    """The written pieces of a translation that are not aligned one to one, by kind."""
    from regard_workbench.cli.common.terminal import printable

    kinds = {kind: words for kind, words in seen.get("not_one_to_one", {}).items() if words}
    told = [f"{kind}: {' '.join(printable(seen['rows'][at]) for at in words)}" for kind, words in kinds.items()]
    if "not_one_to_one" not in seen:
        return []
    return [f"Not aligned one to one: {'; '.join(told)}." if told else "Every piece is aligned one to one."]


def _completion(found: Prediction) -> list[str]:
    from regard_workbench.cli.common.terminal import printable

    lines = [printable(found["whole"])]
    seen = found["attention"]
    if seen is None:
        return lines
    from regard_workbench.cli.common.console import console
    from regard_workbench.cli.predict.picture import drawn, legend

    lines += ["", *drawn(seen["weights"], seen["rows"], seen["columns"], console().width)]
    return [*lines, f"Weights of {seen['source']}: {legend(seen['weights'])}."]


def _filled(found: Prediction) -> list[str]:
    from regard_workbench.cli.common.terminal import printable

    lines = [printable(found["output"])]
    for number, guesses in enumerate(found["guesses"], 1):
        options = ", ".join(f"{printable(one['piece'])!r} {one['probability']:.2g}" for one in guesses)
        lines.append(f"blank {number}: {options}")
    return lines


def _class(found: Prediction) -> list[str]:
    from regard_workbench.cli.common.terminal import printable

    ranked = sorted(found["probabilities"].items(), key=lambda pair: -pair[1])
    odds = ", ".join(f"{printable(name)} {value:.3f}" for name, value in ranked[:SHOWN_PIECES])
    lines = [f"{printable(_short(_typed(found)))}  →  {printable(found['output'])}", f"probabilities: {odds}"]
    seen = found["looked_at"]
    return [*lines, *(_readings(seen) if "readings" in seen else _bars(seen))]


def _bars(seen: dict[str, Any]) -> list[str]:
    """The positions with the largest weights, without those that were not looked at."""
    seen_at = [one for one in seen["pieces"] if one["weight"] > 0]
    pieces = sorted(seen_at, key=lambda one: -one["weight"])[:SHOWN_PIECES]
    lines = [f"looked at ({seen['source']}):"]
    largest = max((one["weight"] for one in pieces), default=0.0)
    for one in pieces:
        bar = "█" * round(BAR * one["weight"] / largest) if largest > 0 else ""
        lines.append(f"  {one['weight']:.3f} {bar:{BAR}} {_piece(one)}")
    return lines


def _readings(seen: Prediction) -> list[str]:
    """A column of weights for each reading; in the order of the input, without what was hardly looked at."""
    columns = list(zip(*seen["readings"], strict=True))
    strongest = [max(weights) for weights in columns]
    least = sorted(strongest, reverse=True)[min(SHOWN_PIECES, len(strongest)) - 1]
    lines = [f"looked at ({seen['source']}, one column each):"]
    for one, weights, largest in zip(seen["pieces"], columns, strongest, strict=True):
        if largest >= least:
            lines.append(f"  {'  '.join(f'{weight:.3f}' for weight in weights)}  {_piece(one)}")
    return lines


def _piece(one: Prediction) -> str:
    """A piece of the input, marked where the run does not know it."""
    from regard_workbench.cli.common.terminal import visible

    return "".join(visible(letter) for letter in _short(one["piece"])) + ("" if one["known"] else " (unknown)")


def _answer(found: Prediction) -> list[str]:
    from regard_workbench.cli.common.terminal import printable

    lines = [printable(line) for line in found["output"].split("\n")]
    if len(lines) > 1:  # a table stands alone, so that it can be written to a file
        return lines
    lines = [f"{printable(_short(_typed(found)))}  →  {lines[0]}"]
    if found["picture"] is not None:
        return [*lines, *_in_characters(found["picture"])]
    seen = found["attention"]
    if seen is None:
        return lines
    if seen["grid"] is not None:
        return [*lines, f"{seen['source']}: --figure FILE draws it, `regard view` shows each head."]
    from regard_workbench.cli.common.console import console
    from regard_workbench.cli.predict.picture import drawn, legend

    lines += ["", *drawn(seen["weights"], seen["rows"], seen["columns"], console().width)]
    return [*lines, f"Weights of {seen['source']}: {legend(seen['weights'])}."]


def _in_characters(picture: list[list[float]]) -> list[str]:
    """A picture that was made, where the terminal is wide enough."""
    from regard_workbench.cli.common import shades
    from regard_workbench.cli.common.console import console

    lines = shades.drawn(picture)
    fits = len(lines[1]) <= console().width
    told = "--figure FILE draws it, and where its places looked."
    return [*(lines if fits else ["The terminal is too narrow for this picture."]), told]


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[:most] + "…"


_SHOWN = {"translation": _translation, "completion": _completion, "filled": _filled, "class": _class, "answer": _answer}
