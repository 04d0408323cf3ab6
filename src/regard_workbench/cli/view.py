"""`regard view`: what a model attends to, on a local web page or in one HTML file."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import BadValue
from regard_workbench.cli.common.loading import add_checkpoint, add_device, add_run
from regard_workbench.cli.common.terminal import printable, tell

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser
    from regard_workbench.viewer.page_model import PageModel

SUMMARY = "See what a model attends to: a run of yours or a Hugging Face folder, in the browser or as one file."
EXAMPLES = (
    'regard view runs/dates-1 --text "3rd of May, 1979"',
    'regard view path/to/hf-model --text "Once upon a time" --generate 20 --export story.html',
)

PORT = 8730
_PAIR = re.compile(r"(\d+)(?:\.(\d+))?")


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    add_run(parser, huggingface=True)
    text = "what it reads (default: a validation example of its task, of readable length)"
    parser.add_argument("--text", type=str, metavar="TEXT", help=text)
    target = "what it writes, for models that read one text and write another (default: its own words)"
    parser.add_argument("--target", type=str, metavar="TEXT", help=target)
    parser.add_argument("--image", type=str, metavar="FILE", help="the picture it reads, for models of images")
    parser.add_argument("--sound", type=str, metavar="FILE", help="the sound it reads, for runs that read sounds")
    parser.add_argument(
        "--table", type=str, metavar="FILE", help="a CSV file whose last rows are read, for runs that forecast"
    )
    example = "an example of the test split of a run's task, by its number from 0, as in `regard predict`"
    parser.add_argument("--example", type=int, metavar="N", help=example)
    parser.add_argument("--generate", type=int, metavar="N", help="let it write up to N tokens, step by step")
    parser.add_argument("--beams", type=int, default=1, metavar="K", help="with --generate: search with K beams")
    parser.add_argument("--against", type=str, metavar="RUN", help="a second model on the same input, to compare")
    add_checkpoint(parser)
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="every checkpoint of the run, as a timeline (regard train --keep all keeps them all)",
    )
    gold = "word alignment people made, as FILE or FILE:LINE; shows its links and the error rate"
    parser.add_argument("--gold", type=str, metavar="FILE", help=gold)
    silent = "run it once more without each head: how much does its answer change?"
    parser.add_argument("--importance", action="store_true", help=silent)
    missing = "open a Hugging Face folder that lacks tensors of its model; they are random, and every picture says so"
    parser.add_argument("--allow-missing", action="store_true", help=missing)
    parser.add_argument("--export", type=str, metavar="FILE", help="write one HTML file instead of serving a page")
    heads = "with --export: keep every weight of these heads, as LAYER.HEAD from 0, joined by commas"
    parser.add_argument("--heads", type=str, metavar="L.H", help=heads)
    sites = "with --export: keep only these layers, from 0, joined by commas"
    parser.add_argument("--sites", type=str, metavar="L", help=sites)
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help="where the page is served; 0: any")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="the address to listen at")
    remote = "let other machines reach the page; whoever has its address can see the input"
    parser.add_argument("--allow-remote", action="store_true", help=remote)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="address or file, and what was seen, as JSON on stdout")


def run(options: Namespace) -> int:
    """Serve the page until Ctrl-C, or write the file. 0; 2 for a wrong call; 1 for a damaged checkpoint."""
    _check(options)
    from regard_workbench.viewer.opening import ViewOptions, open_page

    wanted = ViewOptions(
        options.run,
        text=options.text,
        target=options.target,
        image=options.image,
        sound=options.sound,
        table=options.table,
        generate=options.generate,
        beams=options.beams,
        against=options.against,
        checkpoint=options.checkpoint,
        checkpoints=options.checkpoints,
        gold=options.gold,
        importance=options.importance,
        example=options.example,
        device=options.device,
        allow_missing=options.allow_missing,
    )
    page_model = open_page(wanted, tell)
    if options.export is not None:
        return _export(page_model, options)
    return _serve(page_model, options)


def _check(options: Namespace) -> None:
    """Refuse wrong options before anything is loaded."""
    from regard_workbench.viewer.guard import checked_host

    if not 0 <= options.port <= 65535:
        raise BadValue(f"--port: expected a number from 0 to 65535, got {options.port}.")
    checked_host(options.host, options.allow_remote)
    for name in ("heads", "sites"):
        if options[name] is not None and options.export is None:
            raise BadValue(
                f"--{name}: it selects what an exported file holds. Add --export page.html, or leave it out."
            )
    if options.export is not None and "\0" in options.export:
        raise BadValue("--export: a path cannot hold a NUL character.")
    if options.export is not None and not options.export.casefold().endswith((".html", ".htm")):
        raise BadValue(f"--export: expected a name that ends in .html, got {options.export!r}.")
    if options.export is not None and not Path(options.export).parent.is_dir():
        raise BadValue(f"--export: the folder {str(Path(options.export).parent)!r} does not exist. Make it first.")
    _heads(options.heads)
    _sites(options.sites)


def _heads(text: str | None) -> list[tuple[int, int]] | None:
    if text is None:
        return None
    heads = []
    for pair in text.split(","):
        match = _PAIR.fullmatch(pair.strip())
        if match is None or match[2] is None:
            raise BadValue(f"--heads: expected LAYER.HEAD from 0, such as 0.3,2.1, got {pair.strip()!r}.")
        heads.append((int(match[1]), int(match[2])))
    return heads


def _sites(text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = [number.strip() for number in text.split(",")]
    for number in numbers:
        if not number.isdecimal():
            raise BadValue(f"--sites: expected numbers of layers from 0, such as 0,3, got {number!r}.")
    return [int(number) for number in numbers]


def _export(page_model: PageModel, options: Namespace) -> int:
    from regard_workbench.viewer.export import export

    sites = _sites(options.sites)
    beyond = next((n for n in sites or () if n >= len(page_model.page_sites)), None)
    if beyond is not None:
        raise BadValue(f"--sites: there is no layer {beyond}; the last is {len(page_model.page_sites) - 1}.")
    path = export(page_model, options.export, heads=_heads(options.heads), sites=sites)
    size = path.stat().st_size
    if options.json:
        print(json.dumps({"file": str(path), "bytes": size, **_seen(page_model)}, ensure_ascii=False))
    else:
        print(printable(f"{path} ({size / 1e6:.1f} MB): open it in a browser; it needs nothing else."))
    return 0


def _serve(page_model: PageModel, options: Namespace) -> int:
    from regard_workbench.viewer.server import Server, reachable_from_elsewhere
    from regard_workbench.viewer.sessions import LAUNCH_SECONDS

    server = Server(page_model, options.host, options.port)
    if reachable_from_elsewhere(options.host):
        tell("Warning: other machines can reach this page. Its address is the key; nothing is encrypted.")
    if options.port and server.guard.port != options.port:
        tell(f"Port {options.port} is taken; using {server.guard.port}.")

    def started() -> None:
        if options.json:
            print(json.dumps({"url": server.address(), **_seen(page_model)}, ensure_ascii=False), flush=True)
        else:
            print(f"Open {server.address()}", flush=True)
        tell("Ctrl-C stops.")
        if not options.no_browser:
            # A one-time address: other users see it in the process list, but it is already used by then.
            address = server.address(LAUNCH_SECONDS)
            threading.Thread(target=_open_browser, args=(address,), daemon=True).start()

    server.run(started)
    tell("Stopped.")
    return 0


def _seen(page_model: PageModel) -> dict[str, Any]:
    """The contents of the page as data, for scripts."""
    scene = page_model.scene()
    return {
        "title": scene["title"],
        "words": scene["words"],
        "warning": scene["warning"],
        "variants": [variant["name"] for variant in scene["variants"]],
        "answers": [variant["answer"] for variant in scene["variants"]],
        "sites": [
            {
                "name": site["name"],
                "label": site["label"],
                "heads": site["heads"],
                "how": site["how"],
                "calls": len(site["calls"]),
                "queries": site["calls"][-1]["queries"],
                "keys": site["calls"][-1]["keys"],
            }
            for site in scene["sites"]
        ],
    }


def _open_browser(address: str) -> None:
    import webbrowser

    webbrowser.open(address)
