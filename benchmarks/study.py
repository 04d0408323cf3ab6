"""The study: which mechanism for which job. Runs its comparisons, and writes docs/study.md from what they left.

    python benchmarks/study.py run [--only NAME] [--data ../shared/data]
    python benchmarks/study.py write

`run` goes on where it was stopped, as `regard compare` does. `write` needs neither data nor time, and nothing is typed
in by hand: rerun a comparison, and the text says what it says then.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from studying import page, reading, yardsticks
from studying.question import DATA, Margin, Question

HOME = Path("runs/study")
PAGE = Path("docs/study.md")
POINT = Margin(0.01, "1 point")
ONE_COMPUTATION = (
    "the decoder lets each position see itself and what came before, and under that mask all five are the same heads "
    "of scaled dot products"
)
SENTIMENT = (
    "static-transformer(dim=128,layers=1,dropout=0.4),"
    "dynamic-transformer(dim=128,layers=1,dropout=0.4,attention=dynamic-memory(segment=16)),"
    "lstm-attention(dim=128,dropout=0.5)"
)
TRIED = (
    "Sizes, dropout and learning rate were picked by hand, from a few trial runs of each model beforehand."
)

QUESTIONS = (
    Question(
        name="shakespeare",
        title="Continue a text",
        job="continue a text, letter by letter",
        asks="Which attention should a small decoder use to guess the next character?",
        arguments=(
            "language(context=64)", "--data", f"{DATA}/tinyshakespeare/input.txt",
            "--models", "decoder(layers=2,dim=64,num_heads=4)", "--attention", "all", "--seeds", "3",
            "--steps", "200", "--batch-size", "8", "--optim.lr", "2e-3", "--eval-every", "100", "--eval-limit", "256",
            "--workers", "2", "--threads", "1",
        ),
        margin=Margin(0.02, "2 %", relative=True),
        story=(
            "Tiny-shakespeare is a million characters of plays. Every mechanism that can be made causal takes its turn "
            "as the self-attention of the same two-layer decoder, 64 wide, over windows of 64 characters. Perplexity "
            "is the number of characters between which the model wavers."
        ),
        same=("multihead", "global", "causal", "key-value-memory", "query-key-memory"),
        why_same=ONE_COMPUTATION,
    ),
    Question(
        name="copy",
        title="Copy from memory",
        job="repeat a long input exactly",
        asks="Which architecture learns to store bits and give them back?",
        arguments=(
            "copy(max_length=10)", "--models", "ntm,lstm-attention,decoder", "--seeds", "3", "--steps", "1500",
            "--batch-size", "8", "--optim.optimizer", "adamw", "--optim.lr", "1e-3",
            "--optim.warmup", "50", "--optim.schedule", "cosine", "--optim.clip", "10",
            "--workers", "2", "--threads", "1",
        ),
        margin=Margin(0.5, "half a bit"),
        story=(
            "The model reads one to ten random vectors of eight bits, then a mark, and must write the vectors down "
            "again (Graves et al. 2014). Nothing can be guessed: a bit that is not remembered costs one bit. The "
            "Neural Turing Machine was built for this job; the others meet it with the memory they have. All train "
            "with one recipe here; what the machine does with its own, and with more time, is told in "
            "[results.md](results.md)."
        ),
    ),
    Question(
        name="dates",
        title="Translate dates",
        job="turn one sequence into another",
        asks="Which attention should a recurrent translator use to look at its source?",
        arguments=(
            "dates", "--models", "seq2seq(dim=64)",
            "--attention", "additive,dot,general,local-p,hard", "--seeds", "3", "--steps", "400",
            "--workers", "2", "--threads", "1",
        ),
        margin=POINT,
        story=(
            "“3rd of May, 1979” becomes “1979-05-03”, character by character; there are some forty ways to write a "
            "date. A bidirectional GRU reads, another one writes and attends to what was read: the job that Bahdanau's "
            "and Luong's attentions were made for. Exact match counts a date only if all its characters are right."
        ),
    ),
    Question(
        name="digits",
        title="Recognise a digit",
        job="classify a short sequence",
        asks="Static memory, dynamic memory, or an LSTM with attention?",
        arguments=("digits", "--seeds", "3", "--workers", "2", "--threads", "1"),
        margin=POINT,
        story=(
            "scikit-learn's 1,797 scanned digits of 8 × 8 pixels, read as eight rows, and the three models that "
            "`regard compare` compares when it is told nothing else: an encoder whose layers write the sequence into a "
            "fixed number of slots and read it back (static memory), a decoder that carries a gated memory from "
            "segment to segment (dynamic memory), and an LSTM that looks back over its own rows."
        ),
    ),
    Question(
        name="sst2",
        title="Judge a sentence",
        job="judge the mood of a sentence",
        asks="Static memory, dynamic memory, or an LSTM with attention, from scratch on 6,920 sentences?",
        arguments=(
            "classify(min_count=2,hide=0.1)", "--data", f"{DATA}/sst2", "--models", SENTIMENT, "--seeds", "3",
            "--steps", "1000", "--eval-every", "100", "--optim.lr", "1e-3", "--workers", "2", "--threads", "1",
        ),
        margin=POINT,
        story=(
            "SST-2: is a sentence from a film review praise or blame? The same three kinds of model as for digits. "
            "Words that occur at least twice are known; in training a tenth of them is hidden, so that 6,920 sentences "
            "are not simply learned by heart. Nothing was pre-trained."
        ),
        tuned=TRIED,
    ),
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run or write. 0; 1 if a comparison failed or a folder cannot be used."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="make the comparisons, or go on with them")
    running.add_argument("--only", choices=[question.name for question in QUESTIONS], help="one of them")
    running.add_argument("--data", default="../shared/data", help="the folder with the data sets")
    verbs.add_parser("write", help="write docs/study.md and its pictures from the folders of the comparisons")
    options = parser.parse_args(arguments)
    if options.verb == "run":
        return run([one for one in QUESTIONS if options.only in (None, one.name)], options.data)
    try:
        page.write(QUESTIONS, HOME, PAGE)
    except reading.Unreadable as trouble:
        print(f"study: {trouble}", file=sys.stderr)
        return 1
    print(PAGE)
    return 0


def run(questions: list[Question], data: str) -> int:
    """Make the comparisons one after another; their tables go to stdout. The worst exit code of all."""
    codes = []
    for question in questions:
        folder = HOME / question.name
        command = question.command(data, str(folder))
        print(f"== {question.name}: {question.asks}", file=sys.stderr)
        codes.append(subprocess.run([sys.executable, "-m", *command], check=False).returncode)
        if codes[-1] == 0:
            yardsticks.write(folder, reading.read(folder, "").settings)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
