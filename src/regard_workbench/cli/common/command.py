"""`regard VERB …`: find the verb's module, parse its arguments, run it.

A verb is a module or package in `regard_workbench.cli` that holds

    SUMMARY: str                      one line for `regard --help`
    EXAMPLES: tuple[str, ...]         real commands, shown at the end of `regard VERB --help`
    add_arguments(parser) -> None     its options
    run(options) -> int               its work; the exit code

Its heavy imports belong inside `run`: every verb is loaded to list the verbs, one alone where it is the first word.
Results go to stdout, progress to stderr, so that `regard … --json | jq` always works.
"""

from __future__ import annotations

import io
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol, cast

from jsonargparse import Namespace

import regard_workbench.cli
from regard.errors import RegardError
from regard_workbench.cli.common import mistakes
from regard_workbench.cli.common.parser import WRONG_CALL, Parser, respell
from regard_workbench.cli.common.terminal import LONGEST_WORD, said

FAILED = 1
NOT_VERBS = {"main", "common"}
_FAILURES = (
    ("checkpoints", "Damaged", "damaged checkpoint: "),
    ("durable", "ReadFailed", ""),
    ("durable", "StorageFailed", ""),
)


class Verb(Protocol):
    """The interface of a verb's module."""

    SUMMARY: str
    EXAMPLES: tuple[str, ...]

    def add_arguments(self, parser: Parser) -> None:
        """Declare the verb's options."""

    def run(self, options: Namespace) -> int:
        """Do the work and return the exit code."""


def names_of_verbs() -> list[str]:
    """What is in `regard_workbench.cli`, apart from the machinery."""
    modules = (module.name for module in pkgutil.iter_modules(regard_workbench.cli.__path__))
    return sorted(name for name in modules if name not in NOT_VERBS)


def verbs(names: Iterable[str] | None = None) -> dict[str, Verb]:
    """The modules of the verbs with these names, by default of all."""
    wanted = names_of_verbs() if names is None else names
    return {name: cast(Verb, import_module(f"regard_workbench.cli.{name}")) for name in wanted}


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # the file of the stream was replaced by a terminal after Python opened it
            sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be valid text
    arguments, files = _take_use(sys.argv[1:] if arguments is None else arguments)
    if "" in files:
        print("regard: --use: expected a Python file after it, got none.", file=sys.stderr)
        return WRONG_CALL
    verb_names = names_of_verbs()
    chosen = next((word for word in arguments if word in verb_names), None)
    # Words before a verb may be `--help`, which lists all of them.
    offered = verbs([chosen] if chosen is not None and arguments[0] == chosen else verb_names)

    parser = Parser(prog="regard", description="Attention: use it, measure it.", examples=_first_examples(offered))
    parser.add_argument("--version", action="version", version=_version_line())
    use = "a Python file that registers models, mechanisms or tasks of yours; may be given several times"
    parser.add_argument("--use", metavar="FILE", help=use)  # removed above: it may come anywhere
    subcommands = parser.add_subcommands(dest="verb", required=False, metavar="VERB", title="verbs", description=None)
    for name, verb in offered.items():
        verb_parser = Parser(description=verb.SUMMARY, examples=verb.EXAMPLES)
        if name == chosen:  # the others are only listed, without their options
            verb.add_arguments(verb_parser)
            verb_parser.usage = verb_parser.short_usage(name)
            arguments = respell(arguments, verb_parser)
            parser.chosen = verb_parser
        subcommands.add_subcommand(name, verb_parser, help=verb.SUMMARY)

    for active in (parser, parser.chosen or parser):
        active.words = arguments
    options = parser.parse_args(arguments)
    if options.verb is None or parser.chosen is None:
        parser.print_help(sys.stderr)
        return WRONG_CALL
    return _run_verb(options.verb, offered[options.verb], options[options.verb], parser, files)


def _take_use(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without every `--use FILE`, and the files."""
    kept: list[str] = []
    files: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":  # arguments after it are passed on unchanged
            return [*kept, argument, *remaining], files
        if argument == "--use":
            files.append(next(remaining, ""))
        elif argument.startswith("--use="):
            files.append(argument.removeprefix("--use="))
        else:
            kept.append(argument)
    return kept, files


def _run_verb(name: str, verb: Verb, options: Namespace, parser: Parser, files: Sequence[str] = ()) -> int:
    """Run the verb; turn expected errors and interrupts into exit codes instead of tracebacks."""
    try:
        os.getcwd()
    except FileNotFoundError:  # libraries would fail with words of their own, some by ending the process
        print(f"regard {name}: the current folder was deleted. Go to one that exists.", file=sys.stderr)
        return FAILED
    try:
        if files:
            from regard_workbench.plugins import load

            load(files)
        with _own_warnings_as_notes():
            return verb.run(options)
    except RegardError as mistake:
        if (failure := _failure(mistake)) is not None:
            print(f"regard {name}: {failure}{said(str(mistake), parser.words)}", file=sys.stderr)
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


def _failure(mistake: RegardError) -> str | None:
    """What a message begins with where the disk, not the call, is at fault; None for a wrong call."""
    for module, name, words in _FAILURES:
        loaded = sys.modules.get(f"regard_workbench.training.run_folder.{module}")  # to import it would take seconds
        if loaded is not None and isinstance(mistake, getattr(loaded, name)):
            return words
    return None


@contextmanager
def _own_warnings_as_notes() -> Iterator[None]:
    """Inside, a warning of this package is one line for the user, without the line of code that raised it."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any, **named: Any
        ) -> None:
            if category.__module__.partition(".")[0] in ("regard", "regard_workbench"):
                print(f"note: {message}", file=sys.stderr)
            else:
                usual(message, category, filename, lineno, *more, **named)

        warnings.showwarning = show
        yield


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
