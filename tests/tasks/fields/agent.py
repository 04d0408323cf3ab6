"""An agent: batches made by acting with the model; a loss of log-probabilities, rewards and a learned baseline."""

import random
from dataclasses import dataclass

import torch
from torch import nn

from regard_workbench.tasks import Answer, Batch, Head, Mean, Recipe, Stream, Task, Tokens, task
from regard_workbench.tasks.measures.metrics import LOSS

CUES, STEPS = 4, 4  # a cue is shown once; at the last step the agent must name it


@dataclass(frozen=True)
class Acts(Answer):
    """An action at every step."""

    actions: int
    needs = "past"
    words = "an action at every step"
    terms = "steps"
    units = "episodes"

    @property
    def outputs(self):
        return self.actions

    def head(self, dim=None, tied=None):
        return Policy(self.actions, dim)


class Policy(Head):
    """Logits of the actions and, from the same rows, the return that is expected (Williams 1992, with a baseline)."""

    def __init__(self, actions, dim):
        super().__init__(actions, dim)
        self.baseline = nn.Linear(dim, 1)

    def forward(self, rows, batch):
        return torch.cat([self.logits(rows), self.baseline(rows)], -1)

    def loss(self, outputs, batch, smoothing=0.0):
        outputs, action, gain = outputs.float(), batch.answers["action"].data, batch.answers["return"].data
        odds = outputs[..., :-1].log_softmax(-1)
        taken = odds.gather(-1, action[..., None])[..., 0]
        expected = outputs[..., -1]
        surrogate = -taken * (gain - expected).detach() + 0.5 * (gain - expected) ** 2
        surrogate = surrogate + 0.02 * (odds.exp() * odds).sum(-1)
        return surrogate.sum(), torch.tensor(float(surrogate.numel()), device=surrogate.device)

    def predict(self, outputs, batch):
        return outputs[..., :-1].argmax(-1).tolist()


def _succeeded(answered):
    gain = answered.batch.answers["return"].data[:, -1]
    return float((gain > 0).sum()), float(len(gain))


SUCCESS = Mean("success", unit="share", over="episodes", look=_succeeded)


@task("test-agent")
class Remember(Task):
    """Sees one of four cues, waits, and must say which it was; any other action on the way changes nothing."""

    metric = SUCCESS
    recipe = Recipe(model="decoder(dim=16, layers=1, num_heads=2, dropout=0.0)", steps=120, batch_size=64, lr=1e-2)

    def streams(self):
        return {"seen": Tokens(CUES + 3, length=STEPS)}

    def answers(self):
        return [Acts(CUES)]

    def metrics(self):
        return (LOSS, SUCCESS)

    def examples(self, split):
        draw = random.Random(split)
        return [draw.randrange(CUES) for _ in range(2000 if split == "train" else 200)]

    def length(self, example):
        return STEPS

    def batch(self, examples, chosen, generator, model=None):
        """Episodes, one step after the other, with the model's own actions."""
        cues = torch.tensor([examples[index] for index in chosen])
        seen = torch.full((len(cues), STEPS), CUES + 1)  # nothing to see
        seen[:, 0], seen[:, -1] = cues, CUES + 2  # the cue, and the question
        action = torch.randint(CUES, seen.shape, generator=generator)
        device = next(model.parameters()).device if model is not None else "cpu"
        training = model is not None and model.training
        with torch.no_grad():
            for step in range(STEPS) if model is not None else ():
                logits = model(Batch({"seen": Stream(seen[:, : step + 1].to(device))}))[:, -1, :-1].float().cpu()
                drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
                action[:, step] = drawn if training else logits.argmax(-1)
        gain = (action[:, -1] == cues).float()[:, None].expand(-1, STEPS).contiguous()
        return Batch({"seen": Stream(seen)}, {"action": Stream(action), "return": Stream(gain)})

    def collate(self, examples, generator):
        return self.batch(examples, range(len(examples)), generator)
