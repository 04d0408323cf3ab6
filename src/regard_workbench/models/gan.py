"""`gan`: a generator and a discriminator with self-attention, trained against each other in one step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from regard.errors import BadValue
from regard.formula.formula import widened
from regard.support.arguments import whole_number
from regard_workbench.models.parts.adversaries import Discriminator, Generator, attending, place_attention, scales
from regard_workbench.models.parts.model import Model, model
from regard_workbench.tasks.answers import MadePicture
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches, Tokens, Vectors
from regard_workbench.tasks.pictures.patches import names

GENERATOR, DISCRIMINATOR = "generator.places.attention", "discriminator.places.attention"


class Scored(NamedTuple):
    """Pictures from 0 to 1, and the discriminator's scores: positive means real."""

    pictures: Tensor  # (b,channels,height,width)
    made: Tensor  # (b,): of these pictures; no gradient for the generator in a training step
    real: Tensor | None = None  # (b,): of the real ones, in a training step
    fooled: Tensor | None = None  # (b,): `made` as the generator learns from it; no gradient for the discriminator


@model("gan", gives=("picture",), reads=(Tokens, Vectors), several_streams=True)
class Gan(Model):
    """A generator makes a picture of a class from noise; a discriminator tells it from a real one of that class.

        maps:   y = x + γ · attend(x), in both players, γ = 0 at first
        L_D = mean max(0, 1 − D(real)) + mean max(0, 1 + D(made)),   L_G = − mean D(made)

    The weight of every convolution and linear map of both players is divided by its largest singular value. A step
    updates both players at once, from the same made pictures and with the same learning rate: the loss is L_D + L_G,
    where L_D has no gradient for the generator and L_G none for the discriminator. The loss says who is winning, not
    how good the pictures are.

    Paper: Zhang et al. 2019 (self-attention, hinge loss, spectral normalisation in both players); Goodfellow et al.
    2014; Miyato et al. 2018 (spectral normalisation); Miyato & Koyama 2018 (the class in the discriminator).

    Args:
        dim: channels of the maps whose places attend; larger maps have half as many at each size
        self_attention: whether places attend to each other in both players
        attention: by default that of the paper: one head, keys and values of dim / 8 channels, scores not scaled
    """

    takes_attention: ClassVar[str] = "the self-attention among the places of the maps, in both players"
    attention_default: ClassVar[str] = "multihead"
    shows: ClassVar[dict[str, str]] = {
        GENERATOR: "where each place of the generator looked",
        DISCRIMINATOR: "where each place of the discriminator looked",
    }
    sides: Mapping[str, tuple[str | int, str | int]] = MappingProxyType(dict.fromkeys(shows, ("patches", "patches")))

    def __init__(
        self, problem: Problem, *, dim: int = 32, attention: str | None = None, self_attention: bool = True
    ) -> None:
        super().__init__(problem)
        classes, noise = problem.streams.values()
        assert isinstance(classes, Tokens) and isinstance(noise, Vectors) and isinstance(problem.answer, MadePicture)
        if attention is not None and not self_attention:
            raise BadValue("attention: there is no self-attention to build from it with self_attention=false.")
        answer, dim = problem.answer, whole_number("dim", dim, 1)
        sizes = scales(answer.height, answer.width)
        self.grid = sizes[attending(sizes)]
        attentions = [place_attention(dim, attention) if self_attention else None for _ in range(2)]
        self.generator = Generator(sizes, answer.channels, noise.width, classes.count, dim, attentions[0])
        self.discriminator = Discriminator(sizes, answer.channels, classes.count, dim, attentions[1])
        if not self_attention:
            self.shows, self.sides = {}, {}  # type: ignore[misc]
        self.head = answer.head()

    @classmethod
    def refuses(cls, problem: Problem) -> str:
        """Anything but one class and one row of noise."""
        kinds = [(type(spec), spec.length) for spec in problem.streams.values()]
        return "" if kinds == [(Tokens, 1), (Vectors, 1)] else "reads the class of a picture, and one row of noise"

    def forward(self, batch: Batch) -> Scored:
        classes, noise = batch.streams.values()
        labels = classes.data[:, 0]
        generated = self.generator(noise.data[:, 0].to(next(self.parameters()).dtype), labels)
        pictures = self.head((generated + 1) / 2, batch)
        if not (self.training and torch.is_grad_enabled()) or batch.targets is None:
            return Scored(pictures, self.discriminator(generated, labels))
        # One call of the discriminator serves both players. What the generator learns from is made of the slope of the
        # scores with respect to its pictures, not of a call with frozen weights: FSDP would put in those that learn.
        detached = generated.detach().requires_grad_()
        both = torch.cat([detached, self._real(batch, generated.dtype)])
        fake_scores, theirs = self.discriminator(both, labels.repeat(2)).chunk(2)
        (slope,) = torch.autograd.grad(fake_scores.sum(), detached, retain_graph=True)
        nothing = (
            (slope * (generated - generated.detach())).flatten(1).sum(1)
        )  # 0, but its gradient is that of the scores
        return Scored(pictures, fake_scores, theirs, fake_scores.detach() + nothing)

    @staticmethod
    def _real(batch: Batch, dtype: torch.dtype) -> Tensor:
        """Real pictures as the discriminator reads them, from −1 to 1."""
        assert batch.targets is not None, "the loss needs real pictures"
        return 2 * batch.targets.to(dtype) - 1

    def loss(self, outputs: Scored, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The losses of both players, summed over the pictures, and the number of pictures."""
        losses = self._each_loss(outputs, batch)
        return losses.sum(), losses.new_tensor(float(len(losses)))

    def example_losses(self, outputs: Scored, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The losses of both players for each made picture and the real one beside it, and 1 for each."""
        losses = self._each_loss(outputs, batch).detach()
        return losses, torch.ones_like(losses)

    def _each_loss(self, outputs: Scored, batch: Batch) -> Tensor:
        fake, real, fooled = outputs.made, outputs.real, outputs.fooled
        if real is None:
            labels = batch.first.data[:, 0]
            real = self.discriminator(self._real(batch, fake.dtype), labels)
        hinge = torch.relu(1 - widened(real)) + torch.relu(1 + widened(fake))
        return hinge - widened(fake if fooled is None else fooled)

    def predict(self, outputs: Scored, batch: Batch) -> list[Any]:
        """Each picture as numbers from 0 to 1: channels, rows, columns."""
        return self.head.predict(outputs.pictures, batch)

    def relabel(self, shown: Shown) -> Shown:
        """The names of the places that attend to each other, by row and column."""
        height, width = self.grid
        places = names(Patches(1, height * width, height, width))
        grid = self.grid if shown.picture is not None else None
        return dataclasses.replace(shown, pieces=places, called="patches", grid=grid)
