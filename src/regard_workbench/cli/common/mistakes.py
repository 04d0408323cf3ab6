"""Error messages of the command line, in one line: the option as typed, what came, what was expected, what to try.

Messages of the parser about a wrong call, and of the library about a wrong argument, are translated to the options that
were typed. A message in an unknown form stays as it is.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence

from regard.errors import closest

_KINDS = {"int": "a whole number", "float": "a number", "str": "some text", "bool": "true or false"}
_CHOICE = re.compile(r"argument (\S+): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)
_REQUIRED = re.compile(r"the following arguments are required: (.*)", re.DOTALL)
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)", re.DOTALL | re.IGNORECASE)
_NO_VALUE = re.compile(r"argument (\S+): expected (?:one|at least one) argument")
_SURPLUS = re.compile(r"argument (\S+): ignored explicit argument '?(.*?)'?", re.DOTALL)
_KEY = re.compile(r"Parser key \"([^\"]+)\":\s*(.*)", re.DOTALL)
_KIND = re.compile(r"Expected a <class '(\w+)'>\. Got value: ?(.*)", re.DOTALL)
_NESTED = re.compile(r"NestedArg\(key='(.*?)', val='?(.*?)'?\)", re.DOTALL)
_ARGUMENT = re.compile(r"(\s*)([a-z_]+(?:\.[a-z_]+)?(?:, [a-z_]+)*): ")


def of_the_parser(message: str, parser: argparse.ArgumentParser, words: Sequence[str] = ()) -> str:
    """A message of a verb's parser, in one line; `words` are the arguments as typed."""
    if match := _CHOICE.fullmatch(message):
        return _not_among(match[1], match[2], re.findall(r"[^\s,'\"]+", match[3]))
    if match := _REQUIRED.fullmatch(message):
        return _missing(match[1].split(", ")[0], parser)
    if match := _UNKNOWN.fullmatch(message):
        return _unknown(_typed(match[1], words), parser)
    if match := _NO_VALUE.fullmatch(message):
        return f"{match[1]}: expected a value after it, got none.{_help(match[1], parser)}"
    if match := _SURPLUS.fullmatch(message):
        return f"{match[1]}: it takes no value, got {match[2]!r}. Give {match[1]} alone, or leave it out."
    if match := _KEY.fullmatch(message):
        kind = _KIND.fullmatch(match[2].strip())
        if nested := _NESTED.fullmatch(kind[2]) if kind else None:
            return _unknown([f"{option_of(match[1], parser)}.{nested[1]}", nested[2]], parser)
        expectation = f"expected {_KINDS.get(kind[1], kind[1])}, got {kind[2]!r}." if kind else _one_line(match[2])
        return f"{option_of(match[1], parser)}: {expectation}"
    return _one_line(message)


def of_the_library(message: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """A message that names a Python argument (`batch_size: …`), with the typed option (`--batch-size: …`) in its place.

    Only typed options are replaced: a setting from a file keeps its name.
    """
    typed = {canonical(word.partition("=")[0]) for word in words if word.startswith("--")}

    def spelled(name: str) -> str:
        option = option_of(name, parser)
        return option if canonical(option) in typed or not option.startswith("-") else name

    lines = message.split("\n")
    for index, line in enumerate(lines):
        if match := _ARGUMENT.match(line):
            names = ", ".join(map(spelled, match[2].split(", ")))
            lines[index] = f"{match[1]}{names}: {line[match.end() :]}"
    return "\n".join(lines)


def option_of(name: str, parser: argparse.ArgumentParser) -> str:
    """How an argument is given: `--batch-size`, or RUN for a positional one; else the name itself."""
    for action in parser._actions:
        if action.dest == name and (action.option_strings or isinstance(action.metavar, str)):
            return action.option_strings[-1] if action.option_strings else str(action.metavar)
    return name


def options(parser: argparse.ArgumentParser) -> list[str]:
    """Every long option of a parser."""
    return [option for option in parser._option_string_actions if option.startswith("--")]


def canonical(option: str) -> str:
    """One spelling for `--some-option` and `--some_option`."""
    return "--" + option.removeprefix("--").replace("-", "_")


def nearest(word: str, known: Sequence[str]) -> str:
    """' Did you mean …?' for the closest known word, or nothing when none is close."""
    near = closest(word, known)
    return f" Did you mean {near!r}?" if near is not None else ""


def _not_among(name: str, given: str, choices: Sequence[str]) -> str:
    return f"{name}: there is no {given!r}.{nearest(given, choices)} Known: {', '.join(choices)}."


def _missing(name: str, parser: argparse.ArgumentParser) -> str:
    plain = name.rpartition(".")[2]
    return f"{option_of(plain, parser)} is missing.{_help(plain, parser)}"


def _help(name: str, parser: argparse.ArgumentParser) -> str:
    """The help text of an option or argument, as a sentence."""
    for action in parser._actions:
        if action.help and name in (action.dest, *action.option_strings):
            return f" Meaning: {action.help}."
    return ""


def _typed(joined: str, words: Sequence[str]) -> list[str]:
    """The arguments that a message joined with spaces, separated as typed."""
    arguments, remaining = [], joined
    for word in words:
        if remaining == word or remaining.startswith(f"{word} "):
            arguments.append(word)
            remaining = remaining[len(word) + 1 :]
    return joined.split() if remaining else arguments


def _unknown(words: Sequence[str], parser: argparse.ArgumentParser) -> str:
    """Unknown options; without any, the first surplus argument."""
    unknown = [word for word in words if word.startswith("-")]
    if not unknown:
        return f"{words[0]!r} is one argument too many. Put a value that holds spaces in quotes."
    hint: Callable[[str, str], str] = getattr(parser, "hint", None) or (lambda option, value: "")
    complaints = []
    for word in unknown:
        option, equals, value = word.partition("=")
        after = words[words.index(word) + 1 :][:1]
        value = value if equals else next(iter(after), "")
        complaints.append(f"{option}: there is no such option.{hint(option, value) or _meant(option, parser)}")
    return " ".join(complaints)


def _meant(option: str, parser: argparse.ArgumentParser) -> str:
    """The nearest option, by its full name or by the part after the dot."""
    declared = options(parser)
    dotted = [name for name in declared if name.startswith(f"{option}.")]
    if dotted:
        return f" It has parts: {', '.join(dotted)}."
    names = {name.removeprefix("--"): name for name in declared}
    names |= {name.rpartition(".")[2]: name for name in declared if "." in name}
    word = option.lstrip("-").replace("_", "-")
    near = closest(word, names)
    return f" Did you mean {names[near]!r}?" if near is not None else ""


def _one_line(message: str) -> str:
    return " ".join(message.split())
