"""Options that several tasks take in the same sense, declared once: `seed: int = SEED` in a class takes one over.

Where a task means something of its own by one, it declares it by the same check: `option("…", at_least(1), default=1)`.
ENCODING, SEED and WHOLE come last, whatever a subclass adds.
"""

from __future__ import annotations

from regard.support.arguments import whole_number
from regard.support.declared import at_least, one_of, option
from regard_workbench.tasks.formats.reading import checked_encoding
from regard_workbench.tasks.text.vocabulary import checked_level

LEVEL = option("word, character or bpe (sub-words)", lambda name, level: checked_level(level), default="word")
VOCABULARY_SIZE: int | None = option("how many different pieces (bpe: 4096 by default)", default=None)
MIN_COUNT = option("how often a word must occur in training to be known", at_least(1), default=1)
MIN_PIECE_COUNT = option("how often a word or character must occur in training to be known", at_least(1), default=1)
STOP_OR_SKIP = one_of(("stop", "skip"))
BAD_FILES = option("at a file that cannot be read: stop, or skip it and say so", STOP_OR_SKIP, default="stop")
PATCH = option("pixels of a patch's side, which divides the size", at_least(1), default=4)
ENCODING = option(
    "how the files are encoded", lambda name, encoding: checked_encoding(encoding), default="utf-8", last=True
)
SEED = option(
    "which lines are kept for validation and test where there are no files for them", whole_number, default=0, last=True
)
WHOLE = option(
    "measure on all of a file, keep nothing of it for training; for a model trained on other data",
    default=False,
    last=True,
)
