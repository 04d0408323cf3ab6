"""Environments by name: a maze that comes with the package, and those of gymnasium.

An environment is a function of its seed and of the actions: `reset(seed)` begins an episode, `act` goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from regard.errors import BadValue, Unsupported
from regard_workbench.tasks.agents.grid_views import drawn_view, remember_views
from regard_workbench.tasks.generated.draws import Draws

Seen = NDArray[np.float32]
Drawn = NDArray[np.float32]
CORRIDOR = 6  # steps from the start to the junction


@dataclass(frozen=True)
class EnvironmentFacts:
    """What a policy must know of an environment to be built."""

    width: int  # numbers of one observation
    actions: tuple[str, ...]  # what each action is called
    limit: int  # the most steps of an episode
    good: float  # an episode that returns more than this, or just so much where `reached`, is a success
    reached: bool = False


class Moment(NamedTuple):
    """What an action led to."""

    seen: Seen
    reward: float
    ended: bool  # by what was done
    cut: bool  # by the limit of steps


class Environment(Protocol):
    """One episode at a time."""

    facts: EnvironmentFacts

    def reset(self, seed: int) -> Seen:
        """Begin an episode."""

    def act(self, action: int) -> Moment:
        """Take an action."""

    def picture(self, seen: Seen) -> Drawn | None:
        """An observation as a picture (height, width, 3) from 0 to 1; None where it is none."""


class TMaze:
    """A corridor with a junction at its end. At the start a sign says on which side the goal is; it is seen only there.

    Observations: sign up, sign down, corridor, junction. Turning in the corridor or walking on at the junction changes
    nothing. The right side returns 1 − 0.9 · steps / limit, the other one 0. Without memory half of the
    episodes succeed.

    Paper: Bakker 2002 (the T-maze).
    """

    facts = EnvironmentFacts(width=4, actions=("walk", "up", "down"), limit=4 * CORRIDOR, good=0.0)

    def reset(self, seed: int) -> Seen:
        self.up = Draws("t-maze", seed).below(2) == 1
        self.place = self.steps = 0
        return self._seen()

    def act(self, action: int) -> Moment:
        self.steps += 1
        reward, ended = 0.0, False
        if self.place == CORRIDOR and action > 0:
            ended = True
            right = (action == 1) == self.up
            reward = 1 - 0.9 * self.steps / self.facts.limit if right else 0.0
        elif self.place < CORRIDOR and action == 0:
            self.place += 1
        return Moment(self._seen(), reward, ended, not ended and self.steps >= self.facts.limit)

    def picture(self, seen: Seen) -> Drawn | None:
        return None

    def _seen(self) -> Seen:
        start, end = self.place == 0, self.place == CORRIDOR
        return np.array([start and self.up, start and not self.up, not start and not end, end], dtype=np.float32)


class Gymnasium:
    """An environment of gymnasium, by its name; the names of minigrid are known where it is installed.

    Observations are flattened into one row of numbers: a box as it is, the picture of minigrid as three one-hot codes
    for each cell (object, colour, state) and the direction as another one.
    """

    def __init__(self, name: str) -> None:
        try:
            import gymnasium

            if name.startswith("MiniGrid"):
                import minigrid  # noqa: F401  # registers its environments
        except ImportError as missing:
            raise Unsupported(
                f"env: {name!r} needs the package {missing.name}, which is not installed. Try pip install "
                '"regard[agents]", or env=t-maze, which needs nothing.'
            ) from missing
        try:
            # The checker runs in the first step of each episode only, and finds what the tests of a library should.
            self.world: Any = gymnasium.make(name, disable_env_checker=True)
        except gymnasium.error.Error as unknown:
            raise BadValue(
                f"env: there is no {name!r} in gymnasium: {unknown}. Try CartPole-v1, MiniGrid-MemoryS7-v0 or t-maze."
            ) from None
        spaces = gymnasium.spaces
        actions, observations = self.world.action_space, self.world.observation_space
        if not isinstance(actions, spaces.Discrete):
            raise BadValue(f"env: {name!r} takes {actions}, and only a choice among several actions is learned.")
        self.grid = (
            isinstance(observations, spaces.Dict)
            and "image" in observations.spaces
            and "direction" in observations.spaces
        )
        if not self.grid and not (isinstance(observations, spaces.Box) and observations.shape):
            raise BadValue(
                f"env: {name!r} shows {observations}, and only boxes of numbers and grids of cells are read."
            )
        if isinstance(observations, spaces.Dict):  # a grid
            remember_views(self.world.unwrapped)
            self.codes = _code_places(int(np.prod((observations["image"].shape or ())[:2])))
        self.first = int(actions.start)
        limit = getattr(self.world.spec, "max_episode_steps", None) or getattr(self.world.unwrapped, "max_steps", None)
        if limit is None:
            raise BadValue(f"env: {name!r} has no limit of steps, so that its episodes may never end.")
        named: Any = getattr(self.world.unwrapped, "actions", None)
        action_names = [member.name for member in named] if hasattr(named, "__members__") else []
        names = action_names if len(action_names) == int(actions.n) else [str(n) for n in range(int(actions.n))]
        threshold = getattr(self.world.spec, "reward_threshold", None)
        width = len(self._flat(self.world.reset(seed=0)[0]))
        self.facts = EnvironmentFacts(width, tuple(names), int(limit), threshold or 0.0, threshold is not None)

    def reset(self, seed: int) -> Seen:
        return self._flat(self.world.reset(seed=seed)[0])

    def act(self, action: int) -> Moment:
        observation, reward, ended, cut, _ = self.world.step(action + self.first)
        return Moment(self._flat(observation), float(reward), bool(ended), bool(cut))

    def picture(self, seen: Seen) -> Drawn | None:
        if not self.grid:
            return None
        shape = self.world.observation_space["image"].shape
        kinds = np.split(seen[:-DIRECTIONS], np.cumsum(CELL_CODES)[:-1] * (self.codes.size // 3))
        codes = [kind.reshape(-1, count).argmax(1) for kind, count in zip(kinds, CELL_CODES, strict=True)]
        return drawn_view(np.stack(codes, -1).reshape(shape).astype(np.uint8))

    def _flat(self, seen: Any) -> Seen:
        if not self.grid:
            return np.asarray(seen, np.float32).reshape(-1)
        row = np.zeros(self.codes.size // 3 * sum(CELL_CODES) + DIRECTIONS, np.float32)
        row[self.codes + np.asarray(seen["image"]).reshape(-1)] = 1
        row[int(seen["direction"]) - DIRECTIONS] = 1
        return row


# Objects, colours and states of minigrid's cells (a state of 3 is an agent's direction).
CELL_CODES = (11, 6, 4)
DIRECTIONS = 4


def _code_places(cells: int) -> NDArray[np.int64]:
    """Where the one-hot codes of each cell's object, colour and state begin, (3·cells,), cell by cell."""
    objects, colours, _ = CELL_CODES
    begins = np.array([0, objects * cells, (objects + colours) * cells])
    places: NDArray[np.int64] = (begins + np.arange(cells)[:, None] * np.array(CELL_CODES)).reshape(-1)
    return places


def make(name: str) -> Environment:
    """The environment called `name`."""
    return TMaze() if name == "t-maze" else Gymnasium(name)
