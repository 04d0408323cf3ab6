"""Recommendation: the item that a user takes next, from the history of each user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import share, whole_number
from regard_workbench.tasks.answers import NextItem
from regard_workbench.tasks.formats.history_files import read_histories, read_titles, titles_beside
from regard_workbench.tasks.formats.reading import Data, checked_encoding, excerpt, paths_of, wrong
from regard_workbench.tasks.formats.splits import checked_split, single_file
from regard_workbench.tasks.generated import shop
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.measures import ranking
from regard_workbench.tasks.measures.metrics import LOSS, Answering, Mean, Metric, State
from regard_workbench.tasks.measures.ranking import FULL_HIT, FULL_NDCG, HIT, NDCG, NEGATIVES, SEEN
from regard_workbench.tasks.parts.batch import INPUTS, TARGETS, Batch, Stream
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.tasks.parts.task import Recipe, Task, task
from regard_workbench.tasks.text.split_words import split_words

ENDINGS = (".txt", ".tsv", ".dat")
FEWEST = 3  # actions of a user who is asked about: one to look back at, one for validation, one for the test
POPULAR = {
    f"popular_{metric.name}": Mean(f"popular_{metric.name}", unit=metric.unit, over="users")
    for metric in (HIT, NDCG, FULL_HIT, FULL_NDCG)
}


class History(NamedTuple):
    """Items of a user in time order, and what came next."""

    user: str
    items: tuple[int, ...]
    following: tuple[int, ...] = ()  # after each item in training, after the last one else; empty: unknown
    negatives: tuple[int, ...] = ()  # items the user never took, against which the next one is ranked
    seen: tuple[int, ...] = ()  # all items of the user but the one asked for


@task("recommend")
class Recommend(Task):
    """Ranks all items by how likely a user takes them next; without a file, generated users who follow stories.

    The last item of each user is for the test, the one before it for validation, the others for training. In the test
    the history ends with the validation item. `hit_at_10` and `ndcg_at_10` rank the right item among 100 that the user
    never took, `full_hit_at_10` and `full_ndcg_at_10` among all items that the user has not taken before. Ties count
    against the right item. `regard evaluate` prints the same for a ranking by popularity (`popular_…`).

    Splits and histories are those of SASRec (Kang and McAuley 2018). Its program draws the 100 items anew in each
    evaluation, some of them twice, outside the training items alone, so that the held-out items may be among them; and
    of more than 10,000 users it measures 10,000. Here all users are measured, each against 100 different items that do
    not change.

    Args:
        data: a file of lines `user item` in time order, or of a line `user item item …` for each user; plain or .gz
        max_length: items of a history that are looked back at; of longer ones the newest
        negatives: items that the right one is ranked among, drawn once for each user
        train_negatives: in training, set the right item against so many others that are not in the history, drawn anew
            for each position (binary cross-entropy); 0: against all items (cross-entropy)
        calibration: with train_negatives, how far scores are brought back to those learned from all items, 0 to 1
        titles: a file of lines `item TAB title`; default: NAME.titles.tsv or NAME.movies.dat beside the data
        encoding: how the file is encoded
        seed: which negatives are drawn, and which histories are generated where there is no file
    """

    takes = ("text",)
    metric = NDCG
    tried = ("--example", "3")
    recipe = Recipe(
        model="recommender",
        steps=1000,
        batch_size=64,
        lr=3e-3,
        warmup=50,
        models={"recommender": "recommender(dim=48, layers=2)"},
        compared=("recommender", "lstm-attention"),
        reaches={"ndcg_at_10": 0.66, "hit_at_10": 0.84, "full_ndcg_at_10": 0.48},
    )

    def __init__(
        self,
        data: Data | None = None,
        max_length: int = 200,
        negatives: int = 100,
        train_negatives: int = 0,
        calibration: float = 0.0,
        titles: str | None = None,
        encoding: str = "utf-8",
        seed: int = 0,
    ) -> None:
        self.data = data
        self.limit = whole_number("max_length", max_length, 1)
        self.negatives = whole_number("negatives", negatives, 1)
        self.train_negatives = whole_number("train_negatives", train_negatives, 0)
        self.calibration = share("calibration", calibration)
        self.titles_file = titles
        self.encoding, self.seed = checked_encoding(encoding), whole_number("seed", seed)
        self.items: list[str] = []  # their names; that of id n is items[n − 1]
        self._numbers: dict[str, int] = {}
        self._made: dict[str, list[History]] = {}

    @property
    def path(self) -> Path | None:
        """The file of histories."""
        if self.data is None:
            return None
        return single_file(paths_of(self.data), ENDINGS, "file of lines `user item`")

    @cached_property
    def _read(self) -> dict[str, list[tuple[str, int]]]:
        """The items of each user by name, each with its line."""
        if self.path is None:
            return {user: [(item, 0) for item in items] for user, items in shop.histories(self.seed).items()}
        return read_histories(self.path, self.encoding, self.typed(encoding="latin-1"))

    def _known(self) -> list[str]:
        """The items; from the data where no state was restored."""
        if not self.items:
            names = {item for taken in self._read.values() for item, _ in taken}
            self._name(sorted(names, key=_in_order))
            if max(len(taken) for taken in self._read.values()) < FEWEST:
                raise BadValue(
                    f"data: expected users with at least {FEWEST} actions, and {self.path} has none: there is nothing "
                    "to hold out for validation and test."
                )
        return self.items

    def _name(self, items: list[str]) -> None:
        self.items, self._numbers = items, {item: number for number, item in enumerate(items, 1)}
        self._made = {}

    @cached_property
    def histories(self) -> dict[str, tuple[int, ...]]:
        """The ids of each user's items, in time order."""
        self._known()
        found = {}
        for user, taken in self._read.items():
            for item, line in taken:
                if item not in self._numbers:
                    assert self.path is not None
                    raise wrong(
                        self.path,
                        line,
                        f"the item {excerpt(item)} is unknown to this run, which learned {len(self.items):,} others. "
                        "Leave the line out, or train with it.",
                    )
            found[user] = tuple(self._numbers[item] for item, _ in taken)
        return found

    @cached_property
    def titles(self) -> dict[str, str]:
        """Titles by item, where a file has them."""
        path = self.path
        if self.titles_file is not None:
            return read_titles(Path(self.titles_file).expanduser(), path)
        beside = None if path is None else titles_beside(path)
        return {} if beside is None else read_titles(beside, path)

    def called(self, number: int) -> str:
        """An item as people read it: its title, or else its name in the data."""
        name = self.items[number - 1]
        return self.titles.get(name, name)

    def streams(self) -> dict[str, Tokens]:
        """The items of a history."""
        return {INPUTS: Tokens(len(self._known()) + 1, 0, self.limit)}

    def answers(self) -> list[NextItem]:
        """A ranking of all items."""
        return [NextItem(len(self._known()) + 1, self.train_negatives, self.calibration)]

    def metrics(self) -> tuple[Metric, ...]:
        """Hit rate and NDCG of the first ten, among sampled items and among all."""
        return (LOSS, NDCG, HIT, FULL_NDCG, FULL_HIT)

    def examples(self, split: str) -> Sequence[History]:
        """One for each user, in the order of the file."""
        if checked_split(split) not in self._made:
            make = self._training if split == "train" else self._asking
            made = (make(user, items, split) for user, items in self.histories.items())
            self._made[split] = [one for one in made if one is not None]
        return self._made[split]

    def _training(self, user: str, items: tuple[int, ...], split: str) -> History | None:
        kept = items[:-2] if len(items) >= FEWEST else items
        if len(kept) < 2:
            return None
        return History(user, kept[:-1][-self.limit :], kept[1:][-self.limit :])

    def _asking(self, user: str, items: tuple[int, ...], split: str) -> History | None:
        if len(items) < FEWEST:
            return None
        at = len(items) - (1 if split == "test" else 2)
        taken = set(items)
        others = len(self.items) - len(taken)
        drawn: dict[int, None] = {}
        draws = Draws("recommend", self.seed, split, user)
        if others <= self.negatives:
            drawn = dict.fromkeys(number for number in range(1, len(self.items) + 1) if number not in taken)
        wanted = min(others, self.negatives)
        while len(drawn) < wanted:
            more = draws.several(len(self.items), 2 * wanted)
            drawn.update((1 + number, None) for number in more if 1 + number not in taken)
        seen = tuple(sorted(set(items[:at]) - {items[at]}))
        return History(user, items[:at][-self.limit :], items[at : at + 1], tuple(drawn)[:wanted], seen)

    def length(self, example: History) -> int:
        """Items of a history."""
        return len(example.items)

    def collate(self, examples: Sequence[History], generator: torch.Generator) -> Batch:
        """Histories padded at their ends; without targets where what comes next is unknown."""
        items, keep = padded([example.items for example in examples], 0)
        streams, answers = {INPUTS: Stream(items, keep)}, {}
        if all(example.following for example in examples):
            answers[TARGETS] = Stream(*padded([example.following for example in examples], 0))
        if answers and all(example.negatives for example in examples):
            answers[NEGATIVES] = Stream(*padded([example.negatives for example in examples], 0))
            answers[SEEN] = Stream(*padded([example.seen for example in examples], 0))
        return Batch(streams, answers)

    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The same metrics for a ranking by popularity in the training part."""
        if split == "train":
            return []
        counts = torch.zeros(len(self._known()) + 1)
        for one in self.examples("train"):
            taken = torch.tensor([*one.items[:1], *one.following])
            counts.index_add_(0, taken, torch.ones(len(taken)))
        sums = {name: [0.0, 0.0] for name in POPULAR}
        examples = self.examined_examples(split)
        for begin in range(0, len(examples), batch_size):
            batch = self.collate(examples[begin : begin + batch_size], torch.Generator())
            for name, found in _places(counts.expand(batch.size, -1), batch).items():
                for worth, kind in ((ranking.hits, "hit_at_10"), (ranking.gains, "ndcg_at_10")):
                    total = sums[f"popular_{name}{kind}"]
                    total[0] += float(worth(found).sum())
                    total[1] += len(found)
        return [(POPULAR[name], state) for name, state in sums.items()]

    def protocol(self) -> dict[str, Any]:
        """What is read, how items are ranked, and which users are left out."""
        short = sum(len(items) < FEWEST for items in self.histories.values())
        found = {
            "sampled": f"the next item among {self.negatives} that the user never took, drawn once for each user "
            f"(seed {self.seed}); ties count against it",
            "full": "among all items that the user has not taken before",
            "history": f"the newest {self.limit} items before the one asked for: in the test, the validation item too",
            "users": f"{len(self.histories) - short:,}; the last item is the test, the one before it validation",
        }
        if short:
            found["left out"] = f"{short:,} users with fewer than {FEWEST} actions: only trained on"
        return found

    def parse(self, given: Mapping[str, str]) -> History:
        """A history: `user 17` for one of the data, else items by name, in time order."""
        if set(given) != {"text"}:
            return super().parse(given)  # type: ignore[no-any-return]  # which raises
        self._known()
        words = split_words(given["text"].replace(",", " "))
        if len(words) == 2 and words[0].lower() == "user":
            if words[1] not in self.histories:
                raise BadValue(
                    f"--text: there is no user {words[1]!r} in the data of this run. Give items instead: --text "
                    f'"{" ".join(self.items[:3])}".'
                )
            return History(words[1], self.histories[words[1]][-self.limit :])
        unknown = [word for word in words if word not in self._numbers]
        if unknown or not words:
            raise BadValue(
                f"--text: expected `user NAME` or items of the data in time order, for instance "
                f'"{" ".join(self.items[:3])}"; '
                + (f"{unknown[0]!r} is none of its {len(self.items):,} items." if words else "got none.")
            )
        return History("", tuple(self._numbers[word] for word in words)[-self.limit :])

    def show(self, example: History, batch: Batch) -> Shown:
        """The history, by titles where there are any."""
        pieces = [self.called(number) for number in example.items[: batch.inputs.shape[1]]]
        who = f"user {example.user}" if example.user else "a user"
        return Shown(f"the history of {who}, {len(example.items)} items", pieces)

    def answer_text(self, predicted: Any, example: History) -> str:
        """The next items, best first: name and title."""
        lines = []
        for place, number in enumerate(predicted, 1):
            name = self.items[number - 1]
            title = self.titles.get(name)
            lines.append(f"{place:2}. {name}" + (f"  {title}" if title else ""))
        return "\n".join(lines)

    def output_pieces(self, tokens: Sequence[int]) -> list[str]:
        """Items by title or name."""
        return [self.called(number) if number else "–" for number in tokens]

    def state(self) -> dict[str, Any]:
        """The items, and how many of a history are read."""
        return {"items": list(self._known()), "max_length": self.limit}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore items and length."""
        items = state["items"]
        if not isinstance(items, list) or not items or not all(isinstance(one, str) for one in items):
            raise BadValue("items: expected a list of names, as `state` makes it.")
        self._name(list(items))
        self.limit = whole_number("max_length", state["max_length"], 1)


def _places(scores: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Places among sampled items and, as "full_", among all."""
    assert batch.targets is not None
    true, others, seen = batch.targets[:, -1], batch.answers[NEGATIVES], batch.answers[SEEN]
    return {
        "": ranking.sampled_places(scores, true, others.data, others.keep),
        "full_": ranking.full_places(scores, true, seen.data),
    }


def _in_order(item: str) -> tuple[bool, int, str]:
    """Sort key: whole numbers by value, then other names alphabetically."""
    whole = item.isdecimal() and len(item) < 100
    return not whole, int(item) if whole else 0, item
