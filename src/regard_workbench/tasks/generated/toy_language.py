"""Sentence pairs of two made-up languages with their word alignment, for the task `align` without files.

The second language says everything that makes alignment hard: adjectives follow their noun (reordered), an article
stands before each noun (null: no word of the source), some nouns are two words, and "not" stands around the verb (one
to many).
"""

from __future__ import annotations

from typing import NamedTuple

from regard_workbench.tasks.formats.gold import Gold
from regard_workbench.tasks.generated.draws import Draws

NOUNS = ("cat", "dog", "bird", "house", "tree", "river", "stone", "child", "king", "ship", "star", "road")
VERBS = ("sees", "finds", "loves", "takes", "draws", "hears", "builds", "fears")
ADJECTIVES = ("old", "red", "small", "quiet", "young", "dark", "kind", "wide")
COMPOUND = 4  # every fourth noun is two words


class AlignedTexts(NamedTuple):
    """A source and its target, words apart, and which words belong together; None: not known."""

    source: str
    target: str
    gold: Gold | None = None


def sentence(*key: object) -> AlignedTexts:
    """The sentence pair of a key, the same on every machine: subject, verb, object, and sometimes a second object."""
    draws = Draws("toy language", *key)
    source: list[str] = []
    target: list[str] = []
    links: set[tuple[int, int]] = set()

    def phrase() -> None:
        noun = draws.below(len(NOUNS))
        target.append(("lo", "la")[noun % 2])
        described = draws.happens(60)
        if described:
            adjective = draws.among(ADJECTIVES)
            source.append(adjective)
        source.append(NOUNS[noun])
        spoken = [NOUNS[noun][::-1] + "o"]
        if noun % COMPOUND == 0:
            spoken.append("de" + NOUNS[noun][:2])
        for word in spoken:
            links.add((len(source) - 1, len(target)))
            target.append(word)
        if described:
            links.add((len(source) - 2, len(target)))
            target.append(adjective[::-1] + "i")

    phrase()
    denied, verb = draws.happens(40), draws.among(VERBS)
    predicate: list[tuple[str, int]] = [(verb[::-1] + "e", len(source) + int(denied))]
    if denied:
        source.append("not")
        predicate = [("ne", len(source) - 1), *predicate, ("pas", len(source) - 1)]
    source.append(verb)
    for word, place in predicate:
        links.add((place, len(target)))
        target.append(word)
    phrase()
    if draws.happens(50):
        source.append("and")
        links.add((len(source) - 1, len(target)))
        target.append("et")
        phrase()
    return AlignedTexts(" ".join(source), " ".join(target), Gold(links, links))
