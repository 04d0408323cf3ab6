"""The base class and the registry of mechanisms: layers (b,q,dim) → (b,q,dim) that are built by name.

To add a mechanism, write a file with `@mechanism("name", …)` above a subclass of `Mechanism`. It then appears in
`regard list`, in every model's `--attention`, in the contract tests and in reports.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

import torch
from torch import Tensor, nn

from regard import registry
from regard.errors import BadType, BadValue, Unsupported
from regard.masks import Mask
from regard.nn import sharing
from regard.nn.parts.heads import head_width
from regard.nn.parts.state import AnyState, State
from regard.registry import Registry, refuse_unknown
from regard.support.arguments import described, whole_number

Causality = Literal["yes", "no", "option"]


@dataclass(frozen=True)
class Entry:
    """The registry entry of a mechanism. Everything else about it is in the docstring and signature of its class."""

    name: str
    layer: type[Mechanism]
    causal: Causality  # always, never, or with the option `causal=True`
    time: str  # cost of a forward pass, n positions of width d
    memory: str  # memory that training needs besides inputs and parameters
    aliases: tuple[str, ...] = ()
    needs: dict[str, Any] = field(default_factory=dict)  # options for a small example


MECHANISMS: Registry[Entry] = Registry(
    "mechanism",
    "regard.nn",
    homes={"global-query": "gla", "ntm": "ntm"},
    others=("fast_path", "graph", "multihead_attention", "positions", "sharing"),
)
_ALIASES = {"soft": "global", "gla": "global-query"}  # tests compare it with what the mechanisms declare

Layer = TypeVar("Layer", bound="type[Mechanism]")


def mechanism(
    name: str, *, causal: Causality, time: str, memory: str, aliases: tuple[str, ...] = (), **needs: Any
) -> Callable[[Layer], Layer]:
    """Register the decorated class under `name`."""

    def register(layer: Layer) -> Layer:
        layer.entry = MECHANISMS.add(name, Entry(name, layer, causal, time, memory, aliases, needs))
        _ALIASES.update(dict.fromkeys(aliases, name))
        return layer

    return register


class Mechanism(nn.Module):
    """A layer with which queries (b,q,dim) attend to a source (b,k,source_dim), or to themselves.

    `layer(query, source=None, *, mask=None)` returns (b,q,dim). With `state=` it returns `(output, state)`. The state
    that was passed in is not modified, so that it can be continued more than once.
    """

    entry: ClassVar[Entry]
    device_marker: Tensor
    dim: int
    num_heads: int
    source_dim: int

    def __new__(cls, *args: Any, **options: Any) -> Self:
        # Raise for the same options as `build`: unknown ones, and those that a preset fixes.
        if "entry" in cls.__dict__:
            refuse_unknown(cls.entry.name, options, options_of(cls))
        return super().__new__(cls)

    def __init__(self, dim: int, num_heads: int = 1, dropout: float = 0.0, source_dim: int | None = None) -> None:
        super().__init__()
        self.dim = whole_number("dim", dim, 1)
        self.num_heads = whole_number("num_heads", num_heads, 1)
        self.source_dim = self.dim if source_dim is None else whole_number("source_dim", source_dim, 1)
        self.dropout = dropout_rate(dropout)
        # Follows the layer through `.to()`, so that a layer without parameters knows its device and dtype as well.
        self.register_buffer("device_marker", torch.empty(0), persistent=False)

    if TYPE_CHECKING:

        @overload
        def __call__(
            self, query: Tensor, source: Tensor | None = None, *, mask: Mask | Tensor | None = None, state: None = None
        ) -> Tensor: ...
        @overload
        def __call__(
            self, query: Tensor, source: Tensor | None = None, *, mask: Mask | Tensor | None = None, state: AnyState
        ) -> tuple[Tensor, AnyState]: ...
        def __call__(self, *args: Any, **options: Any) -> Any: ...

    def forward(
        self,
        query: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        state: State | None = None,
    ) -> Tensor | tuple[Tensor, State]:
        """Return the attended queries, (b,q,dim); with a state, also the next state."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward")

    def initial_state(
        self, batch: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """Return the state before the first call. Pass it as `state=`; each call returns the next one."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial_state")

    @property
    def head_dim(self) -> int:
        """The width of one head."""
        return head_width(self.dim, self.num_heads)

    @property
    def shares_sequences(self) -> bool:
        """Whether it can run where several ranks share a sequence (`regard.nn.sharing`)."""
        return False

    @property
    def weights_dropout(self) -> float:
        """The dropout rate of the current mode: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def placement(
        self, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> tuple[torch.device | str, torch.dtype]:
        """The device and dtype of a new state: those given, otherwise those of the layer."""
        return device or self.device_marker.device, dtype or self.device_marker.dtype

    def extra_repr(self) -> str:
        heads = f", num_heads={self.num_heads}" if self.num_heads > 1 else ""
        source = f", source_dim={self.source_dim}" if self.source_dim != self.dim else ""
        return f"dim={self.dim}{heads}{source}"


def dropout_rate(given: object) -> float:
    """Return `dropout` as a float, or raise unless it is a probability."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise BadType(f"dropout: expected a probability from 0 to 1, got {described(given)}.")
    if not 0 <= given <= 1:
        raise BadValue(f"dropout: expected a probability from 0 to 1, got {given}.")
    return float(given)


def check_inputs(layer: Mechanism, query: object, source: object, remembered: bool = False) -> None:
    """Raise unless query is (b,q,dim) and source (b,k,source_dim). `remembered`: the state holds the source."""
    for argument, rows, width in (("query", query, layer.dim), ("source", source, layer.source_dim)):
        if rows is None and argument == "source":
            continue
        name = "dim" if argument == "query" else "source_dim"
        if not isinstance(rows, Tensor) or not rows.is_floating_point():
            raise BadType(f"{argument}: expected a floating-point tensor (b,length,{name}), got {described(rows)}.")
        if rows.dim() != 3 or rows.shape[2] != width:
            raise BadValue(
                f"{argument}: expected (b,length,{name}) with {name}={width}, got shape {tuple(rows.shape)}."
            )
    if sharing.current() is not None and (source is not None or remembered or not layer.shares_sequences):
        raise Unsupported(
            f"attention: {type(layer).__name__} cannot run over a sequence that several ranks share, because its rows "
            f"meet elsewhere than in attend. Use a self-attention of multihead, global, causal, local or relative."
        )
    if isinstance(query, Tensor) and isinstance(source, Tensor) and query.shape[0] != source.shape[0]:
        raise BadValue(
            f"source: the batch must equal the query's, got query {tuple(query.shape)} and source "
            f"{tuple(source.shape)}."
        )
    if source is None and layer.source_dim != layer.dim and not remembered:
        raise BadValue(
            f"source: this layer was built with dim={layer.dim} and source_dim={layer.source_dim}, so it cannot "
            f"attend to its own queries. Pass a source (b,k,{layer.source_dim})."
        )


def names() -> list[str]:
    """Return the names of all mechanisms, in alphabetical order."""
    return sorted(MECHANISMS.names())


def entry(name: str) -> Entry:
    """Return the registry entry of a name or alias."""
    return MECHANISMS[_ALIASES.get(name, name)]


def options_of(layer: type[Mechanism]) -> dict[str, inspect.Parameter]:
    """Return the options of a layer by name, without those that a preset fixes."""
    options = registry.options_of(layer, leading=0)
    for fixed in getattr(layer, "fixed_options", ()):
        options.pop(fixed, None)
    return options
