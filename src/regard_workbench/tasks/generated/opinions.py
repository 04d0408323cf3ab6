"""Generated opinions for classifiers where no file is given: sentences that praise or blame.

Words alone do not decide: "not dull" praises, "hardly brilliant" blames, and after "but" the second half counts. The
sentences are the same on every machine.
"""

from __future__ import annotations

import functools

from regard_workbench.tasks.generated.draws import Draws

PRAISE = (
    "brilliant",
    "charming",
    "clever",
    "delightful",
    "funny",
    "moving",
    "honest",
    "graceful",
    "warm",
    "thrilling",
    "beautiful",
    "witty",
    "wise",
    "fresh",
)
BLAME = (
    "dull",
    "clumsy",
    "boring",
    "shallow",
    "tedious",
    "hollow",
    "silly",
    "bleak",
    "lifeless",
    "confused",
    "ugly",
    "stale",
    "noisy",
    "pointless",
)
SUBJECTS = (
    "the film",
    "this story",
    "the music",
    "the first act",
    "the young actor",
    "the whole evening",
    "her voice",
    "the ending",
    "his new book",
    "the play",
    "every scene",
    "the dialogue",
)
PLAIN = ("is", "was", "seems", "remains", "turned out to be")
NEGATED = ("is not", "was never", "is hardly", "is far from")
DEGREES = ("", "", "", "very ", "truly ", "rather ", "quite ")
FRAMES = ("{}", "{}", "{}", "i think {}", "most people say that {}", "in the end {}", "believe me , {}")
LABELS = ("negative", "positive")


def _clause(draws: Draws, positive: bool) -> str:
    if draws.happens(30):
        verb, words = draws.among(NEGATED), BLAME if positive else PRAISE
    else:
        verb, words = draws.among(PLAIN), PRAISE if positive else BLAME
    return f"{draws.among(SUBJECTS)} {verb} {draws.among(DEGREES)}{draws.among(words)}"


@functools.cache
def opinions(count: int = 6000) -> tuple[tuple[str, str], ...]:
    """Different sentences with "positive" or "negative"."""
    label_of: dict[str, str] = {}
    number = 0
    while len(label_of) < count:
        draws = Draws("opinion", number)
        number += 1
        positive = draws.happens(50)
        text = _clause(draws, positive)
        if draws.happens(40):
            text = f"{_clause(draws, not positive)} , but {text}"
        text = draws.among(FRAMES).format(text) + " ."
        label_of[text] = LABELS[positive]
    return tuple(label_of.items())
