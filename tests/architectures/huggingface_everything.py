"""Every architecture of transformers on `attn_implementation="regard"`.

    python -m tests.architectures.huggingface_everything

Walks the registry of the installed transformers, builds each architecture with random weights, and compares regard
with the model's own eager attention: outputs, batches padded on either side, and for models that write, the tokens of
greedy search, beam search and a static cache. All details go to the file of `--out`; `--record FILE` takes such a file
into bench/recorded/huggingface.json and writes the page beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.architectures.pool import examine_all
from tests.architectures.records import Records, merged, recorded, save, versions
from tests.architectures.worker import library

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "bench" / "recorded" / "huggingface.json"
PAGE = RECORD.with_suffix(".md")
DETAILS = ("trace", "reasons", "rules", "inputs", "seconds_in_all")  # what a record of --out has beside the page's
EXPLAINED = """A model is built small, with random weights and windows of 6, in float32. *Difference* is the largest
difference of any output from that on eager attention, relative to the largest number of that output (at most 1e-5
counts as equal); then the same on a batch padded on the right and on the left, real positions only. *Empty rows*: an
output reads rows of padding that see no key. They are zeros on regard and on sdpa, the mean of all values on eager
attention; with that mean put in their place, every number of every output equals eager attention. The next numbers
are how much the comparison can show, where they were taken: *without attention* is the difference when all attention
returns zeros, *wrong scale* that when scores are 10 % too large, *dense* that of a model that chooses keys when its
queries see all keys instead (inputs are longer than every window, chunk and choice). *Tokens*: greedy search, three
beams, a static cache after a left-padded prompt; – where the model does not write text, or cannot do so on eager
attention either."""
KINDS = (
    ("equal", "Equal to eager attention"),
    ("differs", "Different from eager attention"),
    ("as sdpa", "Different from eager attention, equal to sdpa"),
    ("error", "Fails on regard"),
    ("unstable", "Different, and as different after a change of rounding size"),
    ("blunt", "Equal, but a mistake would not show"),
    ("random", "Random even on eager attention"),
    ("not finite", "NaN on eager attention"),
    ("failed", "The comparison failed on eager attention"),
    ("does not dispatch", "Attention that does not go through the interface"),
    ("no model of its own", "A part of other architectures"),
    ("could not be built", "Could not be built"),
)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="huggingface_everything", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of architectures, joined by commas")
    parser.add_argument("--again", help="only what has one of these statuses by now, joined by commas")
    parser.add_argument("--left", action="store_true", help="only what was never walked")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time for each architecture")
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds, after which the walk ends")
    parser.add_argument("--gigabytes", type=float, default=3.0, help="memory for each process")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs" / "huggingface_everything.json")
    parser.add_argument("--record", type=Path, help="walk nothing: take this file of --out into the record")
    given = parser.parse_args(arguments)
    registry = library("transformers").names()
    if given.record is not None:
        return _record(given.record, registry)
    known = {one["name"]: one["status"] for one in [*recorded(RECORD), *recorded(given.out)]}
    names = registry
    if given.only:
        names = [name for name in given.only.split(",") if name in names]
    if given.left:
        names = [name for name in names if name not in known]
    if given.again:
        names = [name for name in names if known.get(name) in given.again.split(",")]
    found: Records = []

    def told(record: dict[str, Any]) -> None:
        found.append(record)
        save(given.out, merged(given.out, found))
        text = f"[{len(found)}/{len(names)}] {record['name']}: {record['status']} {record.get('reason', '')[:160]}"
        print(text.rstrip(), file=sys.stderr, flush=True)

    if names:
        examine_all("transformers", names, "regard", given.jobs, given.seconds, given.gigabytes, told, given.total)
    print(f"{headline(recorded(given.out))}; {len(names) - len(found)} names of this walk are left")
    return 0


def _record(path: Path, registry: Sequence[str]) -> int:
    """Take the records of a file into the record, and write the page from it."""
    if not path.exists():
        print(f"--record: no file {path}; give the file that a walk wrote to --out", file=sys.stderr)
        return 2
    new = [
        {key: value for key, value in one.items() if key not in DETAILS}
        | ({"reason": one_line(one["reason"])} if "reason" in one else {})
        for one in recorded(path)
    ]
    records = merged(RECORD, new)
    save(RECORD, records)
    PAGE.write_text(page(records, sorted(set(registry) - {one["name"] for one in records})))
    print(headline(records))
    return 0


def headline(records: Records) -> str:
    """How many of how many."""
    dispatching = [one for one in records if one["status"] in ("equal", "differs", "as sdpa", "error")]
    equal = sum(one["status"] == "equal" for one in dispatching)
    text = f"{equal} of {len(dispatching)} architectures that dispatch through the interface equal eager attention"
    writing = [found for one in dispatching for found in one.get("generation", {}).values()]
    ran = [found for found in writing if not found.startswith("eager")]
    same = sum(found in ("equal", "as sdpa") for found in ran)
    return f"{text}; {same} of {len(ran)} generations have the same tokens; {len(records)} names in all"


def page(records: Records, left: Sequence[str] = ()) -> str:
    """The result as Markdown: counts, the compared architectures, the others with their reasons, and what is left."""
    lines = [
        "# Every architecture of transformers on regard",
        "",
        f"Written by `python -m tests.architectures.huggingface_everything --record`{versions(records)}. "
        f"{headline(records)}. "
        f"A wrong scale was tried with {sum('wrong_scale' in one for one in records)} of them.",
        "",
        EXPLAINED,
        "",
        "| architecture | class | calls | difference | right-padded | left-padded | without attention | wrong scale "
        "| dense | tokens |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    compared = [one for one in records if "without_attention" in one]
    lines += [_row(one) for one in compared]
    for status, title in KINDS:
        rest = [one for one in records if one["status"] == status and (status != "equal")]
        if rest:
            lines += ["", f"## {title} ({len(rest)})", ""]
            lines += [f"- {one['name']}: {one_line(one.get('reason', ''))}" for one in rest]
    if left:
        lines += ["", f"## Not walked yet ({len(left)})", "", ", ".join(left)]
    return "\n".join(lines) + "\n"


def _row(record: dict[str, Any]) -> str:
    cells = [record["name"], record["class"], str(record["calls"])]
    for name in ("difference", "right_padded", "left_padded", "without_attention", "wrong_scale", "without_choice"):
        found = record.get(name, "–")
        cells.append(f"{found:.1e}" if isinstance(found, float) else found if "empty rows" in found else "–")
    tokens = [_tokens(found) for found in record["generation"].values()]
    return f"| {' | '.join([*cells, ', '.join(tokens) or '–'])} |"


def _tokens(found: str) -> str:
    return "–" if found.startswith("eager") else one_line(found)


def one_line(text: str) -> str:
    """A reason as the page prints it: one short line without markup."""
    return " ".join(text.split())[:160].replace("|", "/").replace("<", "‹").replace(">", "›")


if __name__ == "__main__":
    sys.exit(main())
