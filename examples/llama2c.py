"""A llama2.c checkpoint as a Hugging Face folder, so that `regard view FOLDER --text "…" --generate 40` can open it.

python examples/llama2c.py stories260K.bin tok512.bin FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from regard_workbench.models import from_pretrained, save_pretrained
from regard_workbench.models.pretrained.llama2c import SPECIAL, read_tokenizer


def convert(checkpoint: Path, vocabulary: Path, folder: Path) -> Path:
    """Writes the folder and hands it back."""
    save_pretrained(from_pretrained(checkpoint), folder)
    unknown, start, end = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=read_tokenizer(vocabulary), unk_token=unknown, bos_token=start, eos_token=end
    )
    tokenizer.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    print(convert(*map(Path, sys.argv[1:])))
