"""Two streams of different kinds, each with its own padding: a spoken digit and a picture, the same number or not?"""

import random

import torch

from regard_workbench.tasks import Batch, OneOf, Recipe, Stream, Task, Tokens, Vectors, task
from regard_workbench.tasks.measures.metrics import ACCURACY, LOSS
from regard_workbench.tasks.parts.padding import padded

DIGITS, WIDTH = (
    5,
    6,
)  # a sound is a run of frames around the pattern of its digit; a picture a row of dark or light cells
PATTERNS = torch.randn(DIGITS, WIDTH, generator=torch.Generator().manual_seed(7))


@task("test-two-streams")
class SameNumber(Task):
    """Says whether a spoken number and the number of dark cells in a picture are the same."""

    recipe = Recipe(model="encoder(dim=24, layers=2, dropout=0.0)", steps=200, batch_size=32, lr=4e-3)

    def streams(self):
        return {"sound": Vectors(WIDTH, length=9), "picture": Tokens(4, length=11)}

    def answers(self):
        return [OneOf(2)]

    def metrics(self):
        return (LOSS, ACCURACY)

    def examples(self, split):
        draw, found = random.Random(split), []
        for _ in range(2000 if split == "train" else 300):
            said, same = draw.randrange(DIGITS), draw.randrange(2)
            shown = said if same else (said + draw.randrange(1, DIGITS)) % DIGITS
            cells = [2] * shown + [1] * draw.randrange(1, 7)
            draw.shuffle(cells)
            found.append((said, draw.randrange(2, 10), cells, same))
        return found

    def length(self, example):
        return example[1] + len(example[2])

    def collate(self, examples, generator):
        longest = max(frames for _, frames, _, _ in examples)
        real = torch.arange(longest) < torch.tensor([frames for _, frames, _, _ in examples])[:, None]
        sound = PATTERNS[torch.tensor([said for said, *_ in examples])][:, None].expand(-1, longest, -1)
        sound = sound + 0.3 * torch.randn(sound.shape, generator=generator)
        sound = sound.masked_fill(~real[..., None], 99.0)  # padding must not be read
        picture, cells = padded([cells for *_, cells, _ in examples], 0)
        same = torch.tensor([same for *_, same in examples])
        streams = {"sound": Stream(sound, real), "picture": Stream(picture, cells)}
        return Batch(streams, {"same": Stream(same)})
