"""The page model: one or more variants of a model or an input, each with what was seen of it.

>>> # with regard.observe(model) as seen: model(x)
>>> # page_model = PageModel("my model", [Variant("as trained", seen, {"tokens": ["the", "cat"]})])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regard.errors import BadType, BadValue, RegardError
from regard_workbench.viewer.locking import LockedSeen, LockedSite
from regard_workbench.viewer.page_sites import PageSite, labels_for, main_kind, page_sites
from regard_workbench.viewer.pairing import paired

if TYPE_CHECKING:
    from regard_workbench.viewer.opening.live import Live

TILE, THUMB = 256, 48
MOST_EXAMPLES = 16  # of a batch
LONGEST_LABEL = 200  # letters of one token that travel to the page


@dataclass(frozen=True)
class Variant:
    """A model on an input, and what was seen when it ran."""

    name: str
    seen: Any  # regard.observation.Seen
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)  # labels of positions by kind
    words: str = ""
    step: int | None = None  # training step, for checkpoints
    ids: Any = None  # token ids (n,) of the labels "tokens", if known; for patterns of repeated tokens
    importance: Mapping[tuple[str, int], float] = field(default_factory=dict)  # by (site, head), from ablation
    answer: Mapping[str, Any] | None = None  # "text" with its probability, and "others" as [label, probability]
    example: int = 0  # which example of a batch


@dataclass
class PageModel:
    """Everything a page can request."""

    title: str
    variants: Sequence[Variant]
    words: str = ""
    two_sides: bool = False  # whether one sequence is read (tokens) and another written (targets)
    image: dict[str, Any] | None = None
    generation: dict[str, Any] | None = None
    alignment: dict[str, Any] | None = None
    timeline: dict[str, Any] | None = None
    warning: str = ""  # why the weights shown are not the model's own; shown on the page and in every saved picture

    bits: dict[str, Any] | None = None  # of a task of bits: "input" and "output" of each step, from 0 to 1
    live: Live | None = None  # how the same model reads another input
    input: dict[str, Any] | None = None  # what the page may ask for; set by the server, which numbers the inputs

    def __post_init__(self) -> None:
        if not self.variants:
            raise BadValue("variants: expected at least one, got none.")
        self._seen = [LockedSeen(variant.seen, variant.example) for variant in self.variants]
        first = self.variants[0]
        if not self._seen[0].names():
            raise BadValue(f"seen: {_why_nothing(first.seen)}")
        pairs = zip(self._seen, self.variants, strict=True)
        rows = paired([page_sites(observation, variant.labels, self.two_sides) for observation, variant in pairs])
        self.page_sites: list[PageSite] = [row.page_site for row in rows]
        self._names = [row.names for row in rows]  # of each site, by variant
        if self.generation is not None:
            self._set_first_keys()

    def _set_first_keys(self) -> None:
        """Shift the keys of steps whose cache has dropped old keys, so that columns are positions."""
        for observation in self._seen:
            for page_site in self.page_sites:
                if page_site.rows == page_site.columns and page_site.name in observation:
                    site = observation[page_site.name]
                    sizes = [site.shape(call)[2:] for call in range(site.calls)]
                    ends = itertools.accumulate(queries for queries, _ in sizes)
                    observation.set_first_keys(
                        page_site.name, [max(0, end - keys) for end, (_, keys) in zip(ends, sizes, strict=True)]
                    )

    @property
    def main(self) -> str:
        """The kind of positions the model reads."""
        return main_kind(self.variants[0].labels)

    def seen(self, variant: int) -> LockedSeen:
        """The `Seen` of a variant, safe for threads."""
        return self._seen[variant]

    def site(self, variant: int, site: int) -> LockedSite:
        """A site of a variant."""
        name = self._names[site].get(variant)
        if name is not None:
            return self._seen[variant][name]
        shared = [
            page_site.label for page_site, names in zip(self.page_sites, self._names, strict=True) if variant in names
        ]
        raise BadValue(
            f"site: {self.variants[variant].name} has no {self.page_sites[site].label}. It has {_listed(shared)}."
        )

    def sites(self, variant: int) -> list[int]:
        """The numbers of the sites a variant has."""
        return [number for number, names in enumerate(self._names) if variant in names]

    def heads(self, site: int) -> list[int]:
        """How many heads each variant has at a site; 0 where it lacks the site."""
        return [
            int(self.site(variant, site).shape(0)[1]) if variant in self._names[site] else 0
            for variant in range(len(self.variants))
        ]

    def memory(self) -> dict[str, list[int]] | None:
        """Which sites hold the write and the read weights of a memory of slots, step by step."""
        slots = [
            n
            for n, page_site in enumerate(self.page_sites)
            if page_site.group == "memory" and page_site.columns == "slots"
        ]
        writes = [n for n in slots if self.page_sites[n].label.startswith("write")]
        return {"write": writes, "read": [n for n in slots if n not in writes]} if writes else None

    def scene(self) -> dict[str, Any]:
        """The scene as the page reads it: plain JSON data, every text cut to a maximum length."""
        first = self.variants[0]
        kinds: dict[str, int] = {}
        sites = []
        for number, page_site in enumerate(self.page_sites):
            owner = min(self._names[number])
            site = self.site(owner, number)
            labels = self.variants[owner].labels
            calls = _calls(site, len(labels.get(page_site.rows, ())), self.generation is not None)
            for kind, size in ((page_site.rows, "queries"), (page_site.columns, "keys")):
                kinds[kind] = max(kinds.get(kind, 0), *(call[size] for call in calls))
            heads = self.heads(number)
            names = [self._names[number].get(variant) for variant in range(len(self.variants))]
            sites.append(
                {**page_site.described(site), "heads": max(heads), "headsOf": heads, "namesOf": names, "calls": calls}
            )
        return {
            "title": shortened(self.title),
            "start": self._start(),
            "words": shortened(self.words, 400),
            "warning": shortened(self.warning, 600),
            "variants": [self._variant(number) for number in range(len(self.variants))],
            "sites": sites,
            "tokens": _all_labels(kinds, first.labels, self.main),
            "image": self.image,
            "generation": self.generation,
            "alignment": self.alignment,
            "memory": self.memory(),
            "bits": self.bits,
            "timeline": self.timeline,
            "input": self.input,
            "limits": {"tile": TILE, "thumb": THUMB, "sampled": True},
            "embedded": False,
        }

    def _start(self) -> str | None:
        """The view to open first; None: the default."""
        examples = {variant.example for variant in self.variants}  # examples of one batch are not compared first
        offers = (
            ("steps", self.generation),
            ("timeline", self.timeline),
            ("compare", len(examples) < len(self.variants)),
            ("image", self.image),
            ("alignment", self.alignment),
            ("memory", self.memory()),
            ("graph", self.main == "nodes"),
        )
        return next((name for name, offered in offers if offered), None)

    def _variant(self, number: int) -> dict[str, Any]:
        variant, first = self.variants[number], self.variants[0]
        summary: dict[str, Any] = {
            "name": shortened(variant.name),
            "words": shortened(variant.words, 400),
            "step": variant.step,
            "answer": variant.answer,
        }
        if number and variant.labels != first.labels:  # another input, or another tokenizer
            counts = {kind: len(texts) for kind, texts in variant.labels.items()}
            summary["tokens"] = _all_labels(counts, variant.labels, self.main)
        return summary


def page_model_of(seen_or_model: Any, tokens: Any = None, title: str | None = None) -> PageModel:
    """A page model from a `Seen` with labels for its tokens, or the page model itself.

    tokens: a list of labels of the positions, or lists by kind:
        {"tokens": […], "targets": […]} where a model reads one sequence and writes another. Of a batch: a list of
        such lists, one for each example; without tokens every example is shown by numbers.
    """
    if isinstance(seen_or_model, PageModel):
        if tokens is not None:
            raise BadValue("tokens: the page model has labels already. Leave tokens out.")
        return seen_or_model
    if not callable(getattr(seen_or_model, "names", None)):
        raise BadType(
            f"seen: expected the `seen` of `with regard.observe(model) as seen:`, got {type(seen_or_model).__name__}."
        )
    examples = _examples(seen_or_model, tokens)
    model = getattr(seen_or_model, "model", None)
    name = title or (type(model).__name__ if model is not None else "Attention")
    variants = [
        Variant(name if len(examples) == 1 else f"example {number}", seen_or_model, labels, example=number)
        for number, labels in enumerate(examples)
    ]
    return PageModel(name, variants, two_sides="targets" in examples[0])


def _examples(seen: Any, tokens: Any) -> list[dict[str, list[str]]]:
    """The labels of each example to show; of a batch at most `MOST_EXAMPLES`."""
    batch = min((seen[name].shape(-1)[0] for name in seen.names() if seen[name].calls), default=1)
    nested = isinstance(tokens, Sequence) and not isinstance(tokens, str) and bool(tokens)
    if nested and all(isinstance(example, Mapping) or _is_list(example) for example in tokens):
        if len(tokens) > batch:
            raise BadValue(f"tokens: expected lists for {batch} examples, got {len(tokens)}.")
        return [_given_labels(example) for example in tokens[:MOST_EXAMPLES]]
    if tokens is not None:
        return [_given_labels(tokens)]
    return [{} for _ in range(max(1, min(batch, MOST_EXAMPLES)))]


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str)


def shortened(text: str, most: int = LONGEST_LABEL) -> str:
    """Text without lone surrogates, cut to a maximum length."""
    clean = str(text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def finite(value: Any) -> float | None:
    """A number JSON can hold; None for NaN and infinities."""
    number = float(value)
    return number if math.isfinite(number) else None


def _why_nothing(seen: Any) -> str:
    """Why no site of a `Seen` can be shown."""
    for name in seen.names():
        try:
            seen[name].weights(rows=[0])
        except RegardError as why:
            return f"{name} cannot be shown: {why}"
    return (
        "nothing was observed. Run the model inside `with regard.observe(model) as seen:`; if it did run, it uses no "
        "attention that regard recognises."
    )


def _listed(labels: Sequence[str], most: int = 8) -> str:
    """Labels as a list in a sentence, shortened where there are many."""
    shown = ", ".join(labels[:most])
    return f"{shown}, …, {labels[-1]}" if len(labels) > most else shown


def _given_labels(tokens: Any) -> dict[str, list[str]]:
    if tokens is None:
        return {}
    lists = tokens if isinstance(tokens, Mapping) else {"tokens": tokens}
    if any(isinstance(texts, str) or not isinstance(texts, Sequence) for texts in lists.values()):
        raise BadType("tokens: expected a list of texts, one for each position, or such lists by kind.")
    return {str(kind): [str(text) for text in texts] for kind, texts in lists.items()}


def _all_labels(counts: Mapping[str, int], labels: Mapping[str, Sequence[str]], main: str) -> dict[str, list[str]]:
    texts_by_kind = {kind: [shortened(text) for text in texts] for kind, texts in labels.items()}
    for kind, count in counts.items():
        kind_texts = texts_by_kind.get(kind, [])
        if kind == "memory":  # the slots, then the positions
            positions = texts_by_kind.get(main, [])[:count]
            kind_texts = [*labels_for("slots", count - len(positions), []), *positions]
        texts_by_kind[kind] = labels_for(kind, max(count, len(kind_texts)), kind_texts)
    return texts_by_kind


def _calls(site: Any, positions: int, decoding: bool) -> list[dict[str, int]]:
    """The sizes of each call. Where calls continue each other (decoding, or segments of one sequence), the queries of a
    call start after those of the calls before it.
    """
    sizes = [site.shape(call) for call in range(site.calls)]
    continued = decoding or (len(sizes) > 1 and sum(size[2] for size in sizes) == positions)
    calls: list[dict[str, int]] = []
    start = 0
    for _, _, queries, keys in sizes:
        calls.append({"queries": int(queries), "keys": int(keys), "start": start})
        if continued:
            start += int(queries)
    return calls
