"""`MultiheadAttention`: the parameters and the call of torch's layer, the attention of regard."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
from regard.implementations.sdpa import is_bounded
from regard.interop.torch import checks, scripted
from regard.interop.torch.fx_leaf import LeafName
from regard.interop.torch.masks import is_causal_mask, real_keys, translate
from regard.interop.torch.nested import check_nested, forward_nested
from regard.interop.torch.projections import each_once, join_heads, order_columns, project, split_heads, with_extra_rows
from regard.interop.torch.short import run_short, runs_short
from regard.interop.torch.with_weights import attend_with_weights
from regard.nn.parts.nonfinite import restore_nonfinite, zero_nonfinite
from regard.support.arguments import readable


class MultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention with the parameters, arguments and mask polarity of `torch.nn.MultiheadAttention`.

        head_i = softmax(Q_i K_iᵀ / √d) V_i,   out = W_o [head_1; …; head_h] + b_o

    It is a subclass of torch's layer, so `isinstance(layer, torch.nn.MultiheadAttention)` holds, and constructor,
    initial weights, attributes and state dict are torch's own. Results are the same up to rounding, except:

    - **A query whose keys are all hidden** gets zeros from every head, so its output is the bias of `out_proj`, and its
      weights are 0. torch returns NaN with `need_weights=True` or in evaluation, and zeros otherwise.
    - **Weights are those before dropout**: each row sums to 1, in training as in evaluation. torch returns the weights
      after dropout, whose rows sum to anything.
    - **Evaluation computes what training computes**, less dropout. torch has other code for evaluation: without
      gradient it returns NaN where it returned zeros, ignores a missing mask of `is_causal`, and does not call hooks of
      `out_proj`.
    - **What is hidden is not read**: NaN or infinity in a padded row of `key` and `value` changes neither the outputs
      nor the gradients. torch multiplies it by zero, which is NaN.
    - **`is_causal=True` is checked** where attn_mask can be read without waiting for a device: if attn_mask is not the
      causal mask, attn_mask counts. torch drops attn_mask with `need_weights=False` and takes it otherwise. With
      `add_bias_kv` or `add_zero_attn`, the added key is visible to all queries; torch hides it from most.
    - **`key_padding_mask` and `attn_mask` may have different dtypes**, without a warning.
    - **Dropout draws other random numbers** than torch does from the same seed.
    - **Nested tensors** of `layout=torch.jagged` can be trained.

    Memory is linear in the length unless `need_weights=True`, which asks for a number for each query and key.

    Paper: Vaswani et al. 2017, section 3.2.2.
    Empty row: the bias of the output projection.

    Args:
        embed_dim: width of queries and outputs.
        num_heads: number of heads that share that width.
        dropout: probability of dropping an attention weight in training.
        bias: whether the projections add a learned vector.
        add_bias_kv: whether a learned key and value are added to every sequence.
        add_zero_attn: whether a key and a value of zeros are added to every sequence.
        kdim: width of the keys; None: embed_dim.
        vdim: width of the values; None: embed_dim.
        batch_first: whether inputs are (batch, length, dim) instead of (length, batch, dim).

    >>> import torch
    >>> from regard.interop.torch import MultiheadAttention
    >>> layer = MultiheadAttention(16, 4, batch_first=True)
    >>> rows, padding = torch.randn(2, 5, 16), torch.tensor([[False] * 5, [True] * 5])
    >>> output, weights = layer(rows, rows, rows, key_padding_mask=padding)
    >>> weights.sum(-1)[1], output[1].any()                 # the second sequence is all padding
    (tensor([0., 0., 0., 0., 0.], grad_fn=<SelectBackward0>), tensor(False))
    """

    __constants__ = ["batch_first", "_specs"]  # noqa: RUF012 (torch declares it so)
    _specs: ClassVar[tuple[str, str]] = (scripted.PLAIN, scripted.MASKED)
    impl = "auto"  # the implementation of calls with need_weights=False, as `regard.attend` takes it

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output, shaped like the query, and the weights (None unless wanted).

        Args:
            query: (b,q,embed_dim) with batch_first, else (q,b,embed_dim); or (q,embed_dim) for a single sequence.
            key: the same for k keys of width kdim.
            value: the same for k values of width vdim.
            key_padding_mask: (b,k) or (k,): True hides a key; numbers are added to the scores of a key.
            need_weights: whether to return weights, too, which takes memory for each query and key.
            attn_mask: (q,k) or (b·h,q,k): True hides a key from a query; numbers are added to the scores.
            average_attn_weights: whether weights are the mean over the heads, (b,q,k), or of each head, (b,h,q,k).
            is_causal: says that attn_mask is the causal mask, which then is not read pair by pair.
        """
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        else:
            return self._eager(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )

    @torch.jit.unused
    def _eager(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average_attn_weights: bool,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        checks.check_tensors(query, key, value)
        is_batched = checks.check_axes(query, key, value, key_padding_mask, attn_mask)
        if query.is_nested or key.is_nested or value.is_nested:
            check_nested(self, query, key, value, key_padding_mask, attn_mask)
            return forward_nested(self, query, key, value, need_weights, average_attn_weights)
        batch_axis = (0 if self.batch_first else 1) if is_batched else None
        checks.check_causal(attn_mask, is_causal)
        causal = is_causal and attn_mask is not None and is_causal_mask(attn_mask)
        by_pair = None if causal else attn_mask
        checks.check_sizes(self, query, key, value, key_padding_mask, by_pair, batch_axis)
        if not causal and runs_short(self, query, key, value, key_padding_mask, attn_mask, need_weights):
            return run_short(self, query, key_padding_mask, attn_mask, need_weights, average_attn_weights)
        if not is_batched:
            query, key, value = each_once(lambda rows: rows[None], query, key, value)
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        batch_first = self.batch_first or not is_batched
        batch = query.shape[0 if batch_first else 1]
        extra = (self.bias_k is not None) + bool(self.add_zero_attn)
        keep = None if key_padding_mask is None else real_keys(key_padding_mask)
        hides = causal or keep is not None or (by_pair is not None and by_pair.dtype == torch.bool)
        heads = self._heads(query, key, value, batch_first, keep, hides)
        is_finite = (hides or need_weights) and all(is_bounded(tensor) for tensor in heads)
        translated = translate(
            key_padding_mask, by_pair, causal, (batch, self.num_heads), extra, heads[0].dtype, is_finite
        )
        options: dict[str, Any] = {"mask": translated.mask, "bias": translated.bias}
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            mixed, weights = attend_with_weights(*heads, dropout, is_finite, **options)
            weights = order_columns(weights, extra)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = dispatch.attend(*heads, dropout=dropout, impl=self.impl, **options)
        output = self.out_proj(join_heads(mixed, batch_first))
        if not is_batched:
            return output[0], None if weights is None else weights[0]
        return output, weights

    @torch.jit.unused
    def _heads(
        self, query: Tensor, key: Tensor, value: Tensor, batch_first: bool, keep: Tensor | None, hides: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (b,h,length,d), with keys and values that the layer adds in front.

        `hides`: something may be hidden, so non-finite rows are kept out of the gradients of the projections.
        """
        clean = each_once(
            lambda rows: zero_nonfinite(rows, hides and not _is_seen_to_be_finite(rows)), query, key, value
        )
        projected = project(
            clean[0][0],
            clean[1][0],
            clean[2][0],
            self.in_proj_weight,
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight),
            self.in_proj_bias,
        )
        # In self-attention a padded key is also a padded query, whose contents are not read.
        real = (keep if query is key else None, None, None)
        heads = []
        for (_, nonfinite), rows, kept in zip(clean, projected, real, strict=True):
            if nonfinite is not None and not batch_first:
                nonfinite = nonfinite.mT
            heads.append(restore_nonfinite(split_heads(rows, self.num_heads, batch_first), nonfinite, kept))
        return (
            heads[0],
            with_extra_rows(heads[1], self.bias_k, self.add_zero_attn),
            with_extra_rows(heads[2], self.bias_v, self.add_zero_attn),
        )

    def _scripted(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average_attn_weights: bool,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor | None]:
        is_batched = query.dim() == 3
        assert not is_causal or attn_mask is not None, "Need attn_mask if specifying the is_causal hint."
        if not is_batched:
            if key is value:
                query, key = query[None], key[None]
                value = key
            else:
                query, key, value = query[None], key[None], value[None]
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[None]
        batch_first = self.batch_first or not is_batched
        rows, weights = scripted.forward_scripted(
            (query, key, value),
            self.in_proj_weight,
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight),
            self.in_proj_bias,
            (self.bias_k, self.bias_v),
            self.add_zero_attn,
            self.num_heads,
            batch_first,
            self.dropout if self.training else 0.0,
            key_padding_mask,
            attn_mask,
            need_weights,
            self._specs,
        )
        output = self.out_proj(rows)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            return output[0], None if weights is None else weights[0]
        return output, weights


MultiheadAttention.__module__ = LeafName(__name__)


def _is_seen_to_be_finite(rows: Tensor) -> bool:
    """Whether rows can be read without waiting for a device, and are finite."""
    return readable(rows) and bool(rows.isfinite().all())
