"""`MultiheadAttention`: multi-head attention over queries, keys and values that are given separately."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.errors import BadType, BadValue
from regard.masks import Mask
from regard.nn.parts import masking
from regard.nn.parts.heads import HeadProjections
from regard.nn.parts.mechanism import dropout_rate
from regard.nn.parts.nonfinite import restore_nonfinite, zero_nonfinite
from regard.support.arguments import described, whole_number


class MultiheadAttention(HeadProjections):
    """Multi-head attention of queries to keys, each with a value; the three are projected separately.

        head_i = softmax(Q_i K_iᵀ / √d) V_i,   out = W_o [head_1; …; head_h]

    `layer(queries, keys, values, mask=None)` maps (b,q,embed_dim), (b,k,kdim) and (b,k,vdim) to (b,q,embed_dim). The
    values default to the keys, and the keys to the queries. In a mask, True = may attend. The parameters are those of
    the mechanism `multihead`, which takes one source for keys and values, and also offers states, positions, windows
    and other normalisers.

    Paper: Vaswani et al. 2017, equation 1 and section 3.2.2; grouped heads: Ainslie et al. 2023.
    Empty row: the heads return zeros, so the row is the bias of the output projection.

    Args:
        embed_dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        bias: whether the projections add a learned vector.
        kdim: width of the keys; None: embed_dim.
        vdim: width of the values; None: embed_dim.
        kv_heads: number of key and value heads; fewer than num_heads: grouped-query, 1: multi-query attention.
        value_dim: width of the values of one head; None: that of its keys, embed_dim / num_heads.
        qk_norm: whether to normalise queries and keys to unit mean square, with a learned gain.
        impl: the implementation, as `regard.attend` takes it.

    >>> import torch, regard
    >>> from regard import masks
    >>> layer = regard.nn.MultiheadAttention(16, 4, kdim=24, vdim=8)
    >>> queries, keys, values = torch.randn(2, 5, 16), torch.randn(2, 7, 24), torch.randn(2, 7, 8)
    >>> layer(queries, keys, values, mask=masks.lengths(torch.tensor([7, 3]))).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        kv_heads: int | None = None,
        value_dim: int | None = None,
        qk_norm: bool = False,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        self.embed_dim = whole_number("embed_dim", embed_dim, 1)
        self.num_heads = whole_number("num_heads", num_heads, 1)
        self.kdim = self.embed_dim if kdim is None else whole_number("kdim", kdim, 1)
        self.vdim = self.embed_dim if vdim is None else whole_number("vdim", vdim, 1)
        self.dropout = dropout_rate(dropout)
        self.impl = impl
        widths = (self.embed_dim, self.kdim, self.vdim)
        self.add_projections(widths, self.num_heads, kv_heads, bias=bias, qk_norm=qk_norm, value_dim=value_dim)

    if TYPE_CHECKING:

        def __call__(
            self,
            queries: Tensor,
            keys: Tensor | None = None,
            values: Tensor | None = None,
            mask: Mask | Tensor | None = None,
        ) -> Tensor: ...

    def forward(
        self,
        queries: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
        mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """The attended values, (b,q,embed_dim). A mask tensor is bool, (q,k), (b,q,k) or (b,h,q,k)."""
        keys = queries if keys is None else keys
        values = keys if values is None else values
        self._check_inputs(queries, keys, values)
        call_mask, query, key = self._compared(queries, keys, mask)
        clean, nonfinite = zero_nonfinite(values, call_mask is not None)
        value = restore_nonfinite(self.value_heads(clean), nonfinite)
        dropout = self.dropout if self.training else 0.0
        return self.output_rows(dispatch.attend(query, key, value, mask=call_mask, dropout=dropout, impl=self.impl))

    def weights(
        self,
        queries: Tensor,
        keys: Tensor | None = None,
        *,
        mask: Mask | Tensor | None = None,
        rows: Any = None,
        heads: Any = None,
    ) -> Tensor:
        """The exact weights (b, heads, rows, k) with which a call would mix its values, before dropout."""
        keys = queries if keys is None else keys
        self._check_inputs(queries, keys, None)
        call_mask, query, key = self._compared(queries, keys, mask)
        return dispatch.weights(query, key, mask=call_mask, rows=rows, heads=heads)

    def extra_repr(self) -> str:
        widths = {"kdim": self.kdim, "vdim": self.vdim}
        shown = "".join(f", {name}={width}" for name, width in widths.items() if width != self.embed_dim)
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}{shown}"

    def _compared(
        self, queries: Tensor, keys: Tensor, mask: Mask | Tensor | None
    ) -> tuple[Mask | None, Tensor, Tensor]:
        """The mask as a value, and the heads of queries and keys."""
        sizes = (queries.shape[0], self.num_heads, queries.shape[1], keys.shape[1])
        call_mask = masking.as_mask(mask, sizes)
        if call_mask is not None:
            call_mask.check(sizes)
        clean, nonfinite = zero_nonfinite(keys, call_mask is not None)
        key = restore_nonfinite(self.key_heads(clean), nonfinite)
        real = None
        if queries is keys:  # padding of a sequence that attends to itself is padding among its queries too
            real = masking.real_sides(call_mask, sizes, queries.device)[1]
        else:
            clean, nonfinite = zero_nonfinite(queries, call_mask is not None)
        return call_mask, restore_nonfinite(self.query_heads(clean), nonfinite, real), key

    def _check_inputs(self, queries: object, keys: object, values: object) -> None:
        """Raise unless the inputs have the widths of this layer, one batch, and a value for each key."""
        shapes = {}
        for argument, rows, name, width in (
            ("queries", queries, "embed_dim", self.embed_dim),
            ("keys", keys, "kdim", self.kdim),
            ("values", values, "vdim", self.vdim),
        ):
            if rows is None:
                continue
            if not isinstance(rows, Tensor) or not rows.is_floating_point():
                raise BadType(f"{argument}: expected a floating-point tensor (b,length,{name}), got {described(rows)}.")
            if rows.dim() != 3 or rows.shape[2] != width:
                raise BadValue(
                    f"{argument}: expected (b,length,{name}) with {name}={width}, got shape {tuple(rows.shape)}."
                )
            shapes[argument] = tuple(rows.shape)
        if len({shape[0] for shape in shapes.values()}) > 1:
            raise BadValue(f"keys: queries, keys and values must have one batch size, got {shapes}.")
        if "values" in shapes and shapes["keys"][1] != shapes["values"][1]:
            raise BadValue(f"values: expected one value for each key, got {shapes}.")
