"""`regard cause`: which heads, layers and inputs an answer comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import BadValue, unknown_name
from regard_workbench.cli.common.loading import add_checkpoint, add_device, add_run
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard.observation.seen import Seen
    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.viewer.opening.options import OpenedModel

SUMMARY = "See what an answer comes from: patch heads and layers, read layers, attribute the answer to inputs."
EXAMPLES = (
    'regard cause path/to/hf-model --text "Lily likes cats" --against "Lily likes dogs" --figure heads.png',
    'regard cause path/to/hf-model --text "Once upon a time" --by contributions',
)

FIGURES = (".png", ".pdf", ".svg")


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser, huggingface=True)
    parser.add_argument("--text", type=str, metavar="TEXT", help="what it reads (default: an example of its task)")
    parser.add_argument("--image", type=str, metavar="FILE", help="the picture it reads, for models of images")
    target = "what it writes, for models that read one text and write another (default: its own words)"
    parser.add_argument("--target", type=str, metavar="TEXT", help=target)
    against = "a text of as many tokens with another answer: parts of the run on --text are put into the run on it"
    parser.add_argument("--against", type=str, metavar="TEXT", help=against)
    by = (
        "with --against: heads (the default), attention (all heads of a layer), layers, paths (direct ones of heads); "
        "without: inputs (the default), contributions, lens, faithfulness"
    )
    parser.add_argument("--by", type=str, metavar="WHAT", help=by)
    parser.add_argument(
        "--answer", type=str, metavar="A", help="a class or token, by number or text (default: what it says)"
    )
    parser.add_argument(
        "--other", type=str, metavar="A", help="the one to subtract, by number or text (default: that of --against)"
    )
    parser.add_argument(
        "--position",
        type=int,
        metavar="N",
        help="of the answer (default: the hidden token, the first written one, else the last)",
    )
    positions = "with --against: each position on its own, or all together (default: all for heads and paths)"
    parser.add_argument("--positions", type=str, metavar="each|all", help=positions)
    parser.add_argument("--measure", type=str, metavar="WHAT", help="logit, loss or probability of the answer")
    parser.add_argument("--figure", type=str, metavar="FILE", help="write the figure: .png, .pdf or .svg")
    add_checkpoint(parser)
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(options: Namespace) -> int:
    """Print what was found, and draw it."""
    by = _checked(options)
    from regard.observation.observe import observe
    from regard_workbench.viewer.opening import ViewOptions
    from regard_workbench.viewer.opening.causes import CauseRequest, causes_of, unrecorded
    from regard_workbench.viewer.opening.library_errors import in_words
    from regard_workbench.viewer.opening.live import written_text
    from regard_workbench.viewer.opening.opening import opened_model

    def opened(text: str | None, target: str | None) -> tuple[OpenedModel, Seen]:
        wanted = ViewOptions(options.run, text=text, target=target, image=options.image, device=options.device)
        subject = opened_model(wanted, options.run, options.checkpoint, tell)
        with observe(subject.model) as observation:
            in_words(lambda: unrecorded(subject), "the model cannot run on this input")
        return subject, observation

    subject, observation = opened(options.text, options.target)
    counterpart = None
    if options.against is not None:  # a model that writes reads the same words of its own in both runs
        target = written_text(subject) if subject.two_sides and options.target is None else options.target
        counterpart = opened(options.against, target)[1]
    request = CauseRequest(by, options.answer, options.other, options.position, options.positions, options.measure)
    causes = causes_of(request, subject, observation, counterpart)
    if options.figure is not None:
        causes.plot().savefig(options.figure, dpi=200)
        tell(f"{options.figure} written.")
    if options.json:
        print(json.dumps(causes.to_json(), ensure_ascii=False, allow_nan=False))
    else:
        print(printable(str(causes).removeprefix("<").removesuffix(">")))
    return 0


def _checked(options: Namespace) -> str:
    """What to do; wrong options are refused before anything is loaded."""
    from regard_workbench.viewer.opening.causes import PAIRS, SINGLE

    methods = PAIRS if options.against is not None else SINGLE
    by = options.by or ("heads" if options.against is not None else "inputs")
    if by in PAIRS and options.against is None:
        raise BadValue(f"--by: {by} compares two texts. Add --against TEXT, or choose one of {', '.join(SINGLE)}.")
    if by in SINGLE and options.against is not None:
        raise BadValue(f"--by: {by} is about one text. Leave --against out, or choose one of {', '.join(PAIRS)}.")
    if by not in methods:
        raise unknown_name("--by", by, methods)
    if options.positions not in (None, "each", "all"):
        raise unknown_name("--positions", options.positions, ("each", "all"))
    if options.figure is not None:
        path = Path(options.figure)
        if "\0" in options.figure or path.suffix.casefold() not in FIGURES:
            raise BadValue(f"--figure: expected a name that ends in {', '.join(FIGURES)}, got {options.figure!r}.")
        if not path.parent.is_dir():
            raise BadValue(f"--figure: the folder {str(path.parent)!r} does not exist. Make it first.")
    return by
