"""Recommendation: the item that a user takes next, from the history of each user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.support.arguments import share, whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import NextItem
from regard_workbench.tasks.formats.history_files import read_histories, read_titles, titles_beside
from regard_workbench.tasks.formats.reading import Data, checked_encoding, excerpt, paths_of, wrong
from regard_workbench.tasks.formats.splits import checked_split, single_file
from regard_workbench.tasks.generated import shop
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.measures import ranking
from regard_workbench.tasks.measures.metrics import Answering, Mean, Metric, State
from regard_workbench.tasks.measures.ranking import FULL_HIT, FULL_NDCG, HIT, NDCG, NEGATIVES, SEEN
from regard_workbench.tasks.parts.batch import INPUTS, TARGETS, Batch, Stream
from regard_workbench.tasks.parts.data import Fitted, Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.padding import padded
from regard_workbench.tasks.parts.presenter import TypedText
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


@dataclass(frozen=True)
class KnownItems(Fitted):
    """The items by name, that of id n being items[n − 1], and how many of a history are read."""

    items: list[str]
    max_length: int

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The id of each item."""
        return {item: number for number, item in enumerate(self.items, 1)}

    @classmethod
    def restored(cls, state: Mapping[str, Any], task: Any) -> Self:
        items = state["items"]
        if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
            raise BadValue("items: expected a list of names, as `state` makes it.")
        return super().restored(state, task)


