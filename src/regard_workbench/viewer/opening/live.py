"""Another input for models that are open: another text, file or example, without loading them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from regard.errors import BadValue, unknown_name
from regard.observation.causes import measures
from regard.observation.observe import observe
from regard_workbench.training.run_folder.metrics_file import plain
from regard_workbench.viewer.inputs import KINDS, CauseQuestion, NewInput
from regard_workbench.viewer.opening.causes import (
    PAIRS,
    POSSIBLE,
    SINGLE,
    CauseRequest,
    causes_of,
    impossible_causes,
    unrecorded,
)
from regard_workbench.viewer.opening.library_errors import in_words
from regard_workbench.viewer.opening.options import LONGEST_TEXT, MOST_WRITTEN, OpenedModel, ViewOptions
from regard_workbench.viewer.page_model import PageModel, Variant

SHOWN_TEXT = 20_000  # characters of a text that the page offers for changing
MOST_PATCHES = 20_000
EDITED, BEFORE = "edited", "as it was"  # names of the two variants after a token was changed


class Live:
    """Opened models that can read another input."""

    def __init__(
        self,
        made: list[OpenedModel],
        options: ViewOptions,
        assemble: Callable[[list[OpenedModel], ViewOptions, Callable[[str], None]], PageModel],
    ) -> None:
        self.made, self.options, self._assemble = made, options, assemble

    def scene(self) -> dict[str, Any]:
        """What the page may ask for, and what it asked for last."""
        first = self.made[0]
        alone = len(self.made) == 1
        return {
            "takes": list(first.takes),
            "text": first.text[:SHOWN_TEXT],
            "target": self.options.target or "" if first.two_sides else None,
            "writes": first.writer is not None and alone,
            "generate": self.options.generate,
            "mostWritten": MOST_WRITTEN,
            "longest": LONGEST_TEXT,
            "examples": first.examples,
            "causes": self.options.generate is None and alone,
            "says": first.has_logits,
            "places": [list(place) for place in first.places],
            "example": self.options.example,
        }

    def cause(self, given: CauseQuestion, before: PageModel) -> dict[str, Any]:
        """What the answer to the input of `before` comes from, as plain data; `sites` are the page's numbers."""
        opened, observation = self.made[0], before.variants[0].seen
        if self.options.generate is not None:
            raise BadValue("cause: it is about one forward pass. Run the text without writing.")
        if given.by == POSSIBLE:
            return {"impossible": impossible_causes(opened, observation)}
        if given.by not in (*PAIRS, *SINGLE):
            raise unknown_name("by", given.by, (*PAIRS, *SINGLE))
        if given.measure is not None and given.measure not in measures.KINDS:
            raise unknown_name("measure", given.measure, measures.KINDS)
        counterpart = None
        if given.by in PAIRS:
            self._check_sweep(given, observation)
            counterpart = self._seen_of(opened, given.against)
        request = CauseRequest(given.by, position=given.position, positions=given.positions, measure=given.measure)
        causes = causes_of(request, opened, observation, counterpart).to_json()
        numbers = {before.site(0, site).name: site for site in before.sites(0)}
        if given.by == "faithfulness":
            for one_map in causes["maps"]:
                one_map["site"] = numbers.get(one_map["name"])
        elif given.by == "contributions":
            causes["names"], causes["sites"] = causes["sites"], [numbers.get(name) for name in causes["sites"]]
        elif given.by != "inputs":
            causes["sites"] = [_site_of(name, numbers) for name in causes["names"]]
        answer: dict[str, Any] = plain(causes)
        return answer

    def _check_sweep(self, given: CauseQuestion, seen: Any) -> None:
        if not given.against.strip():
            raise BadValue("against: expected another text of as many tokens.")
        shapes = [seen[name].shape(-1) for name in seen.names()]
        positions = max(shape[3] for shape in shapes) if given.positions == "each" else 1
        count = positions * sum(shape[1] if given.by in ("heads", "paths") else 1 for shape in shapes)
        if count > MOST_PATCHES:
            raise BadValue(f"by: this would be {count:,} patches, more than {MOST_PATCHES:,}. Choose fewer.")

    def _seen_of(self, one: OpenedModel, text: str) -> Any:
        """What is seen of the same model on another text; a model that writes reads the same words in both."""
        assert one.reopen is not None
        options = dataclasses.replace(self.options, text=text, example=None, image=None, sound=None, table=None)
        if one.two_sides and options.target is None:
            options = dataclasses.replace(options, target=written_text(one))
        reopened = one.reopen(options)
        with observe(reopened.model) as observation:
            in_words(lambda: unrecorded(reopened), "the model cannot run on this text")
        return observation

    def read(self, given: NewInput, before: PageModel) -> tuple[PageModel, list[str]]:
        """The page model of another input, and notes about it; `before` is the one that the page shows now."""
        self._check(given)
        files: dict[str, Any] = {kind: given.path if kind == given.kind else None for kind in KINDS}
        options = dataclasses.replace(
            self.options,
            text=given.text,
            target=given.target or None,
            generate=given.generate,
            beams=given.beams if given.generate is not None else 1,
            example=given.example,
            gold=None,
            importance=False,
            **files,
        )
        notes: list[str] = []
        page_model = self._assemble([self._reopened(opened, options) for opened in self.made], options, notes.append)
        return (page_model, notes) if not given.edited else _beside(page_model, before, notes)

    def _check(self, given: NewInput) -> None:
        takes = self.made[0].takes
        if given.example is not None and not self.made[0].examples:
            raise BadValue("example: this model has no task with test examples. Give a text or a file.")
        for kind in ("text", given.kind):
            present = given.text is not None if kind == "text" else kind is not None
            if present and kind not in takes:
                reads = ", ".join(takes) or "only examples of its task"
                raise BadValue(f"{kind}: this model does not read it. It reads: {reads}.")

    @staticmethod
    def _reopened(one: OpenedModel, options: ViewOptions) -> OpenedModel:
        assert one.reopen is not None  # else the page model has no `Live`
        opened = one.reopen(options)
        opened.name = one.name if not one.doubt else one.name.rpartition(" (")[0]
        return opened


def _beside(edited: PageModel, before: PageModel, notes: list[str]) -> tuple[PageModel, list[str]]:
    """The edited input and the one before as two variants; the edited one alone where their maps differ in size."""
    if len(edited.variants) > 1:
        return edited, notes
    pair = [_named(edited.variants[0], EDITED), _named(before.variants[0], BEFORE)]
    counts = [{kind: len(texts) for kind, texts in variant.labels.items()} for variant in pair]
    if counts[0] != counts[1]:
        sizes = [next(iter(count.values()), 0) for count in counts]
        notes.append(
            f"The edited input has {sizes[0]} positions, the one before {sizes[1]}: their maps cannot be subtracted."
        )
        return edited, notes
    both = dataclasses.replace(edited, variants=pair)
    return both, notes


def _site_of(name: str, numbers: dict[str, int]) -> int | None:
    """The number of a site, or of the first site inside a layer."""
    inside = (number for site, number in numbers.items() if site == name or site.startswith(f"{name}."))
    return next(inside, None)


def written_text(one: OpenedModel) -> str | None:
    """The text that the model wrote, as its input line says it."""
    _, arrow, written = one.input.rpartition(" → “")
    return written.removesuffix("”") if arrow and written else None


def _named(variant: Variant, name: str) -> Variant:
    return dataclasses.replace(variant, name=name)
