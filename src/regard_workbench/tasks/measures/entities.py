"""Named entities in BIO or IOB1 tags, found and counted by the rules of conlleval (Tjong Kim Sang and Buchholz 2000).

An entity begins with B-TYPE, or with I-TYPE where the tag before it is O or of another type. It ends before O, before
B-TYPE and before another type. One counts as found if first word, last word and type are right.

    >>> [tuple(found) for found in entities(["B-person", "I-person", "O", "I-place", "B-place"])]
    [('person', 0, 2), ('place', 3, 4), ('place', 4, 5)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from regard_workbench.tasks.answers.tags import OUTSIDE
from regard_workbench.tasks.measures.metrics import SHARE, Answered, Counts

BIO, IOB1 = "bio", "iob1"


class Entity(NamedTuple):
    """A type and the words it covers: `first` is inside, `end` is behind the last."""

    type: str
    first: int
    end: int


def begins(before: str, tag: str) -> bool:
    """Whether an entity begins at a tag, given the tag before it (O at the beginning of a sentence)."""
    return tag != OUTSIDE and (tag[:2] == "B-" or before == OUTSIDE or before[2:] != tag[2:])


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence, in order."""
    spans: list[Entity] = []
    before, opened = OUTSIDE, -1
    for at, tag in enumerate([*tags, OUTSIDE]):
        if opened >= 0 and (tag == OUTSIDE or begins(before, tag)):
            spans.append(Entity(before[2:], opened, at))
            opened = -1
        if begins(before, tag):
            opened = at
        before = tag
    return spans


def as_bio(tags: Sequence[str]) -> list[str]:
    """The same entities with B-TYPE at the first word of each, whether it was written in BIO or in IOB1."""
    pairs = zip([OUTSIDE, *tags], tags, strict=False)
    return ["B-" + tag[2:] if begins(before, tag) else tag for before, tag in pairs]


def wrong_begins(tags: Sequence[str], scheme: str) -> list[int]:
    """The positions whose tags the scheme does not allow.

    BIO: I-TYPE where an entity begins. IOB1: B-TYPE that does not directly follow an entity of the same type.
    """
    wrong = []
    before = OUTSIDE
    for at, tag in enumerate(tags):
        follows = before != OUTSIDE and before[2:] == tag[2:]
        if (scheme == BIO and tag[:2] == "I-" and not follows) or (scheme == IOB1 and tag[:2] == "B-" and not follows):
            wrong.append(at)
        before = tag
    return wrong


def counted(true: Sequence[str], guessed: Sequence[str]) -> Counter[str]:
    """Entities of a sentence that are right, guessed and true, together and for each type ("right person")."""
    theirs, ours = set(entities(true)), set(entities(guessed))
    counts: Counter[str] = Counter({"right": 0, "guessed": 0, "true": 0})
    for name, some in (("right", ours & theirs), ("guessed", ours), ("true", theirs)):
        for entity in some:
            counts[name] += 1
            counts[f"{name} {entity.type}"] += 1
    return counts


def _counts(answered: Answered) -> dict[str, float]:
    """The entities of a batch. Its notes hold the tags of each sentence in words, and the words for guesses."""
    counts: Counter[str] = Counter({"right": 0, "guessed": 0, "true": 0, "words": 0, "right words": 0})
    notes = answered.batch.notes
    for true, guessed, names in zip(notes["tags"], answered.predicted, notes["names"], strict=True):
        tags = [names[number] for number in guessed[: len(true)]]
        tags += [OUTSIDE] * (len(true) - len(tags))  # words behind the longest text that the model reads
        counts.update(counted(true, tags))
        counts["words"] += len(true)
        counts["right words"] += sum(truth == guess for truth, guess in zip(true, tags, strict=True))
    return dict(counts)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def f1(counts: Mapping[str, float], type: str = "") -> float:
    """The harmonic mean of precision and recall: 2·right / (guessed + true); 0 where there is nothing."""
    right, guessed, true = (counts.get(f"{name} {type}".strip(), 0.0) for name in ("right", "guessed", "true"))
    return _ratio(2 * right, guessed + true)


def _seen(answered: Answered) -> dict[str, float]:
    return answered.once(_counts)


F1 = Counts("f1", unit=SHARE, look=_seen, made=f1, total="true", over="entities")
PRECISION = Counts(
    "precision",
    unit=SHARE,
    look=_seen,
    total="guessed",
    over="entities found",
    made=lambda counts: _ratio(counts.get("right", 0.0), counts.get("guessed", 0.0)),
)
RECALL = Counts(
    "recall",
    unit=SHARE,
    look=_seen,
    total="true",
    over="entities",
    made=lambda counts: _ratio(counts.get("right", 0.0), counts.get("true", 0.0)),
)
ACCURACY = Counts(
    "accuracy",
    unit=SHARE,
    look=_seen,
    total="words",
    over="words",
    made=lambda counts: _ratio(counts.get("right words", 0.0), counts.get("words", 0.0)),
)


def f1_of_type(type: str) -> Counts:
    """The F1 of the entities of one type, from the state of `F1`."""
    return Counts(
        f"f1_{type}",
        unit=SHARE,
        look=_seen,
        made=lambda counts: f1(counts, type),
        total=f"true {type}",
        over="entities",
    )
