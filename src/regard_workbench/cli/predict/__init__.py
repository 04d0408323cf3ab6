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
    from regard_workbench.inspection.prediction import Writing
    from regard_workbench.tasks import Task

SUMMARY = "Let a trained run complete, translate or classify a text or an image, and see what it attended to."
EXAMPLES = (
    'regard predict runs/dates-1 --text "3rd of May, 1979"',
    'regard predict runs/story-1 --text "Once upon a time" --sample --temperature 0.8 --max-length 200',
)

WRONG_CALL = 2
INPUTS = ("text", "image", "sound", "table")
ONLY_SAMPLING = ("temperature", "top_k", "top_p", "seed")


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
    from regard_workbench.cli.predict.figure import draw
    from regard_workbench.cli.predict.lines import show
    from regard_workbench.inspection.prediction import check, predict
    from regard_workbench.training.loading import load

    writing = _writing(options)
    loaded = load(options.run, options.checkpoint, options.device)
    check(loaded, writing, typed=options.example is None)
    predictions: list[dict[str, Any]] = []
    inputs = _inputs(options, loaded.task)
    if options.figure is not None and len(inputs) != 1:
        raise BadValue(f"--figure: expected one input to draw, got {len(inputs)}.")
    for number, typed in enumerate(inputs):
        try:
            predictions.append(predict(loaded, typed, writing))
            if options.figure is not None:
                draw(loaded, typed, predictions[-1], Path(options.figure))
        except RegardError as mistake:  # one bad line of many must not cost the others
            predictions[number:] = [{**typed, "error": str(mistake)}]
        if not options.json:
            show(predictions[-1], first=number == 0)
    if options.json:
        from regard_workbench.tasks.text.characters import whole_characters

        print(whole_characters(json.dumps(predictions, indent=1, ensure_ascii=False)))
    return WRONG_CALL if any("error" in prediction for prediction in predictions) else 0


def _writing(options: Namespace) -> Writing:
    from regard_workbench.inspection.prediction import Writing

    sampling = {name: options[name] for name in ONLY_SAMPLING if options[name] is not None}
    if sampling and not options.sample:
        name = next(iter(sampling)).replace("_", "-")
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
    if not sampling.get("temperature", 1.0) > 0 or sampling.get("temperature", 1.0) == float("inf"):
        raise BadValue(f"--temperature: expected a finite number above 0, got {sampling['temperature']}.")
    if not 0 < sampling.get("top_p", 1.0) <= 1:
        raise BadValue(f"--top-p: expected a probability above 0 and at most 1, got {sampling['top_p']}.")
    if not 0 <= sampling.get("seed", 0) < 2**63:
        raise BadValue(f"--seed: expected a whole number from 0 to 2^63 − 1, got {sampling['seed']}.")
    return Writing(
        beam=options.beam,
        length_penalty=options.length_penalty,
        sample=options.sample,
        max_length=options.max_length,
        **sampling,
    )


def _inputs(options: Namespace, task: Task) -> list[dict[str, Any]]:
    """What was typed, each input with the name of its option; the lines of stdin where nothing was."""
    inputs = [{name: text} for name in INPUTS for text in options[name] or ()]
    if task.together and inputs:
        inputs = [_joined(options)]
    if options.example is not None:
        return [*inputs, {"example": options.example}]
    if not inputs and "text" not in task.takes:
        takes = " or ".join(f"--{name}" for name in task.takes)
        raise BadValue(
            f"{takes}: expected an input to predict from, got none. Give {takes} FILE, or --example 0 for one of the "
            "task's own."
        )
    inputs = inputs or [{"text": line} for line in _lines()]
    for typed_input in inputs:
        unread = [name for name in typed_input if name not in task.takes]
        if unread:
            task.parse(typed_input)  # raises, and says what the task reads
    return [{name: _whole(text) for name, text in typed_input.items()} for typed_input in inputs]


def _joined(options: Namespace) -> dict[str, Any]:
    """All that was typed as one input; a list where an option came several times."""
    typed = {name: options[name] for name in INPUTS if options[name]}
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in typed.items()}


def _whole(typed: Any) -> Any:
    from regard_workbench.tasks.text.characters import whole_characters

    return whole_characters(typed) if isinstance(typed, str) else [_whole(text) for text in typed]


def _lines() -> list[str]:
    """The non-blank lines of stdin; bytes that are not UTF-8 become �."""
    from regard_workbench.tasks.text.split_words import trimmed

    if sys.stdin is None or sys.stdin.isatty():
        raise BadValue(
            '--text: expected an input to predict from, for instance --text "3rd of May, 1979", or lines on stdin.'
        )
    raw = getattr(sys.stdin, "buffer", None)
    content = sys.stdin.read() if raw is None else raw.read().decode("utf-8", errors="replace")
    lines = [line for line in content.replace("\r\n", "\n").replace("\r", "\n").split("\n") if trimmed(line)]
    if not lines:
        raise BadValue("--text: expected some text in --text or on stdin, got none.")
    return lines