class RankingJudge(Judge):
    """Measures a ranking of items, and in an evaluation that by popularity in the training part."""

    def examine(
        self, task: Recommend, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        if split == "train":
            return []
        counts = torch.zeros(len(task.fitted.items) + 1)
        for history in task.examples("train"):
            item_ids = torch.tensor([*history.items[:1], *history.following])
            counts.index_add_(0, item_ids, torch.ones(len(item_ids)))
        sums = {name: [0.0, 0.0] for name in POPULAR}
        examples = task.examined_examples(split)
        for begin in range(0, len(examples), batch_size):
            batch = task.collate(examples[begin : begin + batch_size], torch.Generator())
            for among, places in _places(counts.expand(batch.size, -1), batch).items():
                for worth, kind in ((ranking.hits, "hit_at_10"), (ranking.gains, "ndcg_at_10")):
                    total = sums[f"popular_{among}{kind}"]
                    total[0] += float(worth(places).sum())
                    total[1] += len(places)
        return [(POPULAR[name], state) for name, state in sums.items()]

    def protocol(self, task: Recommend) -> dict[str, Any]:
        """What is read, how items are ranked, and which users are left out."""
        short = sum(len(items) < FEWEST for items in task.histories.values())
        words = {
            "sampled": f"the next item among {task.negatives} that the user never took, drawn once for each user "
            f"(seed {task.seed}); ties count against it",
            "full": "among all items that the user has not taken before",
            "history": f"the newest {task.fitted.max_length} items before the one asked for: in the test, "
            "the validation item too",
            "users": f"{len(task.histories) - short:,}; the last item is the test, the one before it validation",
        }
        if short:
            words["left out"] = f"{short:,} users with fewer than {FEWEST} actions: only trained on"
        return words


class HistoryPresenter(TypedText["Recommend"]):
    """Shows items by their titles, where there are any, or else by their names in the data."""

    def show(self, task: Recommend, example: History, batch: Batch) -> Shown:
        """The history, by titles where there are any."""
        pieces = [task.called(number) for number in example.items[: batch.inputs.shape[1]]]
        who = f"user {example.user}" if example.user else "a user"
        return Shown(f"the history of {who}, {len(example.items)} items", pieces)

    def answer_text(self, task: Recommend, predicted: Any, example: History) -> str:
        """The next items, best first: name and title."""
        lines = []
        for place, number in enumerate(predicted, 1):
            name = task.fitted.items[number - 1]
            title = task.known_titles.get(name)
            lines.append(f"{place:2}. {name}" + (f"  {title}" if title else ""))
        return "\n".join(lines)

    def output_pieces(self, task: Recommend, tokens: Sequence[int]) -> list[str]:
        """Items by title or name."""
        return [task.called(number) if number else "–" for number in tokens]


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
    """

    judge = RankingJudge.by(NDCG, HIT, FULL_NDCG, FULL_HIT)
    presenter = HistoryPresenter()
    fitted = Kept(KnownItems)
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

    data: Data | None = option(
        "a file of lines `user item` in time order, or of a line `user item item …` for each user; plain or .gz",
        default=None,
    )
    max_length: int = option(
        "items of a history that are looked back at; of longer ones the newest", at_least(1), default=200
    )
    negatives: int = option(
        "items that the right one is ranked among, drawn once for each user", at_least(1), default=100
    )
    train_negatives: int = option(
        "in training, set the right item against so many others that are not in the history, drawn anew for each "
        "position (binary cross-entropy); 0: against all items (cross-entropy)",
        at_least(0),
        default=0,
    )
    calibration: float = option(
        "with train_negatives, how far scores are brought back to those learned from all items, 0 to 1",
        share,
        default=0.0,
    )
    titles: str | None = option(
        "a file of lines `item TAB title`; default: NAME.titles.tsv or NAME.movies.dat beside the data", default=None
    )
    encoding: str = option(
        "how the file is encoded", lambda name, encoding: checked_encoding(encoding), default="utf-8"
    )
    seed: int = option(
        "which negatives are drawn, and which histories are generated where there is no file", whole_number, default=0
    )

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

    def fit(self) -> KnownItems:
        if max(len(actions) for actions in self._read.values()) < FEWEST:
            raise BadValue(
                f"data: expected users with at least {FEWEST} actions, and {self.path} has none: there is nothing "
                "to hold out for validation and test."
            )
        names = {item for actions in self._read.values() for item, _ in actions}
        return KnownItems(sorted(names, key=_in_order), self.max_length)

    @cached_property
    def histories(self) -> dict[str, tuple[int, ...]]:
        """The ids of each user's items, in time order."""
        numbers = self.fitted.numbers
        histories = {}
        for user, actions in self._read.items():
            for item, line in actions:
                if item not in numbers:
                    assert self.path is not None
                    raise wrong(
                        self.path,
                        line,
                        f"the item {excerpt(item)} is unknown to this run, which learned {len(numbers):,} others. "
                        "Leave the line out, or train with it.",
                    )
            histories[user] = tuple(numbers[item] for item, _ in actions)
        return histories

    @cached_property
    def known_titles(self) -> dict[str, str]:
        """Titles by item, where a file has them."""
        path = self.path
        if self.titles is not None:
            return read_titles(Path(self.titles).expanduser(), path)
        beside = None if path is None else titles_beside(path)
        return {} if beside is None else read_titles(beside, path)

    def called(self, number: int) -> str:
        """An item as people read it: its title, or else its name in the data."""
        name = self.fitted.items[number - 1]
        return self.known_titles.get(name, name)

    def streams(self) -> dict[str, Tokens]:
        """The items of a history."""
        return {INPUTS: Tokens(len(self.fitted.items) + 1, 0, self.fitted.max_length)}

    def answers(self) -> list[NextItem]:
        """A ranking of all items."""
        return [NextItem(len(self.fitted.items) + 1, self.train_negatives, self.calibration)]

    def examples(self, split: str) -> Sequence[History]:
        """One for each user, in the order of the file."""
        if checked_split(split) not in self._by_split:
            make = self._training if split == "train" else self._asking
            every = (make(user, items, split) for user, items in self.histories.items())
            self._by_split[split] = [history for history in every if history is not None]
        histories: list[History] = self._by_split[split]
        return histories

    def _training(self, user: str, items: tuple[int, ...], split: str) -> History | None:
        kept = items[:-2] if len(items) >= FEWEST else items
        if len(kept) < 2:
            return None
        most = self.fitted.max_length
        return History(user, kept[:-1][-most:], kept[1:][-most:])

    def _asking(self, user: str, items: tuple[int, ...], split: str) -> History | None:
        if len(items) < FEWEST:
            return None
        at = len(items) - (1 if split == "test" else 2)
        user_items, count = set(items), len(self.fitted.items)
        candidate_count = count - len(user_items)
        drawn: dict[int, None] = {}
        draws = Draws("recommend", self.seed, split, user)
        if candidate_count <= self.negatives:
            drawn = dict.fromkeys(number for number in range(1, count + 1) if number not in user_items)
        wanted = min(candidate_count, self.negatives)
        while len(drawn) < wanted:
            more = draws.several(count, 2 * wanted)
            drawn.update((1 + number, None) for number in more if 1 + number not in user_items)
        earlier_items = tuple(sorted(set(items[:at]) - {items[at]}))
        return History(
            user, items[:at][-self.fitted.max_length :], items[at : at + 1], tuple(drawn)[:wanted], earlier_items
        )

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

    def encode(self, text: str) -> History:
        """A history: `user 17` for one of the data, else items by name, in time order."""
        fitted, most = self.fitted, self.fitted.max_length
        words, instance = split_words(text.replace(",", " ")), " ".join(fitted.items[:3])
        if len(words) == 2 and words[0].lower() == "user":
            if words[1] not in self.histories:
                raise BadValue(
                    f"--text: there is no user {words[1]!r} in the data of this run. "
                    f'Give items instead: --text "{instance}".'
                )
            return History(words[1], self.histories[words[1]][-most:])
        unknown = [word for word in words if word not in fitted.numbers]
        if unknown or not words:
            raise BadValue(
                f'--text: expected `user NAME` or items of the data in time order, for instance "{instance}"; '
                + (f"{unknown[0]!r} is none of its {len(fitted.items):,} items." if words else "got none.")
            )
        return History("", tuple(fitted.numbers[word] for word in words)[-most:])


def _places(scores: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Places among sampled items and, as "full_", among all."""
    assert batch.targets is not None
    true, negatives, seen_items = batch.targets[:, -1], batch.answers[NEGATIVES], batch.answers[SEEN]
    return {
        "": ranking.sampled_places(scores, true, negatives.data, negatives.keep),
        "full_": ranking.full_places(scores, true, seen_items.data),
    }


def _in_order(item: str) -> tuple[bool, int, str]:
    """Sort key: whole numbers by value, then other names alphabetically."""
    is_integer = item.isdecimal() and len(item) < 100
    return not is_integer, int(item) if is_integer else 0, item
