"""The projections of multi-head attention: rows into heads of queries, keys and values, and heads back into rows."""

from __future__ import annotations

from torch import Tensor, nn

from regard.errors import BadValue
from regard.support.arguments import whole_number

MOST_HEADS = 4096  # that an error message tries


class HeadProjections(nn.Module):
    """Four linear maps and, with `qk_norm`, a normalisation of queries and keys. Shared by all multi-head layers."""

    query_map: nn.Linear
    key_map: nn.Linear
    value_map: nn.Linear
    output_map: nn.Linear
    query_norm: HeadNorm | None
    key_norm: HeadNorm | None
    kv_heads: int
    value_dim: int  # the width of the values of one head

    def add_projections(
        self,
        widths: tuple[int, int, int],
        num_heads: int,
        kv_heads: int | None,
        *,
        bias: bool,
        qk_norm: bool,
        value_dim: int | None = None,
        key_dim: int | None = None,
        output_bias: bool | None = None,
        norm_eps: float | None = None,
    ) -> None:
        """Create the maps for queries, keys and values of these widths; outputs are as wide as queries.

        `key_dim` is the width of the queries and keys of one head; None: the heads share the width of the queries.
        `value_dim` is that of its values; None: that of its keys. `output_bias`: whether outputs get a bias; None: as
        `bias` says. `norm_eps`: what `qk_norm` adds to the mean square; None: the smallest that rounding notices.
        """
        self.kv_heads = num_heads if kv_heads is None else whole_number("kv_heads", kv_heads, 1)
        if num_heads % self.kv_heads:
            raise BadValue(
                f"kv_heads: expected a divisor of num_heads={num_heads}, so that each key head serves equally many "
                f"query heads, got {kv_heads}."
            )
        dim, key_width, value_width = widths
        self._width = head_width(dim, num_heads) if key_dim is None else whole_number("key_dim", key_dim, 1)
        self.value_dim = self._width if value_dim is None else whole_number("value_dim", value_dim, 1)
        self.query_map = glorot_linear(dim, num_heads * self._width, bias)
        self.key_map = glorot_linear(key_width, self.kv_heads * self._width, bias)
        self.value_map = glorot_linear(value_width, self.kv_heads * self.value_dim, bias)
        self.output_map = glorot_linear(num_heads * self.value_dim, dim, bias if output_bias is None else output_bias)
        self.query_norm = HeadNorm(self._width, norm_eps) if qk_norm else None
        self.key_norm = HeadNorm(self._width, norm_eps) if qk_norm else None

    def query_heads(self, rows: Tensor) -> Tensor:
        """Queries (b,h,length,d) from rows (b,length,dim)."""
        heads = split_heads(self.query_map(rows), self._width)
        return heads if self.query_norm is None else self.query_norm(heads)

    def key_heads(self, rows: Tensor) -> Tensor:
        """Keys (b,g,length,d) from rows (b,length,·)."""
        heads = split_heads(self.key_map(rows), self._width)
        return heads if self.key_norm is None else self.key_norm(heads)

    def value_heads(self, rows: Tensor) -> Tensor:
        """Values (b,g,length,v) from rows (b,length,·)."""
        return split_heads(self.value_map(rows), self.value_dim)

    def output_rows(self, mixed: Tensor) -> Tensor:
        """Rows (b,length,dim) from attended values (b,h,length,v)."""
        rows: Tensor = self.output_map(join_heads(mixed))
        return rows


class HeadNorm(nn.RMSNorm):
    """Divides rows by their root mean square and multiplies them by a learned gain, in the dtype of the rows.

    Under autocast the gain has a wider dtype than the rows.
    """

    def forward(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def split_heads(rows: Tensor, width: int) -> Tensor:
    """(b,length,h·width) as (b,h,length,width)."""
    heads: Tensor = rows.unflatten(-1, (-1, width))
    return heads.transpose(1, 2)


def join_heads(heads: Tensor) -> Tensor:
    """(b,h,length,width) as (b,length,h·width)."""
    return heads.transpose(1, 2).flatten(2)


def head_width(dim: int, num_heads: int) -> int:
    """The width of one of `num_heads` heads that share `dim` equally."""
    if dim % num_heads:
        raise BadValue(
            f"num_heads: dim={dim} cannot be shared equally by {num_heads} heads. "
            f"Try one of {[n for n in range(1, min(dim, MOST_HEADS) + 1) if dim % n == 0][:8]}."
        )
    return dim // num_heads


def glorot_linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A linear map with Glorot and Bengio's initial weights, as in the Transformer, and a bias of zeros."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
