"""What the parts of a model write into its rows, and runs on some of these writes alone, with all scales held.

Writes are the outputs of modules with weights (linear maps, convolutions, embeddings) inside or before the layers, and
the mixed values of each head, which pass on through their output projection. In a run on parts alone every such output
is the one of the plain run or zero, so nothing that a part causes in later layers is in it. Norms multiply by the
scale of the plain run. After the last layer nothing is replaced: the head of the model runs, with the gates of its
activations held (f(x) = x · f(x)/x).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.observation.ablation import logits_of
from regard.observation.causes.copies import ModelCall, first_tensor, with_first_tensor
from regard.observation.causes.rerun import Rerun, RunRecording, SiteEdit, other_forwards
from regard.observation.observer import numbered, parts_of

EMBEDDING = "embedding"  # the place of writes outside the layers
SAME = 1e-3  # of a norm's output by its formula, relative to its largest number
_ACTIVATIONS = tuple(
    kind for kind in vars(nn.modules.activation).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.MultiheadAttention
)  # fmt: skip


@dataclass(frozen=True)
class WritingPart:
    """A part of a model that writes: one head of a site, or a layer beside its heads. An empty place: no part."""

    place: str
    head: int | None = None


@dataclass
class _Kept:
    """One call of a module in the plain run."""

    place: str = ""
    output: Any = None
    scale: Tensor | None = None  # of a norm, by row and channel; of an activation, its gate
    centred: bool = False
    bias: Tensor | None = None


class ModelWrites:
    """The writes of one plain run on a single example."""

    def __init__(self, rerun: Rerun) -> None:
        self.rerun = rerun
        self.values: dict[str, Tensor] = {}  # mixed values by site, (b,h,q,v)
        self.calls: dict[str, _Kept] = {}  # by the path of a module and the number of its call
        self.projections: set[str] = set()  # calls that project heads, which are never replaced
        self.unfrozen: dict[str, None] = {}
        self.logit_count = 0
        self.weighted, self.norms, self.activations = _sorted_parts(
            rerun.model, {site.partition("#")[0] for site in rerun.sites}
        )

    def parts(self) -> list[WritingPart]:
        """No part, then every part that writes: each head, the embedding, what each layer writes beside its heads."""
        heads = [
            WritingPart(site, head) for site, values in self.values.items() for head in range(values.shape[1])
        ]
        places = dict.fromkeys(kept.place for kept in self.calls.values() if kept.output is not None)
        return [WritingPart(""), *heads, *(WritingPart(place) for place in places)]

    def record(self, call: ModelCall) -> Any:
        """The plain run, with everything kept that runs on parts need."""
        layers = RunRecording()
        self.rerun.run(call, at_layers=layers.layer)
        state = _Place(len(layers.layers))
        recording = RunRecording()
        with self._hooked(state, recording):
            output = self.rerun.run(call, recording, state.left)
        self.values = recording.values
        self.logit_count = logits_of(output).numel()
        return output

    @contextlib.contextmanager
    def _hooked(self, state: _Place, recording: RunRecording) -> Iterator[None]:
        counts: dict[str, int] = {}

        def keep(path: str, kind: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                counts[path] = counts.get(path, 0) + 1
                name = numbered(path, counts[path])
                given, made = first_tensor((args, kwargs)), first_tensor(output)
                if given is None or made is None:
                    return
                if kind == "norm":
                    self.calls[name] = self._norm(name, module, given, made)
                elif kind == "activation" and state.over:
                    gate = torch.where(given == 0, torch.zeros_like(made), made / given)
                    self.calls[name] = _Kept(scale=gate)
                elif kind == "weighted" and not state.over:
                    if self._projects(recording, given):
                        self.projections.add(name)
                    elif len(made) == 1:  # a table for all examples stays as it is and counts as bias
                        self.calls[name] = _Kept(place=state.place, output=output)

            return hook

        handles = [
            module.register_forward_hook(keep(path, kind), with_kwargs=True)
            for kind, modules in (
                ("weighted", self.weighted),
                ("norm", self.norms),
                ("activation", self.activations),
            )
            for module, path in modules.items()
        ]
        handles += [
            layer.module.register_forward_pre_hook(lambda *_, path=layer.path: state.entered(path))
            for layer in self.rerun.layers
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _projects(self, recording: RunRecording, given: Tensor) -> bool:
        """Whether a module reads the joined heads of the newest site: then it is their output projection."""
        if not recording.values:
            return False
        newest = recording.values[next(reversed(recording.values))]
        joined = newest.transpose(1, 2)
        return given.numel() == joined.numel() and torch.equal(given.reshape(-1), joined.reshape(-1))

    def _norm(self, name: str, module: nn.Module, given: Tensor, made: Tensor) -> _Kept:
        """The scale of a norm: y = (x − mean of x) · scale + bias, or without the mean. Checked on its output."""
        x, y = given.double(), made.double()
        own = getattr(module, "weight", None)
        bias = getattr(module, "bias", None)
        shift = bias.detach().double() if isinstance(bias, Tensor) else torch.zeros((), dtype=torch.float64)
        gains = [torch.ones((), dtype=torch.float64)]
        if isinstance(own, Tensor) and own.shape == x.shape[-1:]:
            gains = [own.detach().double(), 1 + own.detach().double()]
        for centred in (True, False):
            rows = x - x.mean(-1, keepdim=True) if centred else x
            for gain in gains:
                wide = rows * gain
                ratio = ((y - shift) * wide).sum(-1, keepdim=True) / wide.square().sum(
                    -1, keepdim=True
                ).clamp(min=1e-300)
                if (ratio * wide + shift - y).abs().max() <= SAME * y.abs().max():
                    return _Kept(
                        scale=(ratio * gain).to(made.dtype), centred=centred, bias=shift.to(made.dtype)
                    )
        self.unfrozen[name] = None
        return _Kept()

    def alone(self, call: ModelCall, parts: Sequence[WritingPart]) -> Any:
        """The output of the model with, in each copy of the examples, one part's writes and no others."""
        copies = len(parts)
        counts: dict[str, int] = {}

        def replaced(path: str, module: nn.Module) -> Callable[..., Any]:
            own = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                counts[path] = counts.get(path, 0) + 1
                kept = self.calls.get(numbered(path, counts[path]))
                if kept is None or (kept.output is None and kept.scale is None):
                    return own(*args, **kwargs)
                if kept.output is not None:
                    return self._masked(kept, parts)
                rows = first_tensor((args, kwargs))
                assert rows is not None and kept.scale is not None
                rows = rows - rows.mean(-1, keepdim=True) if kept.centred else rows
                rows = rows * _times(kept.scale, copies)
                return rows if kept.bias is None else rows + kept.bias

            return forward

        modules = {**self.weighted, **self.norms, **self.activations}
        with other_forwards({module: replaced(path, module) for module, path in modules.items()}):
            return self.rerun.run(call.times(copies), _HeadsAlone(self.values, parts))

    def _masked(self, kept: _Kept, parts: Sequence[WritingPart]) -> Any:
        rows = first_tensor(kept.output)
        assert rows is not None
        shares = [1.0 if part.head is None and part.place == kept.place else 0.0 for part in parts]
        weights = torch.tensor(shares, dtype=rows.dtype, device=rows.device)
        found = _times(rows, len(parts)).unflatten(0, (len(parts), -1))
        found = found * weights.view(-1, *(1,) * rows.dim())
        return with_first_tensor(kept.output, found.flatten(0, 1))


