"""Response selection: which of several replies comes next in a dialogue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from regard.errors import BadValue
from regard.support.arguments import whole_number
from regard.support.declared import at_least, option
from regard_workbench.tasks.answers import HiddenTokens, Ranks
from regard_workbench.tasks.answers.ranks import LOOKS, METRICS
from regard_workbench.tasks.formats.exchanges import Exchange, ReplyChoice, grouped, read_exchanges
from regard_workbench.tasks.formats.reading import Data
from regard_workbench.tasks.formats.woz import joined, typed_turns
from regard_workbench.tasks.generated.draws import Draws
from regard_workbench.tasks.measures.metrics import SHARE, Answering, Mean, Metric, State
from regard_workbench.tasks.measures.yardsticks import TfIdf, cosine
from regard_workbench.tasks.parts.batch import TARGETS, Batch, Stream
from regard_workbench.tasks.parts.data import Kept
from regard_workbench.tasks.parts.judge import Judge
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shared_options import MIN_COUNT
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import TextSets
from regard_workbench.tasks.parts.task import Recipe, task
from regard_workbench.tasks.text import spelling, vocabulary
from regard_workbench.tasks.text.hiding import HidesWords, SpelledPresenter
from regard_workbench.tasks.text.spelling import SYSTEM, USER
from regard_workbench.tasks.text.text_task import KnownPieces
from regard_workbench.tasks.text.vocabulary import BLANK, START

CONTEXT, REPLIES = "context", "replies"
OFFERED = 100  # replies of the training data that a typed context is answered with


@dataclass(frozen=True)
class KnownReplies(KnownPieces):
    """The vocabulary, the replies that a typed context is offered, and how much of a context is read."""

    offered: list[str]
    turns: int
    words: int


class RespondJudge(Judge):
    """Ranks by likeness to the context, too."""

    def protocol(self, task: Respond) -> dict[str, Any]:
        """How replies are offered."""
        if task.hides:
            return {}
        limits = task.fitted
        return {
            "replies": f"1 in {task.candidates} where the data name no wrong ones, drawn from the different replies of "
            f"the same split by seed {task.seed}; the last {limits.turns} turns of at most {limits.words} words are "
            "read; equal scores count against the right reply"
        }

    @torch.no_grad()
    def examine(
        self, task: Respond, model: Answering, split: str, *, batch_size: int, device: torch.device | str
    ) -> list[tuple[Metric, State]]:
        """The same metrics for the yardstick: the reply most like the context by TF-IDF."""
        if task.hides:
            return []
        return [
            (Mean(f"tfidf_{name}", unit=SHARE if name != "mrr" else "", over="contexts"), list(state))
            for name, state in task.likeness(split).items()
        ]


class RespondPresenter(SpelledPresenter):
    """Shows the newest turn beside a reply."""

    def conversation(self, task: Any, turns: Sequence[str]) -> dict[str, str]:
        return {"text": joined(turns)}

    def show(self, task: Any, example: ReplyChoice, batch: Batch) -> Shown:
        """The words of the newest turn, and those of the first reply."""

        def pieces(text: str, speaker: str) -> list[str]:
            return [speaker, *text.split()[: task.fitted.words]]

        newest, reply = example.context[-1], example.replies[0]
        if task.hides:
            return Shown(f"“{newest}”", [*pieces(newest, "[user]"), *pieces(reply, "[system]")])
        turn_pieces, reply_pieces = pieces(newest, "[user]"), pieces(reply, "[reply]")
        for padded, name in ((turn_pieces, CONTEXT), (reply_pieces, REPLIES)):  # other texts of it may be longer
            padded += [""] * (batch.streams[name].data.shape[2] - len(padded))
        return Shown(f"“{newest}”", turn_pieces, streams={"reply": reply_pieces})

    def focused(self, task: Any, example: ReplyChoice, predicted: Sequence[int]) -> ReplyChoice:
        """The best reply alone."""
        return example._replace(replies=(example.replies[predicted[0]],), right=())

    def answer_text(self, task: Any, predicted: Sequence[int], example: ReplyChoice) -> str:
        """The best of the replies that this example offers."""
        return str(task.decode(predicted)) if task.hides else example.replies[predicted[0]]

    def decode(self, task: Any, tokens: Sequence[int]) -> str:
        """The best of the offered replies; words where they are guessed."""
        fitted: KnownReplies = task.fitted
        return fitted.vocabulary.decode(tokens) if task.hides else fitted.offered[tokens[0]]


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
    """

    judge = RespondJudge.by(*METRICS)
    presenter = RespondPresenter()
    fitted = Kept(KnownReplies)
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

    data: Data | None = option(
        "lines `label TAB turn TAB … TAB reply` (label 1: right, 0: wrong) or WOZ 2.0 JSON; a file or a folder",
        default=None,
    )
    candidates: int = option(
        "replies to choose from in validation and test, where the data name no wrong ones", at_least(2), default=10
    )
    train_candidates: int = option("the same in training", at_least(2), default=4)
    turns: int = option("how many of the last turns are read", at_least(1), default=5)
    words: int = option("how many words of a turn are read", at_least(1), default=30)
    min_count: int = MIN_COUNT
    seed: int = option(
        "which wrong replies are offered, and which exchanges are kept for validation and test without files",
        whole_number,
        default=0,
    )

    def read(self) -> dict[str, list[Exchange]]:
        typed_encoding = self.typed(encoding="latin-1")
        return read_exchanges(self.data, self.encoding, self.seed, self.whole, labelled=True, other=typed_encoding)

    @cached_property
    def pools(self) -> dict[str, list[str]]:
        """The different right replies of each split, from which wrong ones are drawn."""
        return {
            split: sorted({exchange.reply for exchange in exchanges if exchange.right})
            for split, exchanges in self.rows.items()
        }

    def fit(self) -> KnownReplies:
        train = self.training_rows
        texts = [text for exchange in train for text in (exchange.context[-1], exchange.reply)]
        counts = Counter(exchange.reply for exchange in train if exchange.right)
        offered = sorted(counts, key=lambda text: (-counts[text], text))[:OFFERED]
        return KnownReplies(vocabulary.build("word", texts, None, self.min_count), offered, self.turns, self.words)

    def streams(self) -> dict[str, TextSets]:
        """The last turns, newest first, and the replies to choose from."""
        texts = TextSets(self.spelled(self.fitted.words + 1))
        return {CONTEXT: texts, REPLIES: texts}

    def answers(self) -> list[Ranks]:
        """The best reply."""
        return [Ranks()]

    def problems(self) -> list[Problem]:
        """The best reply; hidden words of the last turn and the reply for models that cannot rank."""
        fitted = self.fitted
        hidden = Problem.of(self.spelled(2 * fitted.words + 2), HiddenTokens(len(fitted.vocabulary), BLANK))
        return [*super().problems(), hidden]

    def examples(self, split: str) -> Sequence[ReplyChoice]:
        """The contexts of a split with their replies."""
        turns = self.fitted.turns
        choices = []
        for number, choice in enumerate(grouped(self.rows_of(split))):
            context = choice.context[-turns:]
            if all(choice.right) and split == "train":
                choice = choice._replace(drawn=self.train_candidates - len(choice.replies))
            elif all(choice.right):
                missing = self.candidates - len(choice.replies)
                wrong = self._drawn(split, choice.replies, missing, Draws("respond", self.seed, split, number).below)
                choice = ReplyChoice(context, (*choice.replies, *wrong), (*choice.right, *[False] * missing))
            choices.append(choice._replace(context=context))
        return choices

    def _drawn(self, split: str, right: Sequence[str], count: int, below: Callable[[int], int]) -> list[str]:
        """Different wrong replies of a split; `below` draws a number."""
        pool = self.pools[split]
        if len(pool) < count + len(right):
            raise BadValue(
                f"candidates: {count} wrong replies are to be drawn, and the {split} split has {len(pool)} different "
                "replies in all. Lower candidates and train_candidates, or give more data."
            )
        wrong: dict[str, None] = {}
        while len(wrong) < count:
            reply = pool[below(len(pool))]
            if reply not in right:
                wrong[reply] = None
        return list(wrong)

    def length(self, example: ReplyChoice) -> int:
        """Words of the longest turn or reply."""
        return max(len(text.split()) for text in (*example.context, *example.replies))

    def collate(self, examples: Sequence[ReplyChoice], generator: torch.Generator) -> Batch:
        """Turns newest first; replies in the order of the example, then the wrong ones that are drawn for the batch."""
        if self.hides:
            rows = [
                [*self._text(choice.context[-1], USER), *self._text(choice.replies[0], SYSTEM)] for choice in examples
            ]
            return self.hidden(rows, generator)

        def below(bound: int) -> int:
            return int(torch.randint(bound, (), generator=generator))

        full = []
        for choice in examples:
            wrong = self._drawn("train", choice.replies, choice.drawn, below) if choice.drawn > 0 else []
            right = (*choice.right, *[False] * len(wrong))
            full.append(choice._replace(replies=(*choice.replies, *wrong), right=right))
        turns = [
            [self._text(text, (USER, SYSTEM)[age % 2]) for age, text in enumerate(reversed(choice.context))]
            for choice in full
        ]
        replies = [[self._text(text, SYSTEM) for text in choice.replies] for choice in full]
        streams = {CONTEXT: Stream(*spelling.padded_texts(turns)), REPLIES: Stream(*spelling.padded_texts(replies))}
        return Batch(streams, self._targets(full, streams[REPLIES].data.shape[1]))

    def _targets(self, choices: Sequence[ReplyChoice], width: int) -> dict[str, Stream]:
        if not all(choice.right for choice in choices):
            return {}
        targets = torch.zeros(len(choices), width, dtype=torch.long)
        for row, choice in enumerate(choices):
            targets[row, : len(choice.right)] = torch.tensor(choice.right).long()
        return {TARGETS: Stream(targets)}

    def _text(self, text: str, speaker: int) -> list[tuple[int, ...]]:
        fitted = self.fitted
        return [spelling.mark(START, speaker), *spelling.spelled(fitted.vocabulary, text, speaker)[: fitted.words]]

    def likeness(self, split: str) -> dict[str, tuple[float, float]]:
        """Sum and count of each metric where replies are ranked by their TF-IDF likeness to the context."""
        exchanges = self.rows.get("train") or self.rows[split]
        measure = TfIdf([text for exchange in exchanges for text in (" ".join(exchange.context), exchange.reply)])
        totals = {name: [0.0, 0.0] for name in LOOKS}
        for choice in self.examined_examples(split):
            context = measure.vector(" ".join(choice.context))
            scores = torch.tensor([[cosine(context, measure.vector(text)) for text in choice.replies]])
            right = torch.tensor([choice.right]).long()
            for name, look in LOOKS.items():
                total, count = look.of(scores, right)
                totals[name][0] += total
                totals[name][1] += count
        return {name: (total, count) for name, (total, count) in totals.items()}

    def encode(self, text: str) -> ReplyChoice:
        """Turns separated by "|", the user last; the most frequent replies of the training data are offered."""
        fitted = self.fitted
        return ReplyChoice(tuple(typed_turns(text)[-fitted.turns :]), tuple(fitted.offered))
