"""`seq2seq`: a recurrent encoder and decoder with attention between them, as it was before Transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.decoding import Hypothesis
from regard.errors import BadValue, unknown_name
from regard.masks import Mask
from regard.nn.parts.attention import Attention
from regard.nn.parts.blocks import called, mechanism_of
from regard.nn.parts.building import build_across
from regard.nn.parts.mechanism import Mechanism, entry
from regard.nn.parts.state import State
from regard.nn.parts.steps import Tensors, run_steps, traced_with_any_length
from regard.registry import parse, split
from regard.support.arguments import whole_number
from regard_workbench.models.parts.cells import FedCells, Memory, memories_of, state_of
from regard_workbench.models.parts.embedding import StreamEmbedding, padding_mask
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.recurrent import Joined, Recurrent, RecurrentState
from regard_workbench.models.parts.stack import CachedStep, write
from regard_workbench.tasks.answers import Decoded, Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem

FEEDING = ("context", "luong", "none")
# Mechanisms whose papers attend before the step and feed the context: Bahdanau et al. 2014, Xu et al. 2015 (hard).
_ATTENDS_FIRST = ("additive", "concat", "hard")


@dataclass(frozen=True)
class Seq2seqState(State):
    """The decoder's recurrent state, the state of each attention, the encoder's rows and their padding mask."""

    recurrent: RecurrentState
    attentions: tuple[State, ...]
    source: Tensor
    keep: Tensor | None = None
    fed: Tensor | None = None  # (b,dim), with feeding="luong": the last attentional row h̃


@model("seq2seq", gives=("decoder", "steps"))
class Seq2seq(Model):
    """A bidirectional recurrent encoder; a recurrent decoder that attends to the encoder's rows at each step.

    With y the last word, s the decoder's state and c the context that the attention returns, `feeding` says how the
    attention takes part in the recurrence:

        context:  c_t = attend(s_{t−1}),   s_t = f(s_{t−1}, [y_{t−1}; c_t]),     h̃_t = tanh(W [c_t; s_t])
        luong:    s_t = f(s_{t−1}, [y_{t−1}; h̃_{t−1}]),   c_t = attend(s_t),     h̃_t = tanh(W [c_t; s_t])
        none:     s_t = f(s_{t−1}, y_{t−1}),              c_t = attend(s_t),     h̃_t = tanh(W [c_t; s_t])

    h̃_t is projected to the words. The default is that of the mechanism's paper: context for additive, concat and hard,
    luong for dot, general, local-m and local-p, and for every mechanism that is not from a recurrent model. With
    `none` the decoder reads all of a target in one call, and then all its rows attend in one.

    Several attentions come one after the other: each but the last maps its query row to tanh(W_l [c; row]), which is
    the query of the next. `alignments` returns the weights of the last one.

    Paper: Bahdanau et al. 2014, section 3.1 (context); Luong et al. 2015, section 3.1, equation 5 (h̃) and section 3.3
    (input feeding); Xu et al. 2015 (hard).

    Args:
        layers: how many recurrent layers on each side; what is fed enters the decoder's first, the last one attends
        attention_layers: how many attentions, or different ones by name: "additive,local-p". Each
            has its own weights; the last of different ones decides the default of `feeding`
        feeding: context, luong or none; as in the mechanism's paper by default
    """

    takes_attention: ClassVar[str] = "the attention of the decoder to the encoder"
    attention_default: ClassVar[str] = "additive"
    shows: ClassVar[dict[str, str]] = {"attentions.-1": "the decoder's attention to the encoder"}

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 128,
        layers: int = 1,
        cell: str = "gru",
        attention: str | None = None,
        attention_layers: int | tuple[str, ...] = 1,
        feeding: str | None = None,
        num_heads: int = 1,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__(problem)
        assert isinstance(problem.answer, Decoded)
        self.answer = problem.answer
        chosen = _mechanisms(attention, attention_layers, self.attention_default)
        if feeding is not None and feeding not in FEEDING:
            raise unknown_name("feeding", feeding, FEEDING)
        self.feeding = feeding or usual_feeding(chosen[-1])
        self.build_reader(dim, layers, cell, dropout)
        target = self.answer.decoder_stream()
        self.target_embedding = StreamEmbedding(target, dim, positions="none", dropout=dropout)
        self.decoder: Recurrent | FedCells = (
            Recurrent(dim, layers, cell, dropout=dropout)
            if self.feeding == "none"
            else FedCells(dim, layers, cell, dropout=dropout)
        )
        self.begin = nn.Linear(dim, layers * dim)
        common = {"num_heads": num_heads}
        self.attentions = nn.ModuleList(mechanism_of("attention", name, dim, build_across, common) for name in chosen)
        self.joins = nn.ModuleList(Joined(dim, dropout) for _ in chosen)
        self.head = self.answer.head(dim, self.target_embedding.shared(self.answer.outputs) if tied else None)

    def build_reader(self, dim: int, layers: int, cell: str, dropout: float) -> None:
        """Make the parts that read the input; a subclass that reads something else has others."""
        self.embedding = StreamEmbedding(self.problem.inputs, dim, positions="none", dropout=dropout)
        self.encoder = Recurrent(dim, layers, cell, both=True, dropout=dropout)

    def encoded(self, batch: Batch) -> Tensor:
        """The encoder's rows (b,n,dim), to which the decoder attends."""
        rows, _ = self.encoder(self.embedding(batch.inputs), batch.keep)
        encoded: Tensor = rows
        return encoded

    def read(self, batch: Batch) -> tuple[Tensor, RecurrentState]:
        """The encoder's rows (b,n,dim) and the decoder's initial state."""
        rows = self.encoded(batch)
        kept = rows if batch.keep is None else rows.masked_fill(~batch.keep[..., None], 0)
        count = max(1, rows.shape[1]) if batch.keep is None else batch.keep.sum(1, keepdim=True).clamp(min=1)
        mean = kept.sum(1) / count
        hidden = torch.tanh(self.begin(mean)).unflatten(-1, (-1, mean.shape[-1]))
        return rows, self.decoder.state_from(hidden)

    def forward(self, batch: Batch) -> Any:
        return self.head(self._rows_and_queries(batch)[0], batch)

    def alignments(self, batch: Batch) -> Tensor:
        """How much each target position attends to each source position, (b,t,n), mean over heads of the last layer."""
        _, queries, source = self._rows_and_queries(batch)
        last: Any = self.attentions[-1]
        weights: Tensor = last.weights(queries, source, mask=padding_mask(batch.keep)).mean(1)
        return weights

    def step(self, tokens: Tensor, state: Seq2seqState) -> tuple[Tensor, Seq2seqState]:
        """Logits for the next target tokens, and the new state."""
        rows, _, state = self._continued(tokens, state)
        return self.head(rows, Batch.of(tokens)), state

    def initial_state(self, batch: Batch) -> Seq2seqState:
        """The initial decoding state; the source is encoded once."""
        source, recurrent = self.read(batch)
        states = [layer.initial_state(batch.size, source.device, source.dtype) for layer in self.attentions]  # type: ignore[operator]
        fed = torch.zeros_like(recurrent.hidden[:, 0]) if self.feeding == "luong" else None
        return Seq2seqState(recurrent, tuple(states), source, batch.keep, fed)

    @torch.no_grad()
    def generate(self, batch: Batch, **options: Any) -> list[list[Hypothesis]]:
        """Hypotheses for each source, best first. Options: see `write`."""
        answer = self.answer
        if not isinstance(answer, Writes):
            return super().generate(batch, **options)  # which raises
        start = batch.inputs.new_full((batch.size, 1), answer.start, dtype=torch.long)
        options.setdefault("max_length", answer.length)
        return write(CachedStep(self.step, self.initial_state(batch)), start, end=answer.end, **options)

    def _rows_and_queries(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """h̃ and the queries of the last attention for the batch's targets, (b,t,dim) each, and the source's rows."""
        tokens = self.answer.decoder_inputs(batch)
        if self.feeding != "none":
            rows, queries, state = self._continued(tokens, self.initial_state(batch))
            return rows, queries, state.source
        assert isinstance(self.decoder, Recurrent)
        source, recurrent = self.read(batch)
        rows, _ = self.decoder(self.target_embedding(tokens), state=recurrent)
        context, queries, _ = self._attended(rows, source, padding_mask(batch.keep), None)
        return self.joins[-1](context, queries), queries, source

    def _continued(self, tokens: Tensor, state: Seq2seqState) -> tuple[Tensor, Tensor, Seq2seqState]:
        """h̃ and the queries of the last attention for further tokens (b,t), and the new state."""
        rows, mask = self.target_embedding(tokens), padding_mask(state.keep)
        if isinstance(self.decoder, Recurrent):
            rows, recurrent = self.decoder(rows, state=state.recurrent)
            context, queries, after = self._attended(rows, state.source, mask, state.attentions)
            state = replace(state, recurrent=recurrent, attentions=after)
            return self.joins[-1](context, queries), queries, state
        gates = self.decoder.input_gates(rows)
        if traced_with_any_length(gates.shape[1]) and all(map(_is_alike_in_every_step, self.attentions)):
            return self._traced(gates, state, mask)
        memories = memories_of(state.recurrent, gates.dtype)
        fed, attentions = state.fed, state.attentions
        steps: list[tuple[Tensor, ...]] = []
        for step_gates in gates.unbind(1):
            outputs, memories, attentions = self._stepped(step_gates, memories, fed, state.source, mask, attentions)
            fed = None if fed is None else outputs[0][:, 0]
            steps.append(outputs)
        following = replace(state, recurrent=state_of(memories), attentions=attentions, fed=fed)
        columns = [torch.cat(column, 1) for column in zip(*steps, strict=True)]
        return (*self._joined(columns), following) if columns else (rows, rows, following)

    def _stepped(
        self,
        gates: Tensor,
        memories: list[Memory],
        fed: Tensor | None,
        source: Tensor,
        mask: Mask | None,
        states: tuple[State, ...],
    ) -> tuple[tuple[Tensor, ...], list[Memory], tuple[State, ...]]:
        """A step of the recurrence: rows (b,1,dim) for `_joined`, the memories and states of attentions after it."""
        assert isinstance(self.decoder, FedCells)
        if self.feeding == "context":
            context, query, states = self._attended(memories[-1][0][:, None], source, mask, states)
            memories = self.decoder.step(gates, context[:, 0], memories)
            return (context, memories[-1][0][:, None], query), memories, states
        assert fed is not None
        memories = self.decoder.step(gates, fed, memories)
        context, query, states = self._attended(memories[-1][0][:, None], source, mask, states)
        return (self.joins[-1](context, query), query), memories, states

    def _joined(self, columns: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """h̃ and the queries, from the rows of all steps (b,t,dim)."""
        if self.feeding == "context":  # nothing in the recurrence needs h̃, so all steps are joined at once
            return self.joins[-1](columns[0], columns[1]), columns[2]
        return columns[0], columns[1]

    def _traced(self, gates: Tensor, state: Seq2seqState, mask: Mask | None) -> tuple[Tensor, Tensor, Seq2seqState]:
        """The same as `_continued` for a graph that serves every number of steps, which has to be exported."""
        memories = memories_of(state.recurrent, gates.dtype)
        # The source is projected before the loop; no step changes the states of the attentions after that. They hold
        # the padding, too. What the loop reads is copied: `torch.scan` takes no views, and ONNX no strides.
        _, _, attentions = self._attended(memories[-1][0][:, None], state.source, mask, state.attentions)
        copied = partial(torch.clone, memory_format=torch.contiguous_format)
        source, fixed = copied(state.source), tuple(attention.map(copied) for attention in attentions)
        layers, has_cell = len(memories), memories[0][1] is not None

        def step(carry: Tensors, given: Tensors) -> tuple[Tensors, Tensors]:
            cells = carry[layers : 2 * layers] if has_cell else [None] * layers
            before = list(zip(carry[:layers], cells, strict=True))
            fed = carry[-1] if self.feeding == "luong" else None
            outputs, after, _ = self._stepped(given[0], before, fed, source, None, fixed)
            return _flat(after, None if fed is None else outputs[0][:, 0]), [output[:, 0] for output in outputs]

        last, columns = run_steps(step, _flat(memories, state.fed), [gates.transpose(0, 1)])
        cells = torch.stack(list(last[layers : 2 * layers]), 1) if has_cell else None
        recurrent = RecurrentState(torch.stack(list(last[:layers]), 1), cells)
        fed = last[-1] if self.feeding == "luong" else None
        following = replace(state, recurrent=recurrent, attentions=attentions, fed=fed)
        return (*self._joined([column.transpose(0, 1) for column in columns]), following)

    def _attended(
        self, rows: Tensor, source: Tensor, mask: Mask | None, states: tuple[State, ...] | None
    ) -> tuple[Tensor, Tensor, tuple[State, ...]]:
        """The context that the last attention returns for rows (b,t,dim), its queries, and the new states."""
        after: list[State] = []
        context = rows
        layers: Any = self.attentions
        for number, attention in enumerate(layers):
            if number:
                rows = self.joins[number - 1](context, rows)
            before = None if states is None else states[number]
            context, following = called(attention, rows, source, mask, before)
            if following is not None:
                after.append(following)
        return context, rows, tuple(after)


def _is_alike_in_every_step(attention: nn.Module) -> bool:
    """Whether an attention with a cache gives a query the same, whichever step the query belongs to."""
    return isinstance(attention, Attention) and not attention.places_queries


def _flat(memories: list[Memory], fed: Tensor | None) -> list[Tensor]:
    """What a step hands to the next: the hidden rows of all layers, their cells, the fed row."""
    every = [*(hidden for hidden, _ in memories), *(cell for _, cell in memories), fed]
    return [tensor for tensor in every if tensor is not None]


def usual_feeding(attention: str | Mechanism) -> str:
    """The `feeding` of the paper that a mechanism comes from; luong for those that come from no recurrent model."""
    mechanism = attention.entry if isinstance(attention, Mechanism) else entry(parse(attention)[0])
    return "context" if mechanism.name in _ATTENDS_FIRST else "luong"


def _mechanisms(attention: str | None, layers: int | str | Sequence[str], usual: str) -> list[str]:
    """The mechanisms between encoder and decoder by name, the first one first."""
    if isinstance(layers, int):
        return [attention or usual] * whole_number("attention_layers", layers, 1)
    names = split(layers) if isinstance(layers, str) else list(layers)
    if attention is not None:
        raise BadValue(
            f"attention: attention_layers={', '.join(names)!r} names every mechanism already, got {attention!r} as "
            f"well. Leave one of the two out, or give attention_layers a number."
        )
    if not names:
        raise BadValue("attention_layers: expected a number or names such as 'additive,local-p', got no name.")
    return names
