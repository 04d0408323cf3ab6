"""The table of docs/seeing.md, between its markers, and the list of what was missed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

Records = list[dict[str, Any]]
BEGIN, END = "<!-- sweep:begin -->", "<!-- sweep:end -->"
ATTENDING = ("full", "partial", "nothing", "differs", "wrong weights")
COUNTED = (
    "An architecture has softmax attention if a counter that knows nothing of regard finds some in its forward pass "
    "(`tests/architectures/oracle.py`); it is *full* if regard saw as many calls, all of their weights could be "
    "read and are those the model mixed with, and the output has the same bits."
)


def headline(records: Records) -> str:
    """N of M, for each library and way of attending."""
    lines = []
    for library, way in dict.fromkeys((one["library"], one["attend"]) for one in records):
        of = [one for one in records if (one["library"], one["attend"]) == (library, way)]
        counts = Counter(one["status"] for one in of)
        attending = sum(counts[name] for name in ATTENDING)
        rest = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        share = f", {100 * counts['full'] / attending:.1f} %" if attending else ""
        seen = f"{counts['full']} of {attending} architectures with softmax attention are fully seen{share}"
        lines.append(f"{library} ({way}): {seen}; {len(of)} in all: {rest}")
    return "\n".join(lines)


def rewrite(page: Path, records: Records, versions: str = "") -> None:
    """Put the table between the markers of a page; they are added at its end where they are missing."""
    text = page.read_text()
    table = f"{BEGIN}\n{markdown(records, versions)}\n{END}"
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        page.write_text(before + table + rest.partition(END)[2])
    else:
        page.write_text(f"{text.rstrip()}\n\n## Every architecture\n\n{table}\n")


def markdown(records: Records, versions: str = "") -> str:
    """The counts, then what is not fully seen, then names: seen, without attention, not built."""
    parts = [
        f"Written by `python -m tests.architectures.observe_everything --write`{versions}. {COUNTED}",
        _counts(records),
    ]
    for library, way in dict.fromkeys((one["library"], one["attend"]) for one in records):
        of = [one for one in records if (one["library"], one["attend"]) == (library, way)]
        parts.append(_section(library, way, of))
    return "\n\n".join(parts)


def _counts(records: Records) -> str:
    columns = ("full", "partial", "nothing", "wrong weights", "differs", "no attention", "could not be built")
    lines = ["| library | with softmax attention | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for library, way in dict.fromkeys((one["library"], one["attend"]) for one in records):
        of = [one for one in records if (one["library"], one["attend"]) == (library, way)]
        counts = Counter(one["status"] for one in of)
        counts["could not be built"] += counts["failed"]
        counts["no attention"] += counts["more than the oracle"]
        name = library if way == "default" else f"{library}, {way}"
        cells = [str(counts[column]) for column in columns]
        lines.append(f"| {name} | {sum(counts[one] for one in ATTENDING)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _section(library: str, way: str, records: Records) -> str:
    title = library if way == "default" else f'{library}, attn_implementation="{way}"'
    lines = [f"### {title}", ""]
    short = [one for one in records if one["status"] in ATTENDING and one["status"] != "full"]
    if short:
        lines += ["| not fully seen | seen | of | status | modules not seen |", "|---|---|---|---|---|"]
        lines += [
            f"| {one['name']} | {one['seen']} | {one['oracle']} | {one['status']} | {', '.join(_modules(one))} |"
            for one in short
        ]
        lines.append("")
    for status, words in (("full", "Fully seen"), ("no attention", "No softmax attention")):
        found = [one for one in records if one["status"] == status]
        if found:
            lines += [_folded(f"{words} ({len(found)})", ", ".join(_named(one) for one in found)), ""]
    lost = [one for one in records if one["status"] in ("could not be built", "failed")]
    if lost:
        reasons = "\n".join(f"- {one['name']}: {_one_line(one['reason'])}" for one in lost)
        lines.append(_folded(f"Could not be built ({len(lost)})", reasons))
    return "\n".join(lines).rstrip()


def _named(record: dict[str, Any]) -> str:
    calls = f" {record['seen']}" if record["oracle"] else ""
    return f"{record['name']}{calls}"


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:160].replace("|", "/").replace("<", "‹").replace(">", "›")


def _modules(record: dict[str, Any]) -> list[str]:
    """The classes of the modules that were missed."""
    return list(dict.fromkeys(f"`{one['module']}`" for one in _missed(record)))


def _missed(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in record["oracle_calls"] if one["path"] in record["missed"]]


def missing(records: Records) -> str:
    """For each architecture that is not fully seen: which softmax was missed, its file and line, and its code."""
    lines = ["# What the sweep found not fully seen", "", headline(records), ""]
    for one in records:
        if one["status"] not in ATTENDING or one["status"] == "full":
            continue
        lines.append(
            f"## {one['library']} {one['name']} ({one['class']}, {one['attend']}): {one['status']}, "
            f"{one['seen']} of {one['oracle']}"
        )
        kinds = Counter(
            (
                call["module"],
                call["where"],
                call["op"],
                call["scored_by"],
                call["mixed_by"],
                str(tuple(call["shape"])),
                call["dim"],
            )
            for call in _missed(one)
        )
        for (module, where, op, scored, mixed, shape, dim), count in kinds.items():
            how = f"scores by {scored or op}, mixed by {mixed}"
            lines.append(f"- {count} × {module} at {where}: {op} of {shape} along {dim}; {how}")
        lines += [f"- cannot be read: {text}" for text in one["unreadable"][:3]]
        if one["status"] in ("differs", "wrong weights"):
            lines.append(f"- largest difference of weights {one['largest_difference']}, bits equal: {one['same_bits']}")
        lines.append("")
    return "\n".join(lines)
