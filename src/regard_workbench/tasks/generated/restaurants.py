"""Generated dialogues about restaurants, for tasks on dialogues where no file is given.

A user has a goal (food, area, price range; "dontcare" where anything will do) and reveals it turn by turn, changes
their mind, says what they do not want, answers a question in one word; then asks for the details of an offer. The
system asks for what is missing, in the order of the slots, sometimes asks back, then names the restaurant for the goal.
What the system says follows from what was said before, so that its next turn can be learned. No line comes from a
corpus.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from regard_workbench.tasks.formats.woz import REQUEST, Dialogue, Ontology, Turn, spoken
from regard_workbench.tasks.generated.draws import Draws

GENERATED = Path("generated dialogues")
FOODS = (
    "thai",
    "indian",
    "greek",
    "french",
    "turkish",
    "korean",
    "north indian",
    "latin american",
    "seafood",
    "welsh",
    "cuban",
    "danish",
    "polish",
    "modern greek",
)
AREAS = ("north", "south", "east", "west", "centre")
PRICES = ("cheap", "moderate", "expensive")
ANY = "dontcare"
ASKED = ("phone", "address", "postcode")
GOALS = {"food": FOODS, "area": AREAS, "price range": PRICES}
ONTOLOGY: Ontology = {**{slot: list(values) for slot, values in GOALS.items()}, REQUEST: list(ASKED)}

_NAMES = {
    "food": (
        "jade",
        "saffron",
        "olive",
        "amber",
        "crescent",
        "lantern",
        "peacock",
        "condor",
        "harbour",
        "dragon",
        "cedar",
        "anchor",
        "linden",
        "marble",
    ),
    "area": ("house", "garden", "table", "kitchen", "corner"),
}
_REVEAL = {
    "food": ("i want {} food", "is there a {} restaurant ?", "i would like to eat {}", "some {} food please"),
    "area": ("in the {} of town", "somewhere in the {}", "it should be in the {}", "a place in the {} part"),
}
_REVEAL_PRICE = {
    "cheap": ("something cheap", "a cheap place", "it must not cost much", "i have little money"),
    "moderate": ("a moderately priced place", "moderate prices", "not cheap but not expensive"),
    "expensive": ("an expensive place", "something expensive", "money does not matter , the best one"),
}
_ANSWER = ("{}", "{} please", "{} would be good", "the answer is {}", "let us say {}")
_NO_MATTER = ("any", "i do not care", "it does not matter", "anything is fine", "whatever you have")
_REFUSE = ("not {} , {} please", "i changed my mind , {1} instead of {0}", "no {} today , rather {}")
_ASK = {
    "food": "what kind of food would you like ?",
    "area": "which part of town do you prefer ?",
    "price range": "what price range are you looking for ?",
}
_CONFIRM = "did you say {} ?"
_YES = ("yes", "yes please", "right", "that is right")
_REQUESTS = {
    "phone": ("phone number", "number", "telephone"),
    "address": ("address", "street"),
    "postcode": ("postcode", "post code"),
}
_REQUESTING = ("what is the {} ?", "can i have the {} please ?", "tell me the {}", "and the {} ?")
_THANKS = ("thank you , goodbye", "thanks , bye", "great , that is all")


def dialogue(split: str, index: int) -> Dialogue:
    """The dialogue of this number."""
    draws = Draws("restaurants", split, index)
    goal = {slot: ANY if draws.happens(15) else draws.among(values) for slot, values in GOALS.items()}
    turns: list[Turn] = []
    state: dict[str, str] = {}

    def say(system: str, user: str, acts: list[tuple[str, ...]], label: list[tuple[str, str]]) -> None:
        state.update({slot: value for slot, value in label if slot != REQUEST})
        turns.append(Turn(spoken(system), spoken(user), tuple(acts), tuple(label), tuple(state.items())))

    opened = [slot for slot in GOALS if draws.happens(40) and goal[slot] != ANY] or ["food"]
    utterance = " , ".join(_revealed(draws, slot, goal[slot]) for slot in opened)
    say("", utterance, [], [(slot, goal[slot]) for slot in opened])
    while missing := [slot for slot in GOALS if slot not in state]:
        slot = missing[0]
        user, label = _answered(draws, slot, goal[slot])
        say(_ASK[slot], user, [(slot,)], label)
        if draws.happens(20) and goal[slot] != ANY:
            user, label = draws.among(_YES), [(slot, goal[slot])]
            if draws.happens(40):
                before, goal[slot] = goal[slot], draws.among(GOALS[slot])
                user, label = f"no , {goal[slot]}", [(slot, goal[slot])]
                if before == goal[slot]:
                    user = draws.among(_YES)
            say(_CONFIRM.format(state[slot]), user, [(slot, state[slot])], label)
    if draws.happens(35):
        slot = draws.among(tuple(GOALS))
        before, after = state[slot], draws.among(GOALS[slot])
        if ANY not in (before, after) and before != after:
            say(_offer(state), draws.among(_REFUSE).format(before, after), [], [(slot, after)])
    wanted = [request for request in ASKED if draws.happens(55)]
    system = _offer(state)
    for request in wanted:
        word = draws.among(_REQUESTS[request])
        say(system, draws.among(_REQUESTING).format(word), [], [(REQUEST, request)])
        system = _detail(state, request)
    say(system, draws.among(_THANKS), [], [])
    return Dialogue(tuple(turns), GENERATED)


@cache
def dialogues(split: str, count: int) -> tuple[Dialogue, ...]:
    """The first dialogues of a split."""
    return tuple(dialogue(split, index) for index in range(count))


def _revealed(draws: Draws, slot: str, value: str) -> str:
    if value == ANY:
        return f"any {slot}"
    if slot in _REVEAL:
        return draws.among(_REVEAL[slot]).format(value)
    return draws.among(_REVEAL_PRICE[value])


def _answered(draws: Draws, slot: str, value: str) -> tuple[str, list[tuple[str, str]]]:
    """What the user answers to a question for a slot, and what it means."""
    if value == ANY:
        return draws.among(_NO_MATTER), [(slot, value)]
    if draws.happens(50):
        return draws.among(_ANSWER).format(value), [(slot, value)]
    return _revealed(draws, slot, value), [(slot, value)]


def _name(state: dict[str, str]) -> str:
    """The restaurant for a goal: its first word follows from the food, its second from the area."""
    words = []
    for slot, names in _NAMES.items():
        value = state[slot]
        words.append("old" if value == ANY else names[GOALS[slot].index(value)])
    return " ".join(words)


def _offer(state: dict[str, str]) -> str:
    kinds = [state[slot] for slot in ("price range", "food") if state[slot] != ANY]
    where = "" if state["area"] == ANY else f" in the {state['area']}"
    return f"the {_name(state)} is a nice {' '.join([*kinds, 'restaurant'])}{where} ."


def _detail(state: dict[str, str], asked: str) -> str:
    first, second = _name(state).split()
    numbers = {
        "phone": f"{len(first)}{len(second)} {10 * len(first)}",
        "address": f"{len(first + second)} {second} street",
        "postcode": f"{first[0]}{second[0]} {len(second)}",
    }
    return f"the {asked} of the {first} {second} is {numbers[asked]} ."