class _Place:
    """Where a run is: outside the layers, in one of them, or after the last."""

    def __init__(self, layers: int) -> None:
        self.left_over, self.place, self.over = layers, EMBEDDING, False
        self.counts: dict[str, int] = {}

    def entered(self, path: str) -> None:
        self.counts[path] = self.counts.get(path, 0) + 1
        self.place = f"{numbered(path, self.counts[path])}, rest"

    def left(self, name: str, rows: Tensor) -> Tensor:
        self.left_over -= 1
        self.place, self.over = EMBEDDING, self.left_over == 0
        return rows


class _HeadsAlone(SiteEdit):
    """In each copy the mixed values of at most one head, as in the plain run."""

    def __init__(self, values: dict[str, Tensor], parts: Sequence[WritingPart]) -> None:
        self.values, self.parts = values, parts
        self.sites = values

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        kept = self.values[name][:, :, start : start + values.shape[2]]
        found = torch.zeros_like(values).unflatten(0, (len(self.parts), -1))
        for copy, part in enumerate(self.parts):
            if part.head is not None and part.place == name:
                found[copy, :, part.head] = kept[:, part.head]
        joined: Tensor = found.flatten(0, 1)
        return joined


def _times(tensor: Tensor, copies: int) -> Tensor:
    return tensor.repeat(copies, *(1,) * (tensor.dim() - 1))


def _sorted_parts(
    model: nn.Module, sites: Collection[str]
) -> tuple[dict[nn.Module, str], dict[nn.Module, str], dict[nn.Module, str]]:
    """Modules without submodules: those with weights, norms, and activations, each with its path.

    A module that attends itself is none of them: what its heads write is told apart.
    """
    weighted: dict[nn.Module, str] = {}
    norms: dict[nn.Module, str] = {}
    activations: dict[nn.Module, str] = {}
    for module, path in parts_of(model).items():
        if path in sites or any(True for _ in module.children()):
            continue
        kind = type(module).__name__
        if "norm" in kind.lower() and not isinstance(module, nn.modules.batchnorm._BatchNorm):
            norms[module] = path
        elif any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
            weighted[module] = path
        elif isinstance(module, _ACTIVATIONS) or kind.endswith("Activation"):
            activations[module] = path
    return weighted, norms, activations
