"""Where a question points: a coarse view of a picture, whose channels the question scales and shifts."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, gelu

from regard.support.arguments import whole_number
from regard_workbench.models.parts.channel_norm import channel_norm
from regard_workbench.models.parts.token_rows import WeightedSum
from regard_workbench.tasks.parts.streams import Patches, Tokens
from regard_workbench.tasks.pictures.patches import fold


class Modulation(nn.Module):
    """A row scales and shifts every channel of a map: (1 + γ(q)) ⊙ x + β(q).

    Weights begin so large that another word changes the scales at once. From small ones, which figure a question names
    is a saddle point of the loss: neither the scales nor the features have a gradient before the other differ.

    Paper: Perez et al. 2018.
    """

    def __init__(self, dim: int, channels: int) -> None:
        super().__init__()
        self.scales = nn.Linear(dim, 2 * channels)
        nn.init.normal_(self.scales.weight, std=dim**-0.5)
        nn.init.zeros_(self.scales.bias)

    def forward(self, maps: Tensor, row: Tensor) -> Tensor:
        """Maps (b,channels,height,width) and a row (b,dim) → maps."""
        scale, shift = self.scales(row)[..., None, None].chunk(2, 1)
        modulated: Tensor = (1 + scale) * maps + shift
        return modulated


class ModulatedView(nn.Module):
    """Patches (b,n,width) and the words of a question → rows (b,n,dim), one for each patch.

    The view is coarse: a patch is four means (one, where its side is odd), which tell its colours and hardly its forms.
    A question modulates all three convolutions over it. This pathway is apart from the one that sees forms, because
    modulating that one scrambles its features anew for every question: over the same scenes, a network that was
    modulated throughout knew after 300 steps where the named figure was and after 900 not what any figure was; one
    that was not modulated knew what there was, and not which was meant.
    """

    def __init__(self, spec: Patches, asked: Tokens, dim: int, *, width: int, norm: str) -> None:
        super().__init__()
        self.spec, self.parts = spec, 1 if spec.side % 2 else 2
        self.words = WeightedSum(asked, dim, ordered=False)
        self.norm = nn.LayerNorm(dim)
        widths = [spec.channels, whole_number("width", width, 1), dim, dim]
        # (kernel, step, padding): as they are; down to one place for each patch; its neighbours
        steps = [(3, 1, 1), (self.parts, self.parts, 0), (3, 1, 1)]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(widths[at], widths[at + 1], kernel, step, padding, bias=False)
            for at, (kernel, step, padding) in enumerate(steps)
        )
        self.norms = nn.ModuleList(channel_norm(norm, channels) for channels in widths[1:])
        self.modulations = nn.ModuleList(Modulation(dim, channels) for channels in widths[1:])

    def forward(self, data: Tensor, words: Tensor) -> Tensor:
        """The patches of pictures, and the ids of the words (b,words)."""
        row = self.norm(self.words(words))
        maps = avg_pool2d(2 * fold(data.to(row.dtype), self.spec) - 1, self.spec.side // self.parts)
        for convolution, norm, modulation in zip(self.convolutions, self.norms, self.modulations, strict=True):
            maps = gelu(modulation(norm(convolution(maps)), row))
        return maps.flatten(2).transpose(1, 2)
