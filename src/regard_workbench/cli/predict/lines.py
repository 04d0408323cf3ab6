"""A prediction on the terminal: its text, what it was drawn from as a map or bars, and notes."""

from __future__ import annotations

import sys
from typing import Any

from regard_workbench.cli.common import shades
from regard_workbench.cli.common.console import console
from regard_workbench.cli.common.terminal import printable, visible
from regard_workbench.cli.predict import INPUTS
from regard_workbench.cli.predict.figure import with_null
from regard_workbench.cli.predict.picture import drawn, legend
from regard_workbench.inspection.prediction import Prediction

SHOWN_PIECES = 12  # with the largest weights
BAR = 20  # columns of the longest bar


def show(found: Prediction, first: bool) -> None:
    """Print a prediction, or why there is none; a blank line separates it from the one before."""
    if "error" in found:
        typed = repr(printable(_short(_typed(found))))
        named = typed in found["error"]  # an error of a file names it already
        print(f"regard predict: {'' if named else typed + ': '}{found['error']}", file=sys.stderr)
        return
    if not first:
        print()
    for line in _SHOWN[found["kind"]](found):
        print(line)
    if found["kind"] == "answer" and found["attention"] is None and found["looked_at"] is not None:
        beside = "\n" in found["output"]  # a table, which may be written to a file
        print("\n".join(_bars(found["looked_at"])), file=sys.stderr if beside else sys.stdout)
    for note in found["notes"]:
        print(f"note: {note}.", file=sys.stderr)


def _typed(found: Prediction) -> str:
    """The input as it was typed."""
    if "example" in found:
        return f"example {found['example']}: {found.get('words', '')}".strip(": ")
    typed = [found[name] for name in INPUTS if name in found]
    return " + ".join(text.strip() if isinstance(text, str) else " ".join(text) for text in typed)


def _translation(found: Prediction) -> list[str]:
    unfinished = "" if found["finished"] else "  (cut at the longest length)"
    lines = [f"{printable(_typed(found))}  →  {printable(found['output'])}{unfinished}", ""]
    alignment = found["alignment"]
    if alignment is None:
        return [*lines, f"No picture: {printable(found['no_alignment'])}"]
    if "grid" in alignment:
        return [*lines, *_glances(alignment)]
    weights, columns = with_null(alignment)
    lines += drawn(weights, alignment["rows"], columns, console().width)
    return [
        *lines,
        f"Rows: what was written; columns: what was read. Weights of {alignment['source']}.",
        f"Weights: {legend(weights)}.",
        *_unusual(alignment),
    ]


def _glances(seen: Prediction) -> list[str]:
    """The patch that each written piece looked at most, and its weight: a picture has too many for a map of text."""
    rows = [printable(row) for row in seen["rows"]]
    wide = max(map(len, rows))
    lines = [f"looked at most ({seen['source']}), row and column of the patch:"]
    for row, weights in zip(rows, seen["weights"], strict=True):
        most = max(range(len(weights)), key=weights.__getitem__)
        lines.append(f"  {row:>{wide}}  {seen['columns'][most]}  {weights[most]:.3f}")
    return [*lines, "--figure FILE draws all of it, `regard view` shows each head."]


def _unusual(seen: Prediction) -> list[str]:
    """The written pieces of a translation that are not aligned one to one, by kind."""
    kinds = {kind: words for kind, words in seen.get("not_one_to_one", {}).items() if words}
    unaligned = [f"{kind}: {' '.join(printable(seen['rows'][at]) for at in words)}" for kind, words in kinds.items()]
    if "not_one_to_one" not in seen:
        return []
    return [f"Not aligned one to one: {'; '.join(unaligned)}." if unaligned else "Every piece is aligned one to one."]


def _completion(found: Prediction) -> list[str]:
    lines = [printable(found["whole"])]
    attention = found["attention"]
    if attention is None:
        return lines
    lines += ["", *drawn(attention["weights"], attention["rows"], attention["columns"], console().width)]
    return [*lines, f"Weights of {attention['source']}: {legend(attention['weights'])}."]


def _filled(found: Prediction) -> list[str]:
    lines = [printable(found["output"])]
    for number, guesses in enumerate(found["guesses"], 1):
        options = ", ".join(f"{printable(guess['piece'])!r} {guess['probability']:.2g}" for guess in guesses)
        lines.append(f"blank {number}: {options}")
    return lines


def _class(found: Prediction) -> list[str]:
    ranked = sorted(found["probabilities"].items(), key=lambda pair: -pair[1])
    odds = ", ".join(f"{printable(name)} {value:.3f}" for name, value in ranked[:SHOWN_PIECES])
    lines = [f"{printable(_short(_typed(found)))}  →  {printable(found['output'])}", f"probabilities: {odds}"]
    looked_at = found["looked_at"]
    return [*lines, *(_readings(looked_at) if "readings" in looked_at else _bars(looked_at))]


def _bars(seen: dict[str, Any]) -> list[str]:
    """The positions with the largest weights, without those that were not looked at."""
    seen_at = [piece for piece in seen["pieces"] if piece["weight"] > 0]
    pieces = sorted(seen_at, key=lambda one: -one["weight"])[:SHOWN_PIECES]
    lines = [f"looked at ({seen['source']}):"]
    largest = max((piece["weight"] for piece in pieces), default=0.0)
    for piece in pieces:
        bar = "█" * round(BAR * piece["weight"] / largest) if largest > 0 else ""
        lines.append(f"  {piece['weight']:.3f} {bar:{BAR}} {_piece(piece)}")
    return lines


def _readings(seen: Prediction) -> list[str]:
    """A column of weights for each reading; in the order of the input, without what was hardly looked at."""
    columns = list(zip(*seen["readings"], strict=True))
    strongest = [max(weights) for weights in columns]
    least = sorted(strongest, reverse=True)[min(SHOWN_PIECES, len(strongest)) - 1]
    lines = [f"looked at ({seen['source']}, one column each):"]
    for piece, weights, largest in zip(seen["pieces"], columns, strongest, strict=True):
        if largest >= least:
            lines.append(f"  {'  '.join(f'{weight:.3f}' for weight in weights)}  {_piece(piece)}")
    return lines


def _piece(one: Prediction) -> str:
    """A piece of the input, marked where the run does not know it."""
    return "".join(visible(letter) for letter in _short(one["piece"])) + ("" if one["known"] else " (unknown)")


def _answer(found: Prediction) -> list[str]:
    lines = [printable(line) for line in found["output"].split("\n")]
    if len(lines) > 1:  # a table stands alone, so that it can be written to a file
        return lines
    lines = [f"{printable(_short(_typed(found)))}  →  {lines[0]}"]
    if found["picture"] is not None:
        return [*lines, *_in_characters(found["picture"])]
    attention = found["attention"]
    if attention is None:
        return lines
    if attention["grid"] is not None:
        return [*lines, f"{attention['source']}: --figure FILE draws it, `regard view` shows each head."]
    lines += ["", *drawn(attention["weights"], attention["rows"], attention["columns"], console().width)]
    return [*lines, f"Weights of {attention['source']}: {legend(attention['weights'])}."]


def _in_characters(picture: list[list[float]]) -> list[str]:
    """A picture that was made, where the terminal is wide enough."""
    lines = shades.drawn(picture)
    fits = len(lines[1]) <= console().width
    hint = "--figure FILE draws it, and where its places looked."
    return [*(lines if fits else ["The terminal is too narrow for this picture."]), hint]


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[:most] + "…"


_SHOWN = {"translation": _translation, "completion": _completion, "filled": _filled, "class": _class, "answer": _answer}
