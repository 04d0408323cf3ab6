"""`regard completion`: a script that lets a shell complete verbs, options and names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.errors import unknown_name

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from regard_workbench.cli.common.parser import Parser

SUMMARY = "Print a script with which bash, zsh or fish completes verbs, options and names."
EXAMPLES = ('eval "$(regard completion bash)"', "regard completion fish > ~/.config/fish/completions/regard.fish")

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: Parser) -> None:
    """Declare the options."""
    shell = "bash, zsh (put the first example, with zsh, into ~/.zshrc) or fish"
    parser.add_argument("shell", metavar="SHELL", type=str, help=shell)


def run(options: Namespace) -> int:
    """Print the script."""
    if options.shell not in SHELLS:
        raise unknown_name("SHELL", options.shell, SHELLS)
    from regard_workbench.cli.common.completions import fish_script, shell_script, words_of_verbs

    verbs = words_of_verbs()
    print(fish_script(verbs) if options.shell == "fish" else shell_script(verbs, zsh=options.shell == "zsh"))
    return 0
