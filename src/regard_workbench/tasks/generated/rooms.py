"""Generated stories of people who walk through rooms and carry things, with questions, where no file is given.

Four kinds of questions: where a person is (one sentence tells), where a thing is (two sentences tell), who took a thing
last, how many things a person carries. The stories are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from regard_workbench.tasks.generated.draws import Draws

PEOPLE = ("Mira", "Otto", "Lena", "Paul")
ROOMS = ("kitchen", "garden", "cellar", "attic", "hall")
THINGS = ("lamp", "book", "apple")
GOING = ("walked to", "went to", "ran to")
TAKING = ("took", "picked up")
LEAVING = ("put down", "left")
NUMBERS = ("none", "one", "two", "three")
KINDS = ("person", "thing", "taker", "count")


@dataclass
class _World:
    """Who is where, and who carries what; `told` holds for each fact the sentences that tell it."""

    at: dict[str, str] = field(default_factory=dict)
    carried: dict[str, str] = field(default_factory=dict)  # thing → person
    lies: dict[str, str] = field(default_factory=dict)  # thing → room
    taken: dict[str, tuple[str, int]] = field(default_factory=dict)  # thing → who took it last, in which sentence
    told: dict[str, tuple[int, ...]] = field(default_factory=dict)


def _sentence(draws: Draws, world: _World, number: int) -> str:
    """Something happens, and the world is changed by it."""
    who = draws.among(PEOPLE)
    mine = sorted(thing for thing, owner in world.carried.items() if owner == who)
    current_room = world.at.get(who)
    free = sorted(
        thing for thing in THINGS if thing not in world.carried and world.lies.get(thing, current_room) == current_room
    )
    if current_room and mine and draws.happens(25):
        thing = draws.among(mine)
        del world.carried[thing]
        world.lies[thing] = current_room
        world.told[thing] = (number, *world.told[who])
        return f"{who} {draws.among(LEAVING)} the {thing}"
    if current_room and free and draws.happens(50):
        thing = draws.among(free)
        world.carried[thing] = who
        world.taken[thing] = (who, number)
        world.lies.pop(thing, None)
        world.told[thing] = (number,)
        return f"{who} {draws.among(TAKING)} the {thing}"
    room = draws.among([room for room in ROOMS if room != current_room])
    world.at[who] = room
    world.told[who] = (number,)
    return f"{who} {draws.among(GOING)} the {room}"


def _question(draws: Draws, world: _World, kind: str) -> tuple[str, str, tuple[int, ...]] | None:
    """A question, its answer and the sentences that tell it; None where nothing can be asked."""
    who = draws.among(sorted(world.at)) if world.at else ""
    if kind == "person":
        return f"Where is {who}", world.at[who], world.told[who]
    if kind == "thing":
        things = sorted({*world.carried, *world.lies})
        if not things:
            return None
        thing = draws.among(things)
        owner = world.carried.get(thing)
        place = world.at[owner] if owner else world.lies[thing]
        evidence = world.told[thing] + (world.told[owner] if owner else ())
        return f"Where is the {thing}", place, tuple(sorted(set(evidence)))
    if kind == "taker":
        if not world.taken:
            return None
        thing = draws.among(sorted(world.taken))
        who, number = world.taken[thing]
        return f"Who took the {thing}", who.lower(), (number,)
    mine = [thing for thing, owner in world.carried.items() if owner == who]
    tells = sorted({number for thing in mine for number in world.told[thing]})
    return f"How many things does {who} carry", NUMBERS[len(mine)], tuple(tells)


def story(seed: int, split: str, index: int, longest: int = 10) -> tuple[list[str], str, str, tuple[int, ...], str]:
    """Sentences, a question, its answer, which sentences tell it, and the kind of the question."""
    draws = Draws("rooms", seed, split, index)
    kind = KINDS[index % len(KINDS)]
    while True:
        world = _World()
        sentences = [_sentence(draws, world, number) for number in range(2 + draws.below(longest - 1))]
        question = _question(draws, world, kind)
        if question is not None:
            return sentences, *question, kind
