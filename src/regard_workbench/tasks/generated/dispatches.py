"""Generated sentences with names of persons, places and companies, for tagging where no file is given.

Names are made of syllables, so that most names of the test set never occur in training: what a name is has to be read
off its letters (place names end in -burg, -stad …), its capitals and the words around it. Some names are both a
person's and a place's, and only the context tells. The sentences are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard_workbench.tasks.generated.draws import Draws

Tagged = tuple[list[str], list[str]]  # words and their tags in BIO

BEGINNINGS = (
    "An",
    "Bel",
    "Car",
    "Dor",
    "El",
    "Fal",
    "Gar",
    "Hel",
    "Is",
    "Jor",
    "Kel",
    "Lan",
    "Mar",
    "Nor",
    "Or",
    "Pel",
    "Quin",
    "Ros",
    "Sel",
    "Tam",
    "Ul",
    "Vor",
    "Wen",
    "Yor",
    "Zan",
    "Bran",
    "Cal",
    "Den",
    "Er",
    "Fin",
    "Hol",
    "Mir",
)
MIDDLES = ("a", "e", "i", "o", "an", "er", "in", "ol", "ar", "en", "il", "or", "be", "da", "li", "mo", "ra", "ti")
FIRST_NAMES = ("na", "ra", "lia", "rik", "dan", "mir", "bert", "sa", "tin", "vin", "ya", "lo")
FAMILY_NAMES = ("son", "mann", "ski", "ez", "ova", "ier", "well", "strom", "ley", "acci")
PLACES = ("burg", "stad", "ford", "haven", "ton", "dal", "vik", "mouth", "bad", "grad")
COMPANIES = ("tech", "soft", "corp", "motors", "bank", "foods", "air", "labs")
ENDINGS = ("Inc", "Group", "Ltd", "AG", "Holding")
TITLES = ("Mr", "Mrs", "Dr", "minister", "president", "coach", "singer", "professor")
SAYING = ("said", "explained", "denied", "wrote", "announced", "repeated")
GOING = ("arrived in", "left", "returned to", "flew to", "was seen in", "lives in", "moved to")
BUYING = ("sold shares of", "works for", "sued", "invested in", "resigned from", "founded")
DAYS = ("yesterday", "on Monday", "last week", "this morning", "in May", "on Friday", "two years ago")
CLAIMS = (
    "that prices will rise",
    "that nobody was hurt",
    "that the talks have failed",
    "that the match is lost",
    "that there is no plan",
    "that the bridge stays closed",
    "that the vote was fair",
)
PLAIN = (
    "The weather stays warm until Sunday .",
    "Shares fell by two percent after the report .",
    "Nobody was hurt when the Old Bridge was closed .",
    "Tickets for the Final are sold out .",
    "The Government wants to lower taxes next year .",
    "Rain is expected in the north .",
)


def _stem(draws: Draws) -> str:
    return draws.among(BEGINNINGS) + (draws.among(MIDDLES) if draws.happens(70) else "")


def _person(draws: Draws) -> list[str]:
    # One family name in four is a place name: "Keldal" alone does not say which it is.
    family = _stem(draws) + draws.among(PLACES if draws.happens(25) else FAMILY_NAMES)
    return [_stem(draws) + draws.among(FIRST_NAMES), family] if draws.happens(60) else [family]


def _place(draws: Draws) -> list[str]:
    name = _stem(draws) + draws.among(PLACES)
    return [draws.among(("New", "North", "Port", "Saint")), name] if draws.happens(20) else [name]


def _company(draws: Draws) -> list[str]:
    name = _stem(draws) + draws.among(COMPANIES)
    return [name, draws.among(ENDINGS)] if draws.happens(50) else [name]


MAKERS = {"person": _person, "place": _place, "company": _company}


def _pattern(draws: Draws) -> list[str]:
    """A sentence whose names are still the words <person>, <place> and <company>."""
    who = f"{draws.among(TITLES)} <person>" if draws.happens(50) else "<person>"
    kind = draws.below(6)
    if kind == 0:
        sentence = f"{who} {draws.among(SAYING)} {draws.among(DAYS)} {draws.among(CLAIMS)} ."
    elif kind == 1:
        sentence = f"{draws.among(DAYS).capitalize()} {who} {draws.among(GOING)} <place> ."
    elif kind == 2:
        sentence = f"{who} of <company> {draws.among(GOING)} <place> {draws.among(DAYS)} ."
    elif kind == 3:
        sentence = f"<company> , based in <place> , {draws.among(SAYING)} {draws.among(CLAIMS)} ."
    elif kind == 4:
        sentence = f"{who} and {draws.among(TITLES)} <person> {draws.among(BUYING)} <company> ."
    else:
        sentence = draws.among(PLAIN)
    return sentence.split()


def dispatch(seed: int, split: str, index: int) -> Tagged:
    """The words of a sentence and their tags in BIO."""
    draws = Draws("dispatches", seed, split, index)
    words: list[str] = []
    tags: list[str] = []
    for word in _pattern(draws):
        kind = word[1:-1] if word[0] == "<" and word[-1] == ">" else ""
        if not kind:
            words.append(word)
            tags.append("O")
            continue
        name = MAKERS[kind](draws)
        words += name
        tags += [f"{'I' if place else 'B'}-{kind}" for place in range(len(name))]
    if draws.happens(10):  # as some people type
        words = [word.lower() for word in words]
    return words, tags


def dispatches(seed: int, split: str, count: int) -> Sequence[Tagged]:
    """The sentences of a split."""
    return [dispatch(seed, split, index) for index in range(count)]
