"""Response selection: which of several replies comes next in a dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard_workbench.tasks.answers import HiddenTokens, Ranks
from regard_workbench.tasks.answers.ranks import LOOKS, METRICS
from regard_workbench.tasks.formats.exchanges import Exchange, ReplyChoice, grouped, read_exchanges
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.woz import joined, typed_turns
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.measures.metrics import LOSS, SHARE, Answering, Mean, Metric, State
from regard_workbench.tasks.measures.yardsticks import TfIdf, cosine
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import TextSets
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import spelling, vocabulary
from regard_workbench.tasks.text.hiding import HidesWords
from regard_workbench.tasks.text.spelling import SYSTEM, USER
from regard_workbench.tasks.text.vocabulary import BLANK, START, Vocabulary

CONTEXT, REPLIES = "context", "replies"
OFFERED = 100  # replies of the training data that a typed context is answered with


@task("respond")
class Respond(HidesWords):
    """Chooses the reply that comes next in a dialogue among ten; without files, generated dialogues about restaurants.

    Wrong replies are drawn from those of the same split: anew for each batch in training, by `seed` elsewhere.
    `recall_at_k` is the share of right replies among the first k, equal scores counting against them; `mrr` one divided
    by the place of the best right one. Beside a model's numbers `regard evaluate` prints those of TF-IDF likeness to
    the context. Models that give a row for each position (encoder) guess hidden words instead: pre-training, to be
    carried over with --init-from. What exchange and pre-training are worth, with intervals, on equal terms:

        regard train respond --data woz2 --steps 2000 --out runs/words \\
            --model "encoder(dim=64, layers=2, num_heads=4)"
        regard compare respond --data woz2 --steps 2000 --seeds 5 \\
            --models "matcher(layers=2),matcher(layers=2, exchange=true)" \\
            --init-from scratch,runs/words --differences

    Args:
        data: lines `label TAB turn TAB … TAB reply` (label 1: right, 0: wrong) or WOZ 2.0 JSON; a file or a folder
        candidates: replies to choose from in validation and test, where the data name no wrong ones
        train_candidates: the same in training
        turns: how many of the last turns are read
        words: how many words of a turn are read
        min_count: how often a word must occur in training to be known
        encoding: how the files are encoded
        seed: which wrong replies are offered, and which exchanges are kept for validation and test without files
        whole: measure on all of a file, keep nothing of it for training; for a model trained on other data
    """

    metric: ClassVar[Metric] = METRICS[0]
    tried = ("--example", "80")
    recipe = Recipe(
        model="matcher",
        steps=300,
        batch_size=16,
        lr=2e-3,
        warmup=50,
        models={"matcher": "matcher(layers=1, channels=8)"},
        compared=("matcher", "matcher(layers=1, channels=8, exchange=true)"),
        reaches={"recall_at_1": 0.8},
    )

    def __init__(
        self,
        data: Data | None = None,
        candidates: int = 10,
        train_candidates: int = 4,
        turns: int = 5,
        words: int = 30,
        min_count: int = 1,
        encoding: str = "utf-8",
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        super().__init__(data, min_count, encoding, seed, whole)
        self.candidates = whole_number("candidates", candidates, 2)
        self.train_candidates = whole_number("train_candidates", train_candidates, 2)
        self.turns, self.words = whole_number("turns", turns, 1), whole_number("words", words, 1)
        self.offered: list[str] = []  # replies for a typed context

    @cached_property
    def exchanges(self) -> dict[str, list[Exchange]]:
        """The exchanges of each split."""
        return read_exchanges(
            self.data, self.encoding, self.seed, self.whole, labelled=True, other=self.typed(encoding="latin-1")
        )

    @cached_property
    def pools(self) -> dict[str, list[str]]:
        """The different right replies of each split, from which wrong ones are drawn."""
        found = {split: sorted({one.reply for one in some if one.right}) for split, some in self.exchanges.items()}
        return found

    def prepare(self) -> None:
        """Vocabulary and offered replies, from the training exchanges alone."""
        train = self.exchanges.get("train") or next(iter(self.exchanges.values()))
        texts = [text for one in train for text in (one.context[-1], one.reply)]
        self.vocabulary = vocabulary.build("word", texts, None, self.min_count)
        counts: dict[str, int] = {}
        for one in train:
            if one.right:
                counts[one.reply] = counts.get(one.reply, 0) + 1
        self.offered = sorted(counts, key=lambda text: (-counts[text], text))[:OFFERED]

    def streams(self) -> dict[str, TextSets]:
        """The last turns, newest first, and the replies to choose from."""
        texts = TextSets(self.spelled(self.words + 1))
        return {CONTEXT: texts, REPLIES: texts}

    def answers(self) -> list[Ranks]:
        """The best reply."""
        return [Ranks()]

    def problems(self) -> list[Problem]:
        """The best reply; hidden words of the last turn and the reply for models that cannot rank."""
        hidden = Problem.of(self.spelled(2 * self.words + 2), HiddenTokens(len(self.known()), BLANK))
        return [*super().problems(), hidden]

    def own_metrics(self) -> tuple[Metric, ...]:
        """Loss, recall and reciprocal rank."""
        return (LOSS, *METRICS)

    def examples(self, split: str) -> Sequence[ReplyChoice]:
        """The contexts of a split with their replies."""
        self.known()
        found = []
        for number, choice in enumerate(grouped(self.part(self.exchanges, split))):
            context = choice.context[-self.turns :]
            if all(choice.right) and split == "train":
                choice = choice._replace(drawn=self.train_candidates - len(choice.replies))
            elif all(choice.right):
                missing = self.candidates - len(choice.replies)
                wrong = self._drawn(split, choice.replies, missing, Draws("respond", self.seed, split, number).below)
                choice = ReplyChoice(context, (*choice.replies, *wrong), (*choice.right, *[False] * missing))
            found.append(choice._replace(context=context))
        return found

    def _drawn(self, split: str, right: Sequence[str], count: int, below: Any) -> list[str]:
        """Different wrong replies of a split; `below` draws a number."""
        pool = self.pools[split]
        if len(pool) < count + len(right):
            raise BadValue(
                f"candidates: {count} wrong replies are to be drawn, and the {split} split has {len(pool)} different "
                "replies in all. Lower candidates and train_candidates, or give more data."
            )
        found: dict[str, None] = {}
        while len(found) < count:
            one = pool[below(len(pool))]
            if one not in right:
                found[one] = None
        return list(found)

    def length(self, example: ReplyChoice) -> int:
        """Words of the longest turn or reply."""
        return max(len(text.split()) for text in (*example.context, *example.replies))

    def collate(self, examples: Sequence[ReplyChoice], generator: torch.Generator) -> Batch:
        """Turns newest first; replies in the order of the example, then the wrong ones that are drawn for the batch."""
        known = self.known()
        if self.hides:
            rows = [
                [*self._text(known, one.context[-1], USER), *self._text(known, one.replies[0], SYSTEM)]
                for one in examples
            ]
            return self.hidden(rows, generator)

        def below(bound: int) -> int:
            return int(torch.randint(bound, (), generator=generator))

        full = []
        for one in examples:
            wrong = self._drawn("train", one.replies, one.drawn, below) if one.drawn > 0 else []
            full.append(one._replace(replies=(*one.replies, *wrong), right=(*one.right, *[False] * len(wrong))))
        turns = [
            [self._text(known, text, (USER, SYSTEM)[age % 2]) for age, text in enumerate(reversed(one.context))]
            for one in full
        ]
        replies = [[self._text(known, text, SYSTEM) for text in one.replies] for one in full]
        streams = {CONTEXT: Stream(*spelling.padded_texts(turns)), REPLIES: Stream(*spelling.padded_texts(replies))}
        return Batch(streams, self._targets(full, streams[REPLIES].data.shape[1]))

    def _targets(self, examples: Sequence[ReplyChoice], width: int) -> dict[str, Stream]:
        if not all(one.right for one in examples):
            return {}
        found = torch.zeros(len(examples), width, dtype=torch.long)
        for row, one in enumerate(examples):
            found[row, : len(one.right)] = torch.tensor(one.right).long()
        return {TARGETS: Stream(found)}

    def _text(self, known: Vocabulary, text: str, speaker: int) -> list[tuple[int, ...]]:
        return [spelling.mark(START, speaker), *spelling.spelled(known, text, speaker)[: self.words]]

    @torch.no_grad()
    def examine(
        self, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The same metrics for the yardstick: the reply most like the context by TF-IDF."""
        if self.hides:
            return []
        return [
            (Mean(f"tfidf_{name}", unit=SHARE if name != "mrr" else "", over="contexts"), list(state))
            for name, state in self.likeness(split).items()
        ]

    def likeness(self, split: str) -> dict[str, tuple[float, float]]:
        """Sum and count of each metric where replies are ranked by their TF-IDF likeness to the context."""
        some = self.exchanges.get("train") or self.exchanges[split]
        measure = TfIdf([text for one in some for text in (" ".join(one.context), one.reply)])
        totals = {name: [0.0, 0.0] for name in LOOKS}
        for one in self.examined_examples(split):
            context = measure.vector(" ".join(one.context))
            scores = torch.tensor([[cosine(context, measure.vector(text)) for text in one.replies]])
            right = torch.tensor([one.right]).long()
            for name, look in LOOKS.items():
                total, count = look.of(scores, right)
                totals[name][0] += total
                totals[name][1] += count
        return {name: (total, count) for name, (total, count) in totals.items()}

    def protocol(self) -> dict[str, Any]:
        """How replies are offered."""
        if self.hides:
            return {}
        return {
            "replies": f"1 in {self.candidates} where the data name no wrong ones, drawn from the different replies of "
            f"the same split by seed {self.seed}; the last {self.turns} turns of at most {self.words} words are read; "
            "equal scores count against the right reply"
        }

    def parse(self, given: Mapping[str, str]) -> ReplyChoice:
        """Turns separated by "|", the user last; the most frequent replies of the training data are offered."""
        if set(given) != {"text"}:
            return super().parse(given)  # type: ignore[no-any-return]
        self.known()
        return ReplyChoice(tuple(typed_turns(given["text"])[-self.turns :]), tuple(self.offered))

    def conversation(self, turns: Sequence[str]) -> dict[str, str]:
        """The turns of a chat, as `parse` reads them."""
        return {"text": joined(turns)}

    def show(self, example: ReplyChoice, batch: Batch) -> Shown:
        """The words of the newest turn, and those of the first reply."""

        def pieces(text: str, speaker: str) -> list[str]:
            return [speaker, *text.split()[: self.words]]

        if self.hides:
            both = [*pieces(example.context[-1], "[user]"), *pieces(example.replies[0], "[system]")]
            return Shown(f"“{example.context[-1]}”", both)
        turn, reply = pieces(example.context[-1], "[user]"), pieces(example.replies[0], "[reply]")
        for some, name in ((turn, CONTEXT), (reply, REPLIES)):  # other texts of the batch may be longer
            some += [""] * (batch.streams[name].data.shape[2] - len(some))
        return Shown(f"“{example.context[-1]}”", turn, streams={"reply": reply})

    def focused(self, example: ReplyChoice, predicted: Sequence[int]) -> ReplyChoice:
        """The best reply alone."""
        return example._replace(replies=(example.replies[predicted[0]],), right=())

    def answer_text(self, predicted: Sequence[int], example: ReplyChoice) -> str:
        """The best of the replies that this example offers."""
        return self.decode(predicted) if self.hides else example.replies[predicted[0]]

    def decode(self, tokens: Sequence[int]) -> str:
        """The best of the offered replies; words where they are guessed."""
        known = self.known()
        return known.decode(tokens) if self.hides else self.offered[tokens[0]]

    def state(self) -> dict[str, Any]:
        """Vocabulary, offered replies and lengths."""
        return {**super().state(), "offered": list(self.offered), "turns": self.turns, "words": self.words}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore vocabulary, offered replies and lengths."""
        self.vocabulary = vocabulary.restored(state["vocabulary"])
        if not isinstance(state["offered"], list) or not all(isinstance(one, str) for one in state["offered"]):
            raise BadValue("offered: expected a list of replies, as `state` makes it.")
        self.offered = list(state["offered"])
        self.turns, self.words = (whole_number("turns", state["turns"], 1), whole_number("words", state["words"], 1))
