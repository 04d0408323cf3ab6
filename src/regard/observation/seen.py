"""What was seen: the sites where a model attended; each computes the weights of its calls when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.dispatch.attention import Rows
from regard.dispatch.summary import Summary
from regard.errors import BadValue, unknown_name
from regard.observation.capture.reading import IN_FLIGHT, How, Reading, Side
from regard.observation.coverage import Unseen, label_partial
from regard.observation.pages import opener
from regard.values.grid import Sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

    from regard.observation.analysis.difference import AttentionDifference
    from regard.observation.analysis.patterns import HeadFacts
    from regard.observation.causes.attributions import InputAttributions
    from regard.observation.causes.circuits import Circuits
    from regard.observation.causes.contributions import Contributions
    from regard.observation.causes.faithfulness import Faithfulness
    from regard.observation.causes.lens import LogitLens
    from regard.observation.causes.movers import MoverHead
    from regard.observation.causes.result import PatchResult


class Site:
    """A module that attends, with the calls that were captured."""

    def __init__(self, name: str, kind: str, module: nn.Module | None) -> None:
        self.name = name
        self.kind = kind  # the function that computes its attention
        self.module = module
        self.readings: list[Reading] = []

    @property
    def calls(self) -> int:
        """How many calls were captured; each step of a generation is one call."""
        return len(self.readings)

    @property
    def how(self) -> How:
        """How far the weights can be trusted.

        exact: the weights the model mixed its values with. effective: the model never makes weights, but its output is
        the mean of its values by these. unverified: computed from what is known of the layer, not confirmed by its
        output.
        """
        return self.readings[-1].how

    @property
    def rows(self) -> Side:
        """What the rows of a map are."""
        return self.readings[-1].rows

    @property
    def columns(self) -> Side:
        """What the columns of a map are."""
        return self.readings[-1].columns

    def shape(self, call: int = -1) -> Sizes:
        """Batch, heads, queries and keys of a call."""
        return self.reading(call).sizes

    def weights(self, rows: Rows = None, heads: Rows = None, call: int = -1) -> Tensor:
        """The weights (b, heads, rows, k) of one call, before dropout, computed for the chosen rows and heads."""
        return self.reading(call).weights(rows, heads)

    def columns_of(self, keys: Rows, heads: Rows = None, call: int = -1) -> Tensor:
        """The weights that all queries give to chosen keys, (b, heads, q, keys)."""
        return self.reading(call).columns_of(keys, heads)

    def summary(self, top: int = 8, call: int = -1) -> Summary:
        """Entropy, received weight, strongest keys and log-sum-exp of all rows, in linear memory."""
        return self.reading(call).summary(top)

    @torch.no_grad()
    def pooled(
        self,
        height: int,
        width: int,
        heads: Rows = None,
        call: int = -1,
        batch: int = 0,
        sampled: bool = True,
        most: int = 2,
    ) -> Tensor:
        """A map reduced to (heads, height, width): each cell is the largest weight of its rows and columns.

        `sampled`: compute at most `most` rows of each cell, evenly spaced, instead of all.
        """
        reading = self.reading(call)
        _, _, queries, keys = reading.sizes
        height, width = min(height, queries), min(width, keys)
        if not (height and width):
            return torch.zeros(reading.weights([], heads).shape[1], height, width)
        edges = torch.arange(height + 1) * queries // height
        picked, cells = [], []
        for cell in range(height):
            first, last = int(edges[cell]), int(edges[cell + 1])
            count = min(most, last - first) if sampled else last - first
            picked += [first + (last - first) * at // count for at in range(count)]
            cells += [cell] * count
        columns = torch.arange(keys) * width // keys
        maxima: Tensor | None = None
        few = max(1, IN_FLIGHT // max(1, reading.sizes[0] * reading.sizes[1] * keys))
        for start in range(0, len(picked), few):
            weights = reading.weights(picked[start : start + few], heads)[batch].float().cpu()  # (heads, rows, k)
            if maxima is None:
                maxima = torch.zeros(len(weights), height, width)
            narrow = torch.zeros(*weights.shape[:2], width)
            narrow.scatter_reduce_(2, columns.expand_as(weights), weights, "amax")
            into = torch.tensor(cells[start : start + few])[None, :, None].expand_as(narrow)
            maxima.scatter_reduce_(1, into, narrow, "amax")
        assert maxima is not None
        return maxima

    def times_gradient(self, rows: Rows = None, heads: Rows = None, call: int = -1) -> Tensor:
        """Weight × gradient of the number given to `seen.gradient`, (b, heads, rows, k)."""
        from regard.observation.gradients import times_gradient

        return times_gradient(self.reading(call), rows, heads)

    def image(self, head: int | None = None, size: int = 512, **options: Any) -> Image:
        """One head, or all heads in a grid, as an image of at most `size` pixels a side."""
        from regard.observation.plotting import image

        return image(self, head, size, **options)

    def reading(self, call: int = -1) -> Reading:
        """One call."""
        if not -self.calls <= call < self.calls:
            raise BadValue(
                f"call: {self.name} was called {self.calls} times; expected an index from -{self.calls} to "
                f"{self.calls - 1}, got {call}."
            )
        return self.readings[call]

    def __repr__(self) -> str:
        batch, heads, queries, keys = self.shape()
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"<{self.name}: {heads} heads, {queries} × {keys}, batch {batch}, {self.how}, {calls}>"


class Seen:
    """Everything a model attended to while it was observed, by site."""

    def __init__(self, model: nn.Module | None) -> None:
        self.model = model
        self.inputs: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # arguments of the last forward pass
        self.sites: dict[str, Site] = {}
        self.coverage: Callable[[], list[Unseen]] = list  # set by the observer while it observes

    @property
    def unseen(self) -> list[Unseen]:
        """Modules that look like attention and ran, but were not captured, and why."""
        return self.coverage()

    def names(self) -> list[str]:
        """The sites in the order of their first call: module paths, with #2 … where a module attends again."""
        return list(self.sites)

    def __getitem__(self, name: str) -> Site:
        if name in self.sites:
            return self.sites[name]
        if not self.sites:
            raise BadValue(
                f"name: nothing was seen, so there is no {name!r}. Call the model in the with block. Seen are calls "
                "of scaled_dot_product_attention, flex_attention and nn.MultiheadAttention, layers of regard, and "
                "the attention of Hugging Face, timm and x-transformers."
            )
        raise unknown_name("name", name, self.sites)

    # Analyses of all sites. Imported when called: they need scipy, scikit-learn or matplotlib.

    def rollout(self, rows: Rows = None, **options: Any) -> Tensor:
        """How much of each input position is in each position after all layers (`analysis.rollout`)."""
        from regard.observation.analysis.rollout import rollout

        return rollout(self, rows, **options)

    def flow(self, rows: Rows = None, keys: Rows = None, **options: Any) -> Tensor:
        """The maximum flow through all layers between positions and input positions (`analysis.flow`)."""
        from regard.observation.analysis.flow import flow

        return flow(self, rows, keys, **options)

    def heads(self, tokens: Sequence[object] | Tensor | None = None, **options: Any) -> list[HeadFacts]:
        """What each head does, by name: previous token, induction, sink … (`analysis.patterns`)."""
        from regard.observation.analysis.patterns import recognise_all

        label_partial(self, "heads")
        return recognise_all(self, tokens, **options)

    def ablate(self, heads: Any = None, **options: Any) -> Any:
        """How the output changes without some heads, or without each of them (`ablation`)."""
        from regard.observation.ablation import ablate

        label_partial(self, "ablate")
        return ablate(self, heads, **options)

    def patch(self, clean: Any, corrupted: Any, **options: Any) -> PatchResult:
        """Which heads, layers and positions carry the answer: parts of one run put into another (`causes.patching`)."""
        from regard.observation.causes.patching import patch

        label_partial(self, "patch")
        return patch(self, clean, corrupted, **options)

    def patch_paths(self, clean: Any, corrupted: Any, **options: Any) -> PatchResult:
        """The same along direct paths only, to the answer or to other heads (`causes.paths`)."""
        from regard.observation.causes.paths import patch_paths

        label_partial(self, "patch_paths")
        return patch_paths(self, clean, corrupted, **options)

    def lens(self, inputs: Any = None, **options: Any) -> LogitLens:
        """What the model would say if it stopped after each layer (`causes.lens`)."""
        from regard.observation.causes.lens import logit_lens

        return logit_lens(self, inputs, **options)

    def contributions(self, inputs: Any = None, **options: Any) -> Contributions:
        """How much each head and layer wrote into the logit of an answer (`causes.contributions`)."""
        from regard.observation.causes.contributions import contributions

        label_partial(self, "contributions")
        return contributions(self, inputs, **options)

    def attributions(self, inputs: Any = None, **options: Any) -> InputAttributions:
        """Which inputs an answer comes from, by gradients and by attention (`causes.attributions`)."""
        from regard.observation.causes.attributions import attributions

        return attributions(self, inputs, **options)

    def faithfulness(self, inputs: Any = None, **options: Any) -> Faithfulness:
        """Whether the answer needs what a map marks, against random maps (`causes.faithfulness`)."""
        from regard.observation.causes.faithfulness import faithfulness

        return faithfulness(self, inputs, **options)

    def circuits(self, **options: Any) -> Circuits:
        """Induction, previous-token and duplicate-token heads, by what they do (`causes.circuits`)."""
        from regard.observation.causes.circuits import find_circuits

        label_partial(self, "circuits")
        return find_circuits(self, **options)

    def name_movers(self, clean: Any, corrupted: Any, **options: Any) -> list[MoverHead]:
        """Heads that look at the answer earlier in the text and write it (`causes.movers`)."""
        from regard.observation.causes.movers import name_movers

        label_partial(self, "name_movers")
        return name_movers(self, clean, corrupted, **options)

    def gradient(self, number: Tensor) -> None:
        """Take the gradient of a number, which `Site.times_gradient` needs (`gradients`)."""
        from regard.observation.gradients import follow

        follow(self, number)

    def difference(self, other: Seen, **options: Any) -> AttentionDifference:
        """How much the weights of two models, checkpoints or inputs differ (`analysis.difference`)."""
        from regard.observation.analysis.difference import difference

        label_partial(self, "difference")
        label_partial(other, "other")
        return difference(self, other, **options)

    def plot(self, site: str | None = None, heads: Rows = None, **options: Any) -> Figure:
        """A figure fit for a paper: one site's heads, or all heads of all sites (`plotting`)."""
        from regard.observation.plotting import plot

        return plot(self, site, heads, **options)

    def show(self, tokens: Sequence[str] | None = None, **options: Any) -> Any:
        """The page of `regard view` inside a notebook (needs anywidget)."""
        return opener("show")(self, tokens, **options)

    def export(self, path: str | Path, tokens: Sequence[str] | None = None, **options: Any) -> Path:
        """The page of `regard view` as one HTML file."""
        written: Path = opener("export")(self, path, tokens, **options)
        return written

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __contains__(self, name: object) -> bool:
        return name in self.sites

    def __repr__(self) -> str:
        lines = [repr(site) for site in self.sites.values()]
        missing = [f"not seen: {module}" for module in self.unseen]
        return "\n".join([f"Seen, {len(self)} sites:" if lines else "Seen: nothing yet", *lines, *missing])
