"""How every verb parses its arguments: one parser class, one help layout, one form of error message.

Options are documented with hyphens and accepted with underscores (and the other way round for options that come
from the fields of a configuration). A wrong call exits with code 2 and one line, worded by `mistakes.py`.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from regard_workbench.cli.common import mistakes
from regard_workbench.cli.common.terminal import said

WRONG_CALL = 2


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions at the terminal's width, and examples so that they can still be copied into a shell.

    Defaults without information (None, False) are left out.
    """

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action) or ""
        text = re.sub(r"(?:, )?default: (?:null|None|False)\b", "", text)
        return re.sub(r"\s*\((?:type: (?:str|bool))?\)", "", text)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [
            row
            for line in text.splitlines()
            for row in (_command(line, width) if line.startswith("  regard ") else _paragraph(line, width))
        ]
        return "".join(f"{indent}{line}\n" for line in lines)


def _paragraph(line: str, width: int) -> list[str]:
    """A wrapped line; continuation lines of a list (`tasks: …`) are indented."""
    hanging = "  " if re.match(r"[a-z]+: ", line) else ""
    rows = textwrap.wrap(line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
    return rows or [""]


def _command(line: str, width: int) -> list[str]:
    """A command, broken before an option or a redirection and continued with `\\`, as a shell reads it."""
    words = re.findall(r'(?:"[^"]*"|\S)+', line)
    rows = [f"  {words[0]}"]
    for index, word in enumerate(words[1:], 1):
        after = words[index + 1 : index + 2]
        begins = word.startswith(("-", ">", "|"))
        with_value = " ".join([word, *after]) if begins else word  # an option and its value
        fits = len(rows[-1]) + 1 + len(with_value) + 2 <= width
        if fits or not begins:
            rows[-1] += f" {word}"
        else:
            rows[-1] += " \\"
            rows.append(f"      {word}")
    return rows


class Parser(ArgumentParser):
    """A jsonargparse parser that reports a wrong call in one line."""

    # A hint for an unknown option and its value, where a verb knows more than the nearest options.
    hint: Callable[[str, str], str] | None = None

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {line}" for line in examples)])
        options.setdefault("formatter_class", HelpFormatter)
        options.setdefault("allow_abbrev", False)  # adding an option must not change the meaning of scripts
        super().__init__(*args, **options)
        self.words: Sequence[str] = ()  # the arguments as typed
        self.chosen: Parser | None = None  # the parser of the typed verb

    def short_usage(self, name: str) -> str:
        """The usage of a verb in one line; its options are listed below it."""
        positional = [
            action for action in self._actions if not action.option_strings and isinstance(action.metavar, str)
        ]
        shown = [f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar) for action in positional]
        return " ".join(["regard", name, *shown, "[options]"])

    def add_to_epilog(self, *lines: str) -> None:
        """Add lines at the end of the help, before the examples."""
        self.epilog = "\n".join([*lines, "", self.epilog or ""])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with code 2 and one line."""
        parser = getattr(ex, "subcommand_parser", None) or self.chosen or self
        text = said(mistakes.of_the_parser(message, parser, self.words), self.words)
        sys.stderr.write(f"{parser.prog.replace(' [options]', '')}: {text}\n")
        self.exit(WRONG_CALL)


def respell(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Options with hyphens or underscores in the spelling that the parser knows; everything else unchanged."""
    spellings = {mistakes.canonical(option): option for option in mistakes.options(parser)}
    spelled: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":  # arguments after it are passed on unchanged
            spelled += [argument, *remaining]
            break
        option, equals, value = argument.partition("=")
        if option.startswith("--"):
            option = spellings.get(mistakes.canonical(option), option)
        spelled.append(option + equals + value)
    return spelled
