"""`regard VERB …`: find the verb's module, parse its arguments, run it.

A verb is a module or package in `regard.cli` that holds

    SUMMARY: str                      one line for `regard --help`
    EXAMPLES: tuple[str, ...]         real commands, shown at the end of `regard VERB --help`
    add_arguments(parser) -> None     its options
    run(options) -> int               its work; the exit code

Its heavy imports belong inside `run`: every verb is loaded to list the verbs. Results go to stdout, progress to stderr,
so that `regard … --json | jq` always works.
"""

from __future__ import annotations

import io
import os
import pkgutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Protocol, cast

from jsonargparse import Namespace

import regard.cli
from regard.cli.common import mistakes
from regard.cli.common.parser import WRONG_CALL, Parser, respell
from regard.cli.common.terminal import LONGEST_WORD, said
from regard.errors import RegardError

FAILED = 1
NOT_VERBS = {"main", "common"}


class Verb(Protocol):
    """The interface of a verb's module."""

    SUMMARY: str
    EXAMPLES: tuple[str, ...]

    def add_arguments(self, parser: Parser) -> None:
        """Declare the verb's options."""

    def run(self, options: Namespace) -> int:
        """Do the work and return the exit code."""


def verbs() -> dict[str, Verb]:
    """Every verb by name: what is in `regard.cli`, apart from the machinery."""
    names = sorted(module.name for module in pkgutil.iter_modules(regard.cli.__path__))
    return {name: cast(Verb, import_module(f"regard.cli.{name}")) for name in names if name not in NOT_VERBS}


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # the file of the stream was replaced by a terminal after Python opened it
            sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be valid text
    arguments, files = _take_use(sys.argv[1:] if arguments is None else arguments)
    if "" in files:
        print("regard: --use: expected a Python file after it, got none.", file=sys.stderr)
        return WRONG_CALL
    offered = verbs()
    chosen = next((word for word in arguments if word in offered), None)

    parser = Parser(
        prog="regard", description="Attention: use it, measure it.", examples=_first_examples(offered)
    )
    parser.add_argument("--version", action="version", version=_version_line())
    use = "a Python file that registers models, mechanisms or tasks of yours; may be given several times"
    parser.add_argument("--use", metavar="FILE", help=use)  # removed above: it may come anywhere
    subcommands = parser.add_subcommands(
        dest="verb", required=False, metavar="VERB", title="verbs", description=None
    )
    for name, verb in offered.items():
        own = Parser(description=verb.SUMMARY, examples=verb.EXAMPLES)
        if name == chosen:  # the others are only listed, without their options
            verb.add_arguments(own)
            own.usage = own.short_usage(name)
            arguments = respell(arguments, own)
            parser.chosen = own
        subcommands.add_subcommand(name, own, help=verb.SUMMARY)

    for one in (parser, parser.chosen or parser):
        one.words = arguments
    options = parser.parse_args(arguments)
    if options.verb is None or parser.chosen is None:
        parser.print_help(sys.stderr)
        return WRONG_CALL
    return _run_verb(options.verb, offered[options.verb], options[options.verb], parser, files)


def _take_use(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without every `--use FILE`, and the files."""
    kept: list[str] = []
    files: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":  # arguments after it are passed on unchanged
            return [*kept, argument, *rest], files
        if argument == "--use":
            files.append(next(rest, ""))
        elif argument.startswith("--use="):
            files.append(argument.removeprefix("--use="))
        else:
            kept.append(argument)
    return kept, files


def _run_verb(name: str, verb: Verb, options: Namespace, parser: Parser, files: Sequence[str] = ()) -> int:
    """Run the verb; turn expected errors and interrupts into exit codes instead of tracebacks."""
    try:
        if files:
            from regard.plugins import load

            load(files)
        return verb.run(options)
    except RegardError as mistake:
        if _of_a_checkpoint(mistake):
            print(f"regard {name}: damaged checkpoint: {said(str(mistake), parser.words)}", file=sys.stderr)
            return FAILED
        text = mistakes.of_the_library(str(mistake), parser.chosen or parser, parser.words)
        print(f"regard {name}: {said(text, [*parser.words, *files])}", file=sys.stderr)
        return WRONG_CALL
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, UnicodeEncodeError) as trouble:  # an invalid file name, a failing disk
        print(f"regard {name}: {said(_describe(trouble), [*parser.words, *files])}", file=sys.stderr)
        return FAILED


def _of_a_checkpoint(mistake: RegardError) -> bool:
    """Whether a checkpoint is damaged. Asked of modules that are loaded: to import them takes seconds."""
    checkpoints = sys.modules.get("regard.training.run_folder.checkpoints")
    return checkpoints is not None and isinstance(mistake, checkpoints.Damaged)


def _describe(trouble: OSError | UnicodeEncodeError) -> str:
    """An error of a file, in one line."""
    if isinstance(trouble, UnicodeEncodeError):
        return f"a name or a text holds bytes that are not UTF-8: {trouble.object[:LONGEST_WORD]!r}."
    where = "" if trouble.filename is None else f"{str(trouble.filename)[:LONGEST_WORD]!r}: "
    return f"{where}{trouble.strerror or trouble}."


def _first_examples(offered: dict[str, Verb]) -> list[str]:
    return [verb.EXAMPLES[0] for verb in offered.values()]


def _version_line() -> str:
    from importlib.metadata import PackageNotFoundError, version

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "unknown"

    return f"regard {of('regard')} (torch {of('torch')}, python {sys.version.split()[0]})"
