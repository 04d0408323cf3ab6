"""What the parts of a model write into its rows, and runs on some of these writes alone, with all scales held.

Writes are the outputs of modules with weights (linear maps, convolutions, embeddings) inside or before the layers, and
the mixed values of each head, which pass on through their output projection. A branch that does not split into such
writes (a mixture of experts) writes as a whole. In a run on parts alone every such output is a share of the one of the
plain run, so nothing that a part causes in later layers is in it. Norms multiply by the scale of the plain run. After
the last layer nothing is replaced: the head of the model runs, with the gates of its activations held
(f(x) = x · f(x)/x).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.observation.ablation import logits_of
from regard.observation.causes.branches import CopiedOutputs, branches_of, first_bends, watched
from regard.observation.causes.copies import ModelCall, first_tensor, mapped
from regard.observation.causes.rerun import Rerun, RunRecording, SiteEdit, other_forwards
from regard.observation.observer import numbered, parts_of

EMBEDDING = "embedding"  # the place of writes outside the layers
SAME = 1e-3  # of a norm's output by its formula, relative to its largest number
_ACTIVATIONS = tuple(
    kind
    for kind in vars(nn.modules.activation).values()
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind is not nn.MultiheadAttention
)


@dataclass(frozen=True)
class WritingPart:
    """A part of a model that writes: one head of a site, or a layer beside its heads."""

    place: str
    head: int | None = None


Shares = Mapping[WritingPart, float]  # how much of its writes a part writes; none of those that are not named


@dataclass
class _Kept:
    """One call of a module in the plain run."""

    place: str = ""
    output: Any = None
    copied: Sequence[bool] = ()  # which tensors of the output hold several copies one after the other
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
        """Every part that writes: each head, the embedding, what each layer writes beside its heads."""
        heads = [WritingPart(site, head) for site, values in self.values.items() for head in range(values.shape[1])]
        places = dict.fromkeys(kept.place for kept in self.calls.values() if kept.output is not None)
        return [*heads, *(WritingPart(place) for place in places)]

    def record(self, call: ModelCall) -> Any:
        """The plain run, with everything kept that runs on parts need. Finds the branches that write as a whole."""
        layers = {layer.module: layer.path for layer in self.rerun.layers}
        branches = branches_of(self.rerun)
        copied = CopiedOutputs(self.rerun, call, {**self.weighted, **branches, **layers})
        while True:
            output = self._keep(call, copied)
            writers = self.parts()
            portions = torch.rand(len(writers), generator=torch.Generator().manual_seed(0)).tolist()
            share = dict(zip(writers, portions, strict=True))
            complement = {writer: 1.0 - portion for writer, portion in share.items()}
            copies: list[Shares] = [{}, share, complement, dict.fromkeys(writers, 1.0)]
            bends = first_bends(
                lambda copies=copies: self.run(call, copies),  # type: ignore[misc]
                {**branches, **layers},
                copied,
                list(layers.values()),
            )
            branch_paths = {bend.module: bend.path for bend in bends if bend.module is not None and bend.is_branch}
            if not branch_paths or branch_paths.keys() <= self.weighted.keys():
                self.unfrozen |= {bend.path: None for bend in bends[:1]}
                return output
            self.weighted |= branch_paths

    def _keep(self, call: ModelCall, copied: CopiedOutputs) -> Any:
        """The plain run, in which the outputs of weighted modules, scales and gates are kept."""
        self.calls, self.projections = {}, set()
        state, recording = _Place(copied.layers), RunRecording()

        def keep(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            before, after = first_tensor(inputs), first_tensor(output)
            if before is None or after is None:
                return
            if module in self.norms:
                self.calls[name] = self._norm(name, module, before, after)
            elif module in self.activations and state.over:
                gate = torch.where(before == 0, torch.zeros_like(after), after / before)
                self.calls[name] = _Kept(scale=gate)
            elif module in self.weighted and not state.over:
                if self._projects(recording, before):
                    self.projections.add(name)
                elif copied.holds_rows(name, output):  # what is one table for all examples counts as bias
                    # Cloned: a layer may add to it in place.
                    self.calls[name] = _Kept(state.place, mapped(output, torch.clone), copied.of(name))

        handles = [
            layer.module.register_forward_pre_hook(lambda *_, path=layer.path: state.entered(path))
            for layer in self.rerun.layers
        ]
        try:
            with watched({**self.weighted, **self.norms, **self.activations}, keep):
                output = self.rerun.run(call, recording, state.left)
        finally:
            for handle in handles:
                handle.remove()
        self.values = recording.values
        self.logit_count = logits_of(output).numel()
        return output

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
        weight = getattr(module, "weight", None)
        bias = getattr(module, "bias", None)
        shift = bias.detach().double() if isinstance(bias, Tensor) else torch.zeros((), dtype=torch.float64)
        gains = [torch.ones((), dtype=torch.float64)]
        if isinstance(weight, Tensor) and weight.shape == x.shape[-1:]:
            gains = [weight.detach().double(), 1 + weight.detach().double()]
        for centred in (True, False):
            rows = x - x.mean(-1, keepdim=True) if centred else x
            for gain in gains:
                wide = rows * gain
                ratio = ((y - shift) * wide).sum(-1, keepdim=True) / wide.square().sum(-1, keepdim=True).clamp(
                    min=1e-300
                )
                if (ratio * wide + shift - y).abs().max() <= SAME * y.abs().max():
                    return _Kept(scale=(ratio * gain).to(made.dtype), centred=centred, bias=shift.to(made.dtype))
        self.unfrozen[name] = None
        return _Kept()

    def run(self, call: ModelCall, copies: Sequence[Shares]) -> Any:
        """The output of the model where, in each copy of the example, parts write these shares of what they wrote."""
        counts: dict[str, int] = {}

        def replaced(path: str, module: nn.Module) -> Callable[..., Any]:
            own_forward = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                counts[path] = counts.get(path, 0) + 1
                kept = self.calls.get(numbered(path, counts[path]))
                if kept is None or (kept.output is None and kept.scale is None):
                    return own_forward(*args, **kwargs)
                if kept.output is not None:
                    return _shared(kept, copies)
                rows = first_tensor((args, kwargs))
                assert rows is not None and kept.scale is not None
                rows = rows - rows.mean(-1, keepdim=True) if kept.centred else rows
                rows = rows * _times(kept.scale, len(copies))
                return rows if kept.bias is None else rows + kept.bias

            return forward

        modules = {**self.weighted, **self.norms, **self.activations}
        with other_forwards({module: replaced(path, module) for module, path in modules.items()}):
            return self.rerun.run(call.times(len(copies)), _HeadShares(self.values, copies))


def _shared(kept: _Kept, copies: Sequence[Shares]) -> Any:
    """The output of a call, in each copy times the share of its part; further tensors of it as they were."""
    portions = [shares.get(WritingPart(kept.place), 0.0) for shares in copies]
    copied = iter(kept.copied)
    first = first_tensor(kept.output)

    def repeated(tensor: Tensor) -> Tensor:
        if not next(copied):
            return tensor
        if tensor is not first:
            return _times(tensor, len(copies))
        return torch.cat([tensor * portion for portion in portions])

    return mapped(kept.output, repeated)


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


class _HeadShares(SiteEdit):
    """In each copy the mixed values of the plain run, each head times its share."""

    def __init__(self, values: dict[str, Tensor], copies: Sequence[Shares]) -> None:
        self.values, self.copies = values, copies
        self.sites = values

    def mixed(self, name: str, values: Tensor, start: int) -> Tensor:
        kept = self.values[name][:, :, start : start + values.shape[2]]
        heads = range(kept.shape[1])
        portions = torch.tensor(
            [[shares.get(WritingPart(name, head), 0.0) for head in heads] for shares in self.copies],
            dtype=kept.dtype,
            device=kept.device,
        )
        return (portions[:, None, :, None, None] * kept).flatten(0, 1)


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
