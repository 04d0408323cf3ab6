"""Where the kernel of a head keeps the factors and sums of its weights' gradients: `layout.Stages` for a head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

PADDING = 128  # of outputs and of tokens; tiles of logits and of gradients divide it


@dataclass(frozen=True)
class HeadStage:
    """A normalisation and a linear map to `outputs` logits.

    Outputs are read in tiles, so all that is kept for them is padded to whole tiles; the gradients begin with the real
    ones, because rows of a weight lie one after the other.
    """

    dim: int
    outputs: int
    bias: bool

    @property
    def tile(self) -> int:
        """Outputs that are held at once."""
        return PADDING if self.dim <= 128 else PADDING // 2

    @property
    def padded(self) -> int:
        """The number of outputs in whole tiles."""
        return -(-self.outputs // PADDING) * PADDING

    @property
    def pitch(self) -> int:
        """Width of a row of factors: normalised rows, then gradients of the logits."""
        return self.dim + self.padded

    @property
    def vectors(self) -> int:
        """Number of sums: gain, shift, bias."""
        return 2 * self.dim + (self.padded if self.bias else 0)

    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of gain, shift, weight and bias with padded outputs."""
        weight_shapes: list[tuple[int, ...]] = [(self.dim,), (self.dim,), (self.padded, self.dim)]
        return [*weight_shapes, (self.padded,)] if self.bias else weight_shapes

    def real(self, parts: list[Tensor]) -> list[Tensor]:
        """The gradients without those of padding."""
        return [*parts[:2], *(gradient[: self.outputs] for gradient in parts[2:])]

    def jobs(self, column: int, place: int, total: int, tall: int, width: int) -> list[tuple[int, int, int, int, int]]:
        """The jobs of `weight_gradients`, as `layout._jobs`; none for rows of nothing but padding."""
        dim = self.dim
        jobs = [(1, place + j, 0, total + j, 0) for j in range(0, 2 * dim, width)]  # gain and shift, side by side
        total += 2 * dim
        for i in range(0, self.outputs, tall):
            for j in range(0, dim, width):
                jobs.append((0, column + dim + i, column + j, total + i * dim + j, dim))
        total += self.padded * dim
        if self.bias:
            jobs += [(1, place + 2 * dim + j, 0, total + j, 0) for j in range(0, self.outputs, width)]
        return jobs
