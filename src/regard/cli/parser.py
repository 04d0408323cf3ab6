"""How every verb parses its arguments: one parser class, one help layout, one way to be wrong.

Options are documented with hyphens and accepted with underscores (and the other way round for options that come
from the fields of a configuration). A wrong call exits with code 2 and names the nearest thing that exists.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, DefaultHelpFormatter


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the examples, and leaves out defaults that say nothing."""

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action) or ""
        text = re.sub(r"(?:, )?default: (?:null|None|False)\b", "", text)
        return re.sub(r"\s*\((?:type: (?:str|bool))?\)", "", text)


class Parser(ArgumentParser):
    """A jsonargparse parser whose errors say "did you mean"."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "examples:\n" + "\n".join(f"  {line}" for line in examples)
        options.setdefault("formatter_class", HelpFormatter)
        options.setdefault(
            "allow_abbrev", False
        )  # a script must not change its meaning when an option is added
        super().__init__(*args, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exit with code 2, adding the nearest option or choice to what argparse found."""
        parser = getattr(ex, "subcommand_parser", None) or self
        super().error(message + _suggestion(message, parser), ex)


def respell(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Each `--some_option` or `--some-option` in the spelling the parser knows; everything else untouched."""
    known = {_canonical(option): option for option in _options(parser)}
    spelled: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":  # what follows is not ours to read
            spelled += [argument, *rest]
            break
        option, equals, value = argument.partition("=")
        if option.startswith("--"):
            option = known.get(_canonical(option), option)
        spelled.append(option + equals + value)
    return spelled


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean …?' for the closest known word, or nothing when none is close."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def _suggestion(message: str, parser: argparse.ArgumentParser) -> str:
    choice = re.search(r"invalid choice: '?([^' ]+)'? \(choose from (.*)\)", message, re.DOTALL)
    if choice:
        return "." + nearest(choice[1], [word.strip(" '\"") for word in choice[2].split(",")])
    unknown = re.search(r"unrecognized arguments: (.*)", message, re.DOTALL | re.IGNORECASE)
    for word in unknown[1].split() if unknown else []:
        found = nearest(word.partition("=")[0], _options(parser)) if word.startswith("-") else ""
        if found:
            return "." + found
    return ""


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for option in parser._option_string_actions if option.startswith("--")]


def _canonical(option: str) -> str:
    return "--" + option.removeprefix("--").replace("-", "_")
