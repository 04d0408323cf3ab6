"""`glimpse`: looks at a picture through a small window and chooses where to look next."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import unknown_name
from regard.support.arguments import whole_number
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.picture_features import PictureFeatures, convolution
from regard_workbench.models.parts.place_policy import PlacePolicy
from regard_workbench.models.parts.retina import Retina
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Patches
from regard_workbench.tasks.pictures.patches import fold

POLICIES = ("learned", "random", "centre")


class Glances(NamedTuple):
    """What the model said after each glimpse, and where each was."""

    logits: Tensor  # (b,glimpses,classes)
    places: Tensor  # (b,glimpses): the number of a patch


@model("glimpse", gives=("glances", "pooled"), reads=(Patches,))
class Glimpse(Model):
    """A recurrent network that never sees the whole picture: each step chooses a place and takes a glimpse of it.

        c_t ~ hard attention of h_{t−1} over the places      (evaluation: the likeliest place)
        h_t = GRU(h_{t−1}, relu(CNN(glimpse(c_t)) + W · place(c_t)))

    Places are the centres of the stream's patches. A choice has no derivative: the policy learns by the score function
    (REINFORCE) with the loss of each example as its negative reward and a moving average as its baseline, which is what
    hard(estimator=reinforce) does. Everything else learns by the gradient of the loss.

    Paper: Mnih et al. 2014 (recurrent models of visual attention); the choice of one of several places instead of
    coordinates: Xu et al. 2015, section 4.1.

    Args:
        glimpses: how many glimpses it takes
        side: pixels of the sensor's side at each scale
        scales: how many squares a glimpse has, each twice as wide as the one before
        policy: learned; random (any place, as likely) or centre (always the same one), to compare with
        entropy_weight: weight of the entropy of the choices in the reward
    """

    attention_default: ClassVar[str] = "hard(estimator=reinforce)"  # `policy` chooses; `--attention` has no place here
    shows: ClassVar[dict[str, str]] = {"policy": "the place of each glimpse"}
    sides: Mapping[str, tuple[str | int, str | int]] = MappingProxyType({"policy": ("glimpses", "patches")})

    def __init__(
        self,
        problem: Problem,
        *,
        dim: int = 96,
        glimpses: int = 6,
        side: int = 12,
        scales: int = 2,
        policy: str = "learned",
        entropy_weight: float = 0.1,
    ) -> None:
        super().__init__(problem)
        spec = problem.inputs
        assert isinstance(spec, Patches)
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)
        self.spec, self.chooses = spec, policy
        self.glimpses = whole_number("glimpses", glimpses, 1)
        self.retina = Retina(spec, whole_number("side", side, 2), scales)
        self.rows = nn.Parameter(torch.randn(spec.rows, dim) * 0.5)
        self.columns = nn.Parameter(torch.randn(spec.columns, dim) * 0.5)
        self.policy = PlacePolicy(dim, estimator="reinforce", entropy_weight=entropy_weight)
        width = dim // 4
        self.what = nn.Sequential(
            convolution(scales * spec.channels, width),
            convolution(width, width, 2, 2),
            nn.Flatten(),
            nn.Linear(width * (side // 2) ** 2, dim),
            nn.LayerNorm(dim),
        )
        self.core = nn.GRUCell(dim, dim)
        self.start = nn.Parameter(torch.zeros(dim))
        self.head = problem.answer.head(dim)

    @classmethod
    def refuses(cls, problem: Problem) -> str:
        """Frames of a video."""
        assert isinstance(problem.inputs, Patches)
        return PictureFeatures.refusal(problem.inputs)

    def places(self) -> Tensor:
        """A row for each place, (places,dim): that of its row and that of its column added."""
        return (self.rows[:, None] + self.columns).flatten(0, 1)

    def forward(self, batch: Batch) -> Any:
        """`Glances`; only the last logits where the problem asks for one class."""
        pictures = self.retina.padded(fold(batch.inputs.to(self.start.dtype), self.spec))
        places = self.places()
        hidden = self.start.expand(batch.size, -1)
        states, chosen = [], []
        for number in range(self.glimpses):
            where, index = self._choose(hidden, places, pictures, number)
            glimpse = self.what(self.retina.look(pictures, index).flatten(1, 2))
            hidden = self.core(torch.relu(glimpse + where), hidden)
            states.append(hidden)
            chosen.append(index)
        if self.problem.answer.needs == "pooled":
            return self.head(hidden, batch)
        return Glances(self.head(torch.stack(states, 1), batch), torch.stack(chosen, 1))

    def _choose(self, seen: Tensor, places: Tensor, pictures: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """The row of the chosen place (b,dim), and its number (b,)."""
        query = seen.detach()  # the policy does not shape what the network remembers
        fixed = None if self.chooses == "learned" else self._given(pictures, number)
        choice = self.policy.choose_place(query, places, fixed)
        if fixed is None and not self.training:  # a plain call, which `observe` sees
            return self.policy(query[None], places[None])[0], choice.index[:, 0, 0]
        if fixed is None:
            assert self.policy.reinforce is not None
            self.policy.reinforce.offer(choice)
        return self.policy.chosen_rows(places, choice), choice.index[:, 0, 0]

    def _given(self, pictures: Tensor, number: int) -> Tensor:
        """Places that need no policy, (b,). In evaluation, random ones are a function of the picture."""
        count, size = self.spec.rows * self.spec.columns, len(pictures)
        if self.chooses == "centre":
            middle = self.spec.rows // 2 * self.spec.columns + self.spec.columns // 2
            return torch.full((size,), middle, device=pictures.device)
        if self.training:
            return torch.randint(count, (size,), device=pictures.device)
        key = (pictures.flatten(1).double().sum(1) * 4096).long() + 40503 * (number + 1)
        mixed = (key * 2654435761 + 1013904223) % 2**31
        return (mixed >> 8) % count

    def loss(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return self.head.loss(_logits(outputs), batch, smoothing)

    def example_losses(self, outputs: Any, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        return self.head.example_losses(_logits(outputs), batch, smoothing)

    def predict(self, outputs: Any, batch: Batch) -> list[Any]:
        """What the head says, with the row and the column of each place looked at."""
        predictions = self.head.predict(_logits(outputs), batch)
        if isinstance(outputs, Glances):
            for prediction, places in zip(predictions, outputs.places.tolist(), strict=True):
                prediction["places"] = [divmod(place, self.spec.columns) for place in places]
        return predictions

    def relabel(self, shown: Shown) -> Shown:
        """Name the glimpses."""
        names = [f"glimpse {number + 1}" for number in range(self.glimpses)]
        return Shown(
            shown.words,
            shown.pieces,
            shown.called,
            shown.target,
            shown.picture,
            shown.grid,
            {**shown.streams, "glimpses": names},
        )


def _logits(outputs: Any) -> Tensor:
    return outputs.logits if isinstance(outputs, Glances) else outputs
