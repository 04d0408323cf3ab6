"""How every verb parses its arguments: one parser class, one help layout, one way to be wrong.

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

from regard.cli.common import mistakes
from regard.cli.common.terminal import said

WRONG_CALL = 2


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions at the terminal's width, and examples so that they can still be typed as they stand.

    Defaults that say nothing are left out.
    """

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action) or ""
        text = re.sub(r"(?:, )?default: (?:null|None|False)\b", "", text)
        return re.sub(r"\s*\((?:type: (?:str|bool))?\)", "", text)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [
            part
            for line in text.splitlines()
            for part in (_command(line, width) if line.startswith("  regard ") else _paragraph(line, width))
        ]
        return "".join(f"{indent}{line}\n" for line in lines)


def _paragraph(line: str, width: int) -> list[str]:
    """A line of words, wrapped; what follows a list's name (`tasks:`) stands below it, indented."""
    hanging = "  " if re.match(r"[a-z]+: ", line) else ""
    found = textwrap.wrap(
        line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return found or [""]


def _command(line: str, width: int) -> list[str]:
    """A command, broken before an option or a redirection and continued with `\\`, as a shell reads it."""
    words = re.findall(r'(?:"[^"]*"|\S)+', line)
    rows = [f"  {words[0]}"]
    for place, word in enumerate(words[1:], 1):
        after = words[place + 1 : place + 2]
        begins = word.startswith(("-", ">", "|"))
        whole = " ".join([word, *after]) if begins else word  # an option and its value
        fits = len(rows[-1]) + 1 + len(whole) + 2 <= width
        if fits or not begins:
            rows[-1] += f" {word}"
        else:
            rows[-1] += " \\"
            rows.append(f"      {word}")
    return rows


class Parser(ArgumentParser):
    """A jsonargparse parser that answers a wrong call with one line."""

    # What to say of an unknown option and its value, where a verb knows more than which options are near.
    hint: Callable[[str, str], str] | None = None

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {line}" for line in examples)])
        options.setdefault("formatter_class", HelpFormatter)
        options.setdefault(
            "allow_abbrev", False
        )  # a script must not change its meaning when an option is added
        super().__init__(*args, **options)
        self.words: Sequence[str] = ()  # the arguments as they were typed
        self.chosen: Parser | None = None  # the parser of the verb that was typed

    def summed_up(self, name: str) -> str:
        """The usage of a verb in one line; its options stand below it, one by one."""
        places = [one for one in self._actions if not one.option_strings and isinstance(one.metavar, str)]
        shown = [f"[{one.metavar}]" if one.nargs == "?" else str(one.metavar) for one in places]
        return " ".join(["regard", name, *shown, "[options]"])

    def close_with(self, *lines: str) -> None:
        """Put lines at the end of the help, before the examples."""
        self.epilog = "\n".join([*lines, "", self.epilog or ""])

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with code 2 and one line."""
        parser = getattr(ex, "subcommand_parser", None) or self.chosen or self
        text = said(mistakes.of_the_parser(message, parser, self.words), self.words)
        sys.stderr.write(f"{parser.prog.replace(' [options]', '')}: {text}\n")
        self.exit(WRONG_CALL)


def respell(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Each `--some_option` or `--some-option` in the spelling the parser knows; everything else untouched."""
    known = {mistakes.canonical(option): option for option in mistakes.options(parser)}
    spelled: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":  # what follows is not ours to read
            spelled += [argument, *rest]
            break
        option, equals, value = argument.partition("=")
        if option.startswith("--"):
            option = known.get(mistakes.canonical(option), option)
        spelled.append(option + equals + value)
    return spelled
