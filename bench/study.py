"""The study: which mechanism for which job. Runs its comparisons, and writes docs/study.md from what they left.

    python bench/study.py run [--only NAME] [--data ../shared/data]
    python bench/study.py write

`run` goes on where it was stopped, as `regard compare` does. `write` needs neither data nor time, and nothing is typed
in by hand: rerun a comparison, and the text says what it says then.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from studying import conclusion, text
from studying.evidence import (
    DATA,
    YARDSTICKS,
    Entry,
    Margin,
    Question,
    Unreadable,
    read_comparison,
    read_yardsticks,
    write_yardsticks,
)
from studying.verdict import RACING, STRUCK, Verdict, draw, judge

from regard.nn.parts.mechanism import MECHANISMS
from regard.registry import parse
from regard_workbench.comparison.columns import Column, counted, number, quality, significant
from regard_workbench.comparison.grid import compose
from regard_workbench.training.run_folder import durable

HOME = Path("runs/study")
PAGE = Path("docs/study.md")
POINT = Margin(0.01, "1 point")
ONE_COMPUTATION = (
    "the decoder lets each position see itself and what came before, and under that mask all five are the same heads "
    "of scaled dot products"
)
# The first sets the size that the others match. Of names that are one computation in a decoder, one takes part.
CAUSAL = (
    "causal,additive,concat,dot,dynamic-memory,general,global-layer,global-query,hard,linear,local,local-layer,local-m,"
    "local-p,relative"
)
SENTIMENT = (
    "static-transformer(dim=64,layers=1,dropout=0.5,positions=none),"
    "dynamic-transformer(dim=64,layers=1,dropout=0.5,positions=none,attention=dynamic-memory(segment=16)),"
    "lstm-attention(dim=64,dropout=0.5)"
)

QUESTIONS = (
    Question(
        name="shakespeare",
        title="Continue a text",
        job="continue a text, letter by letter",
        asks="Which attention should a small decoder use to guess the next character?",
        words=(
            f"language(context=256) --data {DATA}/tinyshakespeare/input.txt --models "
            f"decoder(layers=2,num_heads=4) --attention {CAUSAL} --match parameters --seeds 3 --steps 5000 "
            "--batch-size 64 --optim.lr 1e-3 --eval-every 1000 --eval-limit 256 --device cuda --precision "
            "bf16-mixed --workers 8 --threads 1"
        ),
        margin=Margin(0.02, "2 %", relative=True),
        story=(
            "Tiny-shakespeare is a million characters of plays. Every mechanism that can be made causal takes its turn "
            "as the self-attention of the same two-layer decoder over windows of 256 characters; its width is chosen "
            "so that all have about as many parameters as plain causal attention 128 wide. Perplexity is the number of "
            "characters between which the model wavers. `global`, `key-value-memory`, `multihead` and "
            "`query-key-memory` are the same computation as `causal` here (an earlier edition ran them all, and they "
            "agreed to the last digit), so `causal` stands for the five."
        ),
        same=("multihead", "global", "causal", "key-value-memory", "query-key-memory"),
        why_same=ONE_COMPUTATION,
    ),
    Question(
        name="copy",
        title="Copy from memory",
        job="repeat a long input exactly",
        asks="Which architecture learns to store bits and give them back?",
        words=(
            "copy(max_length=10) --models ntm,lstm-attention,decoder --seeds 3 --steps 1500 --batch-size "
            "8 --optim.optimizer adamw --optim.lr 1e-3 --optim.warmup 50 --optim.schedule cosine "
            "--optim.clip 10 --workers 2 --threads 1"
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
        words=(
            "dates --models seq2seq(dim=64) --attention additive,dot,general,local-p,hard --seeds 3 "
            "--steps 400 --workers 2 --threads 1"
        ),
        margin=POINT,
        story=(
            "“3rd of May, 1979” becomes “1979-05-03”, character by character; there are some forty ways to write a "
            "date. A bidirectional GRU reads, another one writes and attends to what was read: the job that Bahdanau's "
            "and Luong's attentions were made for. Exact match counts a date only if all its characters are right."
        ),
    ),
    Question(
        name="dates-models",
        title="Translate dates: the model",
        job="choose a translator",
        asks="A recurrent translator, a Transformer, or one of the documents' two encoder-decoders?",
        words=(
            "dates --models seq2seq,transformer,gla,bridge --match parameters --seeds 3 --steps 1600 "
            "--eval-every 200 --workers 2 --threads 1"
        ),
        margin=POINT,
        story=(
            "The same dates, and four architectures of about as many parameters: recurrent with additive attention, "
            "Transformer, encoder-decoder with global queries (`gla`), and self-attention modules that a layer joins "
            "to a decoder (`bridge`)."
        ),
    ),
    Question(
        name="digits",
        title="Recognise a digit",
        job="classify a short sequence",
        asks="Static memory, dynamic memory, or an LSTM with attention?",
        words=("digits --seeds 3 --workers 2 --threads 1"),
        margin=POINT,
        story=(
            "scikit-learn's 1,797 scanned digits of 8 × 8 pixels, read as eight rows, and the three models that "
            "`regard compare` compares when it is told nothing else: an encoder whose layers write the sequence into a "
            "fixed number of slots and read it back (static memory), a decoder that carries a gated memory from "
            "segment to segment (dynamic memory), and an LSTM that looks back over its own rows."
        ),
    ),
    Question(
        name="digits-attention",
        title="Recognise a digit: the attention",
        job="choose the attention of an encoder",
        asks="Which attention should a small encoder use?",
        words=(
            "digits --models encoder(layers=2,num_heads=4) --attention all --match parameters --seeds 3 "
            "--workers 2 --threads 1"
        ),
        margin=POINT,
        story=(
            "The same digits, and every mechanism as the self-attention of the same two-layer encoder at about equal "
            "parameters. Eight rows are few: what matters here is how quickly a mechanism learns from 1,257 examples."
        ),
    ),
    Question(
        name="sst2",
        title="Judge a sentence",
        job="judge the mood of a sentence",
        asks="Static memory, dynamic memory, or an LSTM with attention, from scratch on 6,920 sentences?",
        words=(
            f"classify(min_count=2,hide=0.1,parts=20000,naive_bayes=2) --data {DATA}/sst2 --models "
            f"{SENTIMENT} --match parameters --seeds 3 --steps 500 --eval-every 50 --optim.lr 2e-3 "
            "--optim.average 0.99 --optim.consistency 8 --device cpu --workers 2 --threads 1"
        ),
        margin=POINT,
        story=(
            "SST-2: is a sentence from a film review praise or blame? The same three kinds of model as for digits. "
            "Words that occur at least twice are known, with the character n-grams of all; in training a tenth of them "
            "is hidden, so that 6,920 sentences are not simply learned by heart. Each model corrects the scores of "
            "naive Bayes over words, word pairs and beginnings of words, which are added to its logits. Nothing was "
            "pre-trained."
        ),
        tuned=(
            "Settings were picked by some 150 trial runs on parts of the training sentences, measured on the rest and "
            "on the validation sentences (docs/lab-notes.md)."
        ),
    ),
)

SHOWN_DATA = "../shared/data"  # as the commands on the page name it
IMAGES = "images"


def write_page(questions: Sequence[Question], home: Path, page: Path) -> None:
    """Write the page and its pictures, from the folders inside `home`."""
    verdicts = [verdict for question in questions if (verdict := _verdict(question, home))]
    if not verdicts:
        raise Unreadable(f"{home}: no comparison there has a finished run.")
    images = page.parent / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    sections = []
    for verdict in verdicts:
        name = f"study-{verdict.question.name}.svg"
        alt = draw(verdict, images / name)
        sections.append(section(verdict, f"{IMAGES}/{name}", alt, SHOWN_DATA, home.as_posix()))
    parts = [
        text.opening(verdicts),
        answers(verdicts),
        conclusion.to_do(verdicts),
        text.method(verdicts),
        *sections,
        glance(verdicts),
        text.limits(verdicts),
        text.again(verdicts, [one for one in questions if one not in [each.question for each in verdicts]]),
    ]
    durable.replace(page, (text.wrapped("\n\n".join(part for part in parts if part)) + "\n").encode())


def _verdict(question: Question, home: Path) -> Verdict | None:
    folder = home / question.name
    try:
        comparison = read_comparison(folder, question.shown(SHOWN_DATA, home.as_posix()))
    except Unreadable as trouble:
        if (folder / "runs").is_dir() and any((folder / "runs").glob("*/outcome.json")):
            raise
        print(f"left out: {trouble}", file=sys.stderr)
        return None
    if wrong := question.contradicted(comparison.settings):
        raise Unreadable(f"{folder}: {wrong}. Correct the list, or run it again.")
    left_out = _left_out(question, comparison.task)
    return judge(question, dataclasses.replace(comparison, left_out=left_out), read_yardsticks(folder))


def _left_out(question: Question, task: str) -> list[tuple[str, str]]:
    """Which mechanisms cannot take part where all were asked, and why: the library is asked again, without any data."""
    options = dict(zip(question.arguments, question.arguments[1:], strict=False))
    if options.get("--attention") not in ("all", CAUSAL):
        return []
    found = compose({"task": task}, [options["--models"]], ["all"]).left_out
    return [(label.rpartition(" · ")[2], why) for label, why in found]


def answers(verdicts: Sequence[Verdict]) -> str:
    """What to take for which job."""
    lines = ["| job | take | because | certain? |", "| :-- | :-- | :-- | :-- |"]
    for verdict in verdicts:
        if verdict.take is None:
            lines.append(f"| {_link(verdict)} | nothing yet | nobody got beyond guessing within this budget | – |")
        else:
            why = text.because(verdict) + text.but(verdict)
            lines.append(f"| {_link(verdict)} | {text.code(verdict.take.name)} | {why} | {text.sure(verdict)} |")
    parts = ["## The short answer", "\n".join(lines), tally(verdicts), everywhere(verdicts)]
    return "\n\n".join(part for part in parts if part)


def _link(verdict: Verdict) -> str:
    anchor = "".join(letter for letter in verdict.question.title.lower() if letter.isalnum() or letter in " -")
    return f"[{verdict.question.job}](#{anchor.replace(' ', '-')})"


def everywhere(verdicts: Sequence[Verdict]) -> str:
    """Which mechanisms were good enough wherever they were tried, if there are any."""
    asked = [verdict for verdict in verdicts if "--attention" in verdict.question.arguments]
    if len(asked) < 2:
        return ""
    tried: dict[str, list[bool]] = {}
    for verdict in asked:
        for entry in verdict.everyone:
            for name in entry.names:
                tried.setdefault(parse(name)[0], []).append(entry in verdict.close)
    good = sorted(name for name, marks in tried.items() if len(marks) == len(asked) and all(marks))
    where = f"in {'both' if len(asked) == 2 else f'all {text.count(len(asked))}'} comparisons of attentions"
    if good:
        stayed = f"{text.listed(good)} stayed in the race and within the margin of the best {where}"
        return f"If one default must do: {stayed}."
    return f"No mechanism was in the race and within the margin of the best {where}."


def tally(verdicts: Sequence[Verdict]) -> str:
    """How often there is a clear winner, and how often something simpler does better."""
    clear = sum(len(verdict.racing) == 1 for verdict in verdicts)
    said = f"The tests name one winner in {text.count(clear)} of {text.count(len(verdicts))} jobs"
    said += "; elsewhere several may be the best." if clear < len(verdicts) else "."
    simple = [verdict for verdict in verdicts if any(not one.guess for one in verdict.yardsticks)]
    lost = [verdict for verdict in simple if any(not one.guess for one in verdict.unbeaten)]
    if lost:
        often = "each of these" if len(lost) == len(simple) else f"{text.count(len(lost))} of these"
        said += (
            f" For {text.count(len(simple))} of them an old and simple method was tried as well, and for {often} it "
            "does better than everything here: small models that learn from scratch for minutes are no match for it, "
            "and a table without it would flatter them."
        )
    return said


def glance(verdicts: Sequence[Verdict]) -> str:
    """Every mechanism that was tried, and how it fared in each comparison of attentions."""
    asked = [verdict for verdict in verdicts if "--attention" in verdict.question.arguments]
    if not asked:
        return ""
    cells: dict[str, dict[str, str]] = {}
    for verdict in asked:
        for entry in verdict.everyone:
            mark = STRUCK if entry.label in verdict.struck else RACING
            number = text.value(entry.mean, verdict.metric)
            cell = f"{mark} **{number}**" if entry in verdict.close else f"{mark} {number}"
            for name in entry.names:
                cells.setdefault(parse(name)[0], {})[verdict.question.name] = cell
    lines = [
        f"| mechanism | what it does | {' | '.join(_head(verdict) for verdict in asked)} |",
        f"| :-- | :-- | {' | '.join(['--:'] * len(asked))} |",
    ]
    for name in sorted(cells):
        fared = " | ".join(cells[name].get(verdict.question.name, "–") for verdict in asked)
        lines.append(f"| {text.code(name)} | {_sentence(name)} | {fared} |")
    told = (
        f"{RACING} may be the best of its column, {STRUCK} is not; **bold**: in the race and within the margin of the "
        "best mean; – was not asked, or cannot do it."
    )
    return "\n\n".join(["## All mechanisms at a glance", told, "\n".join(lines)])


def _head(verdict: Verdict) -> str:
    return f"{text.code(verdict.question.name)}: {verdict.metric.name.replace('_', ' ')}"


def _sentence(name: str) -> str:
    """What a mechanism does, in the words of its own docstring."""
    text = inspect.getdoc(MECHANISMS[name].layer) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def section(verdict: Verdict, picture: str, alt: str, data: str, home: str) -> str:
    """The section as Markdown; `picture` is the file of its figure, as seen from the page."""
    question = verdict.question
    parts = [
        f"## {question.title}",
        f"*{question.asks}*",
        " ".join(part for part in (question.story, question.tuned) if part),
        *_unfinished(verdict),
        *_crowded(verdict),
        f"![{alt}]({picture})",
        table(verdict),
        *_bullets("**Found.**", text.findings(verdict)),
        *_bullets("**Negative results.**", text.negative(verdict, verdict.comparison.left_out)),
        *_bullets("**Same thing, other name.**", text.check(verdict)),
        details(verdict, data, home),
    ]
    return "\n\n".join(parts)


def _unfinished(verdict: Verdict) -> list[str]:
    """What is missing, where not all runs that were asked for have ended."""
    options = dict(zip(verdict.question.arguments, verdict.question.arguments[1:], strict=False))
    comparison, listed = verdict.comparison, options.get("--attention", "all")
    asked = {one.attention for one in comparison.contestants} if listed == "all" else set(listed.split(","))
    models = {one.model for one in comparison.contestants}
    ended = [run for run in comparison.outcomes if not run.error]
    wanted = len(asked) * len(models) * len(comparison.seeds)
    if len(ended) >= wanted:
        return []
    absent = sorted(name for name in asked - {run.attention for run in ended} if name is not None)
    none = f"; of {text.listed(absent)} none has" if absent else ""
    return [
        f"**Unfinished**: {len(ended)} of {wanted} runs have ended{none}. Rows with fewer seeds say so; what follows "
        "may change."
    ]


def _crowded(verdict: Verdict) -> list[str]:
    if verdict.comparison.costs:
        return []
    return [
        "**Speed**: steps were not timed one contestant at a time here; steps/s are those of runs side by side, so "
        "only large factors count."
    ]


def _bullets(title: str, said: Sequence[str]) -> list[str]:
    if not said:
        return []
    return [title + " " + said[0]] if len(said) == 1 else [title, "\n".join(f"- {one}" for one in said)]


def table(verdict: Verdict) -> str:
    """One line for each computation, the best first."""
    rows = [entry.row for entry in verdict.everyone]
    columns = [
        quality(rows, "test", decimals=2),
        number(rows, "steps_per_second", ("steps/s",), significant, higher=True),
        number(rows, "parameters", ("parameters",), counted, higher=False),
        number(rows, "flops_per_step", ("FLOPs/step",), counted, higher=False),
        number(rows, "peak_memory_mib", ("memory, MiB",), significant, higher=False),
    ]
    made = [column for column in columns if column is not None]
    seeds = max(len(entry.seeds) for entry in verdict.everyone)
    lines = [["", _heading(verdict), *[_title(column) for column in made]], [":-:", ":--", *["--:"] * len(made)]]
    for index, entry in enumerate(verdict.everyone):
        mark = STRUCK if entry.label in verdict.struck else RACING
        lines.append([mark, _names(entry, verdict, seeds), *[_cell(column, index) for column in made]])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _heading(verdict: Verdict) -> str:
    models = {row["model"] for row in (entry.row for entry in verdict.everyone)}
    return f"attention in `{models.pop()}`" if len(models) == 1 < len(verdict.everyone) else "model"


def _names(entry: Entry, verdict: Verdict, seeds: int) -> str:
    name = f"**{text.code(entry.name)}**" if entry is verdict.take else text.code(entry.name)
    twins = f" = {', '.join(map(text.code, entry.twins))}" if entry.twins else ""
    few = f" ({len(entry.seeds)} of {seeds} seeds)" if len(entry.seeds) < seeds else ""
    return name + twins + few


def _title(column: Column) -> str:
    """The title with the unit of its cells, which the cells then leave out."""
    return " ".join(column.title) + max(cell.unit for cell in column.cells)


def _cell(column: Column, index: int) -> str:
    cell = column.cells[index]
    alike = all(each.best for each in column.cells)
    text = f"**{cell.text}**" if cell.best and not alike else cell.text
    return f"{text} ± {cell.half}" if cell.half else text


def details(verdict: Verdict, data: str, home: str) -> str:
    """The command, and the signature of every number, folded away."""
    comparison = verdict.comparison
    sha = sorted({run.data_sha256[:12] for run in comparison.outcomes if run.data_sha256})
    return "\n".join(
        [
            "<details><summary>The command, and a signature for every row</summary>",
            "",
            "```bash",
            verdict.question.shown(data, home),
            "```",
            "",
            f"Test examples: sha256 {', '.join(sha)}. Signatures:",
            "",
            "```text",
            *[str(entry.row["signature"]) for entry in verdict.everyone],
            "```",
            "",
            "</details>",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run or write. 0; 1 if a comparison failed or a folder cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run", help="make the comparisons, or go on with them")
    running.add_argument("--only", choices=[question.name for question in QUESTIONS], help="one of them")
    running.add_argument("--data", default="../shared/data", help="the folder with the data sets")
    running.add_argument("--workers", type=int, help="runs at once, instead of the number in the list")
    verbs.add_parser("write", help="write docs/study.md and its pictures from the folders of the comparisons")
    options = parser.parse_args(arguments)
    if options.verb == "run":
        chosen = [one for one in QUESTIONS if options.only in (None, one.name)]
        return run(chosen, options.data, options.workers)
    try:
        write_page(QUESTIONS, HOME, PAGE)
    except Unreadable as trouble:
        print(f"study: {trouble}", file=sys.stderr)
        return 1
    print(PAGE)
    return 0


def run(questions: list[Question], data: str, workers: int | None = None) -> int:
    """Make the comparisons one after another; their tables go to stdout. The worst exit code of all."""
    codes = []
    for question in questions:
        folder = HOME / question.name
        command = question.command(data, str(folder))
        if workers is not None:
            command += ["--workers", str(workers)]  # the later one counts
        print(f"== {question.name}: {question.asks}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / YARDSTICKS).exists():  # first, so that a comparison that is stopped can be judged, too
            write_yardsticks(folder, question.settings(data))
        codes.append(subprocess.run([sys.executable, "-m", *command], check=False).returncode)
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
