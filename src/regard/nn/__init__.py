"""Attention mechanisms as layers, by class or by name: `Local(256, num_heads=8, window=65)` is the same layer as
`build("local", dim=256, num_heads=8, window=65)`.

Every mechanism is called as `layer(query, source=None, *, mask=None, state=None)` and maps (b,q,dim) to (b,q,dim).
`names()` lists them; `regard show NAME` on the command line explains one. `MultiheadAttention` takes queries, keys and
values separately. The rest is what stands around mechanisms in a network: blocks, states, positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard.nn import hard, ntm, positions
    from regard.nn.additive import Additive
    from regard.nn.causal import Causal
    from regard.nn.concat import Concat
    from regard.nn.dot import Dot
    from regard.nn.dynamic_memory import DynamicMemory
    from regard.nn.general import General
    from regard.nn.gla import GlobalQuery
    from regard.nn.global_ import Global
    from regard.nn.global_layer import GlobalLayer
    from regard.nn.graph import GraphAttention
    from regard.nn.hard import Baseline, Choice, Hard
    from regard.nn.interactive import Interactive
    from regard.nn.key_value_memory import KeyValueMemory
    from regard.nn.linear import Linear, linear_attention
    from regard.nn.local import Local
    from regard.nn.local_layer import LocalLayer
    from regard.nn.local_m import LocalM
    from regard.nn.local_p import LocalP
    from regard.nn.multihead import Multihead
    from regard.nn.multihead_attention import MultiheadAttention
    from regard.nn.ntm import NTM, Machine
    from regard.nn.parts.blocks import DecoderLayer, DecoderState, EncoderLayer, FeedForward, Residual
    from regard.nn.parts.building import build, build_across, build_causal
    from regard.nn.parts.cache import Cache
    from regard.nn.parts.global_query import global_query
    from regard.nn.parts.mechanism import MECHANISMS, Entry, Mechanism, entry, mechanism, names
    from regard.nn.parts.multihead_positions import (
        AlibiPositions,
        MultiheadPositions,
        RelativePositions,
        RotaryPositions,
        ShawPositions,
        T5Positions,
        TransformerXLPositions,
    )
    from regard.nn.parts.state import State
    from regard.nn.positions import HalfWave, Learned, NoPositions, PositionalEncoding, Sinusoidal
    from regard.nn.query_key_memory import QueryKeyMemory
    from regard.nn.relative import Relative
    from regard.nn.static_memory import StaticMemory

__all__ = [
    "MECHANISMS",
    "NTM",
    "Additive",
    "AlibiPositions",
    "Baseline",
    "Cache",
    "Causal",
    "Choice",
    "Concat",
    "DecoderLayer",
    "DecoderState",
    "Dot",
    "DynamicMemory",
    "EncoderLayer",
    "Entry",
    "FeedForward",
    "General",
    "Global",
    "GlobalLayer",
    "GlobalQuery",
    "GraphAttention",
    "HalfWave",
    "Hard",
    "Interactive",
    "KeyValueMemory",
    "Learned",
    "Linear",
    "Local",
    "LocalLayer",
    "LocalM",
    "LocalP",
    "Machine",
    "Mechanism",
    "Multihead",
    "MultiheadAttention",
    "MultiheadPositions",
    "NoPositions",
    "PositionalEncoding",
    "QueryKeyMemory",
    "Relative",
    "RelativePositions",
    "Residual",
    "RotaryPositions",
    "ShawPositions",
    "Sinusoidal",
    "State",
    "StaticMemory",
    "T5Positions",
    "TransformerXLPositions",
    "build",
    "build_across",
    "build_causal",
    "entry",
    "global_query",
    "hard",
    "linear_attention",
    "mechanism",
    "names",
    "ntm",
    "positions",
]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())
