"""`ntm`: a source is written to a memory step by step, then every query reads from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
from regard import scores
from regard.errors import BadValue
from regard.masks import Mask
from regard.nn.ntm.machine import MachineCore, MachineState
from regard.nn.parts import masking
from regard.nn.parts.mechanism import Mechanism, check_inputs, mechanism
from regard.nn.parts.state import State, check_batch, of_kind
from regard.support.arguments import whole_number


@dataclass(frozen=True)
class NTMState(MachineState):
    """The state of the machine, and the length of the source that was written; None: the queries are written."""

    source: int | None = None


@mechanism("ntm", causal="no", time="n·N·M", memory="n·N·M", slots=5, width=4)
class NTM(Mechanism):
    """Write heads write the source to a memory of N slots, step by step; read heads address it by content.

        M ← M · Π_h (1 − w_h ⊗ e_h) + Σ_h w_h ⊗ a_h   for each element x_j of the source; w_h, e_h, a_h from x_j
        o_i = W [r_i¹ … r_iʰ],   r_i = Σ_n softmax_n(β_i cos(k_i, M_n)) M_n

    Paper: Graves, Wayne and Danihelka 2014, equations 2 to 9.
    Empty row: nothing is written, so queries read the initial memory: almost zero if constant, otherwise learned.
    When to use: for tasks that need a memory which is written and rewritten, such as copying and sorting. Steps
    follow one another, so long sequences take longer than with attention.

    It accepts masks that ignore the query (lengths, padding, …); padding is not written and moves no head. With a
    state, a source is written by the first call and read by all calls; without a source, each call continues to write
    its queries. `write` writes a source to a state in parts, `read` only reads from a state.

    Args:
        dim: width of queries and outputs.
        num_heads: number of heads that read for each query.
        dropout: probability of dropping a read weight in training.
        source_dim: width of the source; None: dim.
        slots: number of slots of the memory (N).
        width: width of a slot (M); None: dim / num_heads, rounded down.
        write_heads: number of heads that write; None: num_heads. All of them erase before any adds.
        controller: feed-forward or lstm; it controls the write heads.
        hidden: width of the controller; None: dim.
        shift_range: largest shift of a write head in one step, in either direction.
        initial: learned or constant initial memory and head weights.

    >>> import torch, regard
    >>> layer = regard.nn.build("ntm", dim=16, num_heads=2, slots=8)
    >>> layer(torch.randn(1, 3, 16), torch.randn(1, 50, 16)).shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 1,
        dropout: float = 0.0,
        source_dim: int | None = None,
        *,
        slots: int = 128,
        width: int | None = None,
        write_heads: int | None = None,
        controller: str = "feed-forward",
        hidden: int | None = None,
        shift_range: int = 1,
        initial: str = "learned",
    ) -> None:
        super().__init__(dim, num_heads, dropout, source_dim)
        self.width = max(1, self.dim // self.num_heads) if width is None else whole_number("width", width, 1)
        self.tape = MachineCore(
            self.source_dim,
            slots=slots,
            width=self.width,
            read_heads=0,
            write_heads=self.num_heads if write_heads is None else whole_number("write_heads", write_heads, 1),
            controller=controller,
            hidden=self.dim if hidden is None else hidden,
            shift_range=shift_range,
            initial=initial,
        )
        self.key_map = nn.Linear(self.dim, self.num_heads * self.width)
        self.strength_map = nn.Linear(self.dim, self.num_heads)
        self.output_map = nn.Linear(self.num_heads * self.width, self.dim)

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return what the queries read, (b,q,dim); with a state, also the next state."""
        past = self._checked(query, source, state)
        if past is not None and past.source is not None:
            # Padding was left out when the source was written; this only raises for masks that the layer cannot use.
            masking.kept(mask, query.shape[0], query.shape[1], past.source, 0, query.device)
            return self.read(query, past), past
        before = self.initial_state(query.shape[0], query.device) if past is None else past
        rows = query if source is None else source
        keep = masking.kept(mask, query.shape[0], query.shape[1], rows.shape[1], before.seen, query.device)
        rows = masking.without_padding(rows, keep)
        after = self._written(rows, before, keep)
        output = self.read(rows if source is None else query, after)
        if past is None:
            return output
        return output, after if source is None else replace(after, source=source.shape[1])

    def write(self, source: Tensor, state: NTMState, *, mask: Mask | Tensor | None = None) -> NTMState:
        """Write a source (b,k,source_dim), or its next part; return the state from which later calls read.

        The size of the mask decides whether it covers this part or all parts so far.
        """
        batch, new, _ = source.shape
        keep = masking.kept(mask, batch, 1, new, state.seen, source.device)
        after = self._written(masking.without_padding(source, keep), state, keep)
        return replace(after, source=(state.source or 0) + new)

    def _written(self, rows: Tensor, state: NTMState, keep: Tensor | None) -> NTMState:
        _, _, after = self.tape(rows, state, keep=keep)
        return NTMState(**_parts(after), source=state.source)

    def read(self, query: Tensor, state: MachineState) -> Tensor:
        """Return what queries (b,q,dim) read from the memory of a state, (b,q,dim). Nothing is written."""
        keys = self.key_map(query).unflatten(-1, (self.num_heads, self.width)).transpose(1, 2)
        # Contiguous: torch.compile expects another layout of softplus's gradient than torch gives for a view.
        strength = F.softplus(self.strength_map(query).transpose(1, 2).contiguous())[..., None]
        memory = state.memory[:, None].to(keys.dtype)
        read = dispatch.attend(
            keys, memory, memory, score=scores.cosine(strength.to(keys.dtype)), dropout=self.weights_dropout
        )
        output: Tensor = self.output_map(read.transpose(1, 2).flatten(2))
        return output

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> NTMState:
        """Return the initial memory and head weights."""
        return NTMState(**_parts(self.tape.initial_state(batch, *self.placement(device, dtype))))

    def _checked(self, query: Tensor, source: Tensor | None, state: State | None) -> NTMState | None:
        """Check the inputs and return the state."""
        past = of_kind(NTMState, state)
        check_inputs(self, query, source, remembered=past is not None and past.source is not None)
        if past is None:
            return None
        check_batch(past.memory, query)
        if source is not None and past.seen and source.shape[1] != past.source:
            origin = "was written by the queries" if past.source is None else f"holds a source of length {past.source}"
            raise BadValue(
                f"source: the memory of this state {origin}, got a source of length {source.shape[1]}. A new source "
                f"needs a new initial_state(); write the next part of the same source with write(part, state)."
            )
        return past


def _parts(state: MachineState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in fields(state)}
