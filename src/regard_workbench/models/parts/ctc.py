"""Connectionist temporal classification (Graves et al. 2006): how likely transcripts and their beginnings are.

A frame says a token or the blank; equal neighbours are one token, and blanks are left out. `CtcPrefixes` follows any
number of transcripts as they grow: how likely is it that the frames begin with this one? (Graves 2008, algorithm 1;
Watanabe et al. 2017, algorithm 2.) What the papers compute frame by frame is a running sum of products here, so that
all frames are computed at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

IMPOSSIBLE = -1e4  # what an impossible token adds to a log-probability: finite, so that a search never ends in nothing
# Stands for log 0 in a frame. Differences of running sums would be NaN with −inf, and lost beside lower numbers.
_LOG_ZERO = -1e6


class CtcPrefixes:
    """The beginnings of transcripts, one for each row, and how likely each is to go on with each token."""

    def __init__(self, log_probabilities: Tensor, lengths: Tensor, *, blank: int, end: int) -> None:
        """(b,n,count) for each frame, of which `lengths` (b,) are real; all rows begin with nothing said."""
        self.frames = log_probabilities.detach().double().clamp(min=_LOG_ZERO)
        self.last_frame = lengths.to(self.frames.device).clamp(min=1) - 1
        self.blank, self.end = blank, end
        count, frames, _ = self.frames.shape
        self.rows = torch.arange(count, device=self.frames.device)  # which of the sounds each row hears
        # Log-probabilities that the frames up to each one say exactly the row's tokens, the last of them …
        self.spoken = self.frames.new_full((count, frames), -torch.inf)  # … a token
        self.silent = self.frames[..., blank].cumsum(1)  # … a blank
        self.tokens = self.rows.new_full((count,), -1)  # the last token of each row; −1: none yet
        self.total = self.frames.new_zeros(count)  # of the prefix: that the whole sound begins with it

    def gains(self) -> Tensor:
        """(n,count): log P(the transcript begins with the tokens and this one | it begins with the tokens).

        For `end`: that the tokens are all of it.
        """
        heard, real = self.frames[self.rows], self._real()
        gains = _sum_over_frames(self._before()[..., None] + heard, real)
        # A token equal to the last one needs a blank before it.
        last = self.tokens.clamp(min=0)
        again = _sum_over_frames(self._before(repeated=True) + _of_token(heard, last), real)
        plain = gains.gather(1, last[:, None])[:, 0]
        gains.scatter_(1, last[:, None], torch.where(self.tokens < 0, plain, again)[:, None])
        gains[:, self.end] = self.whole()
        gains[:, self.blank] = -torch.inf
        gained = gains - self.total[:, None]
        possible = gained.isfinite() & (self.total > _LOG_ZERO / 2)[:, None]
        return torch.where(possible, gained, IMPOSSIBLE).clamp(IMPOSSIBLE, 0.0)

    def whole(self) -> Tensor:
        """(n,): the log-probability that the row's tokens are all that is said."""
        at = self.last_frame[self.rows][:, None]
        return torch.logaddexp(self.spoken.gather(1, at), self.silent.gather(1, at))[:, 0]

    def extend(self, tokens: Tensor) -> None:
        """Each row goes on with its token (n,)."""
        heard = self.frames[self.rows]
        token = _of_token(heard, tokens)
        repeats = (tokens == self.tokens)[:, None]
        before = torch.where(repeats, self._before(repeated=True), self._before())
        self.total = _sum_over_frames(before + token, self._real())
        self.spoken = _running(before, token)
        self.silent = _running(_later(self.spoken, -torch.inf), heard[..., self.blank])
        self.tokens = tokens.clone()

    def reorder(self, index: Tensor) -> None:
        """Row i continues the former row index[i]."""
        for name in ("rows", "spoken", "silent", "tokens", "total"):
            setattr(self, name, getattr(self, name)[index])

    def _before(self, repeated: bool = False) -> Tensor:
        """(n,frames): that the frames before each one say exactly the tokens, so that a new one can begin at it.

        `repeated`: one equal to the last; a blank must lie between.
        """
        nothing = torch.where(self.tokens < 0, 0.0, -torch.inf).to(self.silent)
        log_probability = self.silent if repeated else torch.logaddexp(self.silent, self.spoken)
        return torch.cat([nothing[:, None], log_probability[:, :-1]], 1)

    def _real(self) -> Tensor:
        return torch.arange(self.frames.shape[1], device=self.frames.device) <= self.last_frame[self.rows][:, None]


def _of_token(heard: Tensor, tokens: Tensor) -> Tensor:
    """(n,frames): the log-probability of each row's token (n,) in each frame."""
    return heard.gather(2, tokens[:, None, None].expand(-1, heard.shape[1], 1))[..., 0]


def _sum_over_frames(terms: Tensor, real: Tensor) -> Tensor:
    """log Σ exp over the real frames, (n,frames[,count]) → (n[,count])."""
    real = real if terms.dim() == 2 else real[..., None]
    return terms.masked_fill(~real, -torch.inf).logsumexp(1)


def _running(begins: Tensor, stays: Tensor) -> Tensor:
    """x_t = log(exp x_{t−1} + exp begins_t) + stays_t for all frames at once.

    It is the sum over s ≤ t of begins_s + stays_s + … + stays_t, and sums of `stays` are differences of running sums.
    """
    passed = stays.cumsum(1)
    return torch.logcumsumexp(begins - _later(passed, 0.0), 1) + passed


def _later(numbers: Tensor, first: float) -> Tensor:
    """Numbers (n,frames) one frame later."""
    return torch.cat([torch.full_like(numbers[:, :1], first), numbers[:, :-1]], 1)
