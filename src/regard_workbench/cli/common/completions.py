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
    words = {}
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
        words[name] = VerbWords(verb.SUMMARY, options, positional)
    return words


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
    for verb, verb_words in words.items():
        lines.append(f'    {verb}) case "$before" in')
        lines += [
            f'        {option}) words="{" ".join(values)}";;' for option, values in verb_words.options.items() if values
        ]
        lines.append(f'        *) words="{" ".join([*verb_words.positional, *verb_words.options])}";;')
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
    for verb, verb_words in words.items():
        condition = f"'__fish_seen_subcommand_from {verb}'"
        lines.append(f"complete -c regard -f -n '{none}' -a {verb} -d {_quoted(verb_words.summary)}")
        if verb_words.positional:
            lines.append(f"complete -c regard -n {condition} -a {_quoted(' '.join(verb_words.positional))}")
        for option, values in verb_words.options.items():
            choices = f" -x -a {_quoted(' '.join(values))}" if values else ""
            lines.append(f"complete -c regard -n {condition} -l {option.removeprefix('--')}{choices}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"
