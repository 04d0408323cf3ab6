"""Generated text for language models where no file is given: small stories of a village, about 200 kB.

The grammar has what a model of language should find: verbs agree with their subject, a pronoun fits the one it stands
for, things are picked up before they are put down, a story closes with the name it opened with. The text is the same
on every machine.
"""

from __future__ import annotations

import functools

from regard_workbench.tasks.generated.draws import Draws

PEOPLE = (
    ("the miller", "he", "his"),
    ("the old fisherman", "he", "his"),
    ("the young baker", "she", "her"),
    ("the queen", "she", "her"),
    ("the blacksmith", "he", "his"),
    ("the shepherd", "she", "her"),
    ("the grey cat", "it", "its"),
    ("the lost dog", "it", "its"),
    ("the two brothers", "they", "their"),
    ("the children", "they", "their"),
    ("Anna", "she", "her"),
    ("Boris", "he", "his"),
    ("Clara", "she", "her"),
    ("David", "he", "his"),
    ("the travelling musicians", "they", "their"),
    ("the teacher", "she", "her"),
)
PLURAL = "they"
PLACES = (
    "the river",
    "the old mill",
    "the market",
    "the forest",
    "the harbour",
    "the castle",
    "the bridge",
    "the garden",
    "the hill",
    "the school",
    "the lake",
    "the church",
)
THINGS = (
    "a loaf of bread",
    "a silver coin",
    "a red apple",
    "a long rope",
    "a small lamp",
    "a broken wheel",
    "a letter",
    "a basket of eggs",
    "a wooden boat",
    "a heavy stone",
    "a warm coat",
    "a jar of honey",
)
WEATHER = (
    "it rains",
    "the sun shines",
    "the wind blows from the north",
    "snow lies on the roofs",
    "fog hides the valley",
    "the stars are bright",
    "the air is warm",
)
TIMES = ("In the morning", "At noon", "In the evening", "At night", "On the first day of spring", "Late in autumn")
MOODS = ("happy", "tired", "hungry", "proud", "afraid", "curious", "quiet", "patient")
GOING = (("walks", "walk"), ("runs", "run"), ("hurries", "hurry"), ("returns", "return"), ("comes", "come"))
FINDING = (("finds", "find"), ("picks up", "pick up"), ("buys", "buy"), ("borrows", "borrow"))
LEAVING = (("leaves", "leave"), ("hides", "hide"), ("puts down", "put down"), ("forgets", "forget"))
KEEPING = (("keeps", "keep"), ("carries", "carry"), ("polishes", "polish"), ("guards", "guard"))
SAYING = (("says", "say"), ("whispers", "whisper"), ("answers", "answer"), ("sings", "sing"))
WORDS = (
    "I have been here before",
    "we must not wait any longer",
    "nobody knows the way home",
    "the best bread is eaten warm",
    "what is lost can be found",
    "a good friend is never far",
)

BYTES = 200_000


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _definite(thing: str) -> str:
    return "the " + thing.split(" ", 1)[1]


def _story(draws: Draws) -> str:
    name, pronoun, possessive = draws.among(PEOPLE)
    form = 1 if pronoun == PLURAL else 0
    first, second = draws.among(PLACES), draws.among(PLACES)
    thing = draws.among(THINGS)
    mood = draws.among(MOODS)
    be = ("is", "are")[form]
    going = draws.among(GOING)[form]
    lines = [f"{draws.among(TIMES)} {name} {going} to {first}, and {draws.among(WEATHER)}."]
    if draws.happens(60):
        lines.append(f"{_capital(pronoun)} {be} {mood}.")
    lines.append(f"There {pronoun} {draws.among(FINDING)[form]} {thing}.")
    if draws.happens(50):
        lines.append(
            f"{_capital(pronoun)} {draws.among(KEEPING)[form]} {_definite(thing)} on {possessive} way to {second}."
        )
    if draws.happens(40):
        speaker, their_pronoun, _ = draws.among([person for person in PEOPLE if person[0] != name])
        verb = draws.among(SAYING)[1 if their_pronoun == PLURAL else 0]
        lines.append(f'{_capital(speaker)} {verb}: "{_capital(draws.among(WORDS))}."')
    if draws.happens(70):
        lines.append(f"At {second} {pronoun} {draws.among(LEAVING)[form]} {_definite(thing)}.")
    lines.append(f"So {name} {be} {mood if draws.happens(50) else draws.among(MOODS)} again.")
    return " ".join(lines) + "\n"


@functools.cache
def story_text() -> str:
    """The stories, one to a line."""
    stories, size, number = [], 0, 0
    while size < BYTES:
        stories.append(_story(Draws("story", number)))
        size += len(stories[-1])
        number += 1
    return "".join(stories)
