"""Scripts of shells that complete a command line of regard.

Everything is written into the script: asking regard at each key press would import torch each time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from regard import nn
from regard_workbench import models, tasks
from regard_workbench.cli.common.command import verbs
from regard_workbench.cli.common.parser import Parser


@dataclass(frozen=True)
class VerbWords:
    """What may follow a verb."""

    summary: str
    options: dict[str, list[str]] = field(default_factory=dict)  # option: its values, where they are known
    positional: list[str] = field(default_factory=list)  # names that stand without an option


def words_of_verbs() -> dict[str, VerbWords]:
    """The words of every verb, read off its parser."""
    named = {"--model": models.names(), "--models": models.names(), "--attention": nn.names()}
    takes_task = ("train", "compare")
    found = {}
    for name, verb in verbs().items():
        parser = Parser(description=verb.SUMMARY)
        verb.add_arguments(parser)
        options: dict[str, list[str]] = {}
        for action in parser._actions:
            values = [str(choice) for choice in action.choices] if action.choices else []
            for option in action.option_strings:
                if option.startswith("--"):
                    options[option] = named.get(option, values)
        positional = tasks.names() if name in takes_task else []
        if name == "show":
            positional = [*nn.names(), *models.names(), *tasks.names()]
        elif name == "completion":
            positional = ["bash", "zsh", "fish"]
        found[name] = VerbWords(verb.SUMMARY, options, positional)
    return found


def shell_script(words: dict[str, VerbWords], zsh: bool = False) -> str:
    """A script for bash; for zsh the same one, which its own bashcompinit runs."""
    lines = ["autoload -U +X compinit && compinit -u", "autoload -U +X bashcompinit && bashcompinit"] if zsh else []
    lines += [
        "_regard() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="" word words=""',
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        f'        case "$word" in {"|".join(words)}) verb="$word"; break;; esac',
        "    done",
        '    case "$verb" in',
        f'    "") words="{" ".join(words)} --help --version --use";;',
    ]
    for verb, own in words.items():
        lines.append(f'    {verb}) case "$before" in')
        lines += [f'        {option}) words="{" ".join(values)}";;' for option, values in own.options.items() if values]
        lines.append(f'        *) words="{" ".join([*own.positional, *own.options])}";;')
        lines.append("        esac;;")
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _regard regard",
    ]
    return "\n".join(lines)


def fish_script(words: dict[str, VerbWords]) -> str:
    """A script for fish."""
    none = "not __fish_seen_subcommand_from " + " ".join(words)
    lines = ["complete -c regard -n '" + none + "' -l help", "complete -c regard -n '" + none + "' -l version"]
    for verb, own in words.items():
        here = f"'__fish_seen_subcommand_from {verb}'"
        lines.append(f"complete -c regard -f -n '{none}' -a {verb} -d {_quoted(own.summary)}")
        if own.positional:
            lines.append(f"complete -c regard -n {here} -a {_quoted(' '.join(own.positional))}")
        for option, values in own.options.items():
            known = f" -x -a {_quoted(' '.join(values))}" if values else ""
            lines.append(f"complete -c regard -n {here} -l {option.removeprefix('--')}{known}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"
