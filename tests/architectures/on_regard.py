"""One architecture on `attn_implementation="regard"`, against its own eager attention: outputs, padding, generation."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.interop import huggingface
from tests.architectures.building import NotBuilt
from tests.architectures.changed_attention import (
    MISTAKE,
    called_with,
    counted_calls,
    empty_rows_of_eager,
    replaced_output,
    without_choices,
    wrong_scale,
)
from tests.architectures.observation import run

CLOSE = 1e-5  # the largest difference of an output, relative to its largest number
SHOWN = 100 * CLOSE  # what a mistake has to change for a comparison to say anything about it
GAINS = (1.0, 3.0, 9.0)  # of the weights: the first at which a wrong scale shows
PADDED = 5  # positions of padding in the second example
NEW_TOKENS = 7
WINDOW = 6


@torch.no_grad()
def count(model: Any, given: dict[str, Any]) -> int:
    """Calls of regard's attention function in a pass; 1 where the pass fails on regard, which `look` then reports."""
    try:
        with _on(model, "regard"), counted_calls() as calls:
            run(model, given)
    except Exception:
        return 1
    return len(calls)


@torch.no_grad()
def look(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Run a model on eager attention and on regard; returns a record of plain data."""
    _narrow(model)
    shown = _sharpened(model, given)
    expected, again = _outputs(model, given, "eager"), _outputs(model, given, "eager")
    with counted_calls() as calls:
        try:
            found = _outputs(model, given, "regard")
        except Exception as error:
            return {"calls": len(calls), "status": "error", "reason": _named(error)}
    record: dict[str, Any] = {"calls": len(calls)}
    if not calls:
        return record | {"status": "does not dispatch", "reason": "no attention goes through the interface"}
    if not all(bool(one.isfinite().any()) for one in expected.values()):
        return record | {"status": "not finite", "reason": "on eager attention an output is NaN everywhere"}
    if _apart(expected, again) > CLOSE:
        return record | {"status": "random", "reason": "two passes on eager attention differ"}
    record["difference"] = _apart(expected, found)
    if record["difference"] > CLOSE:
        nudged = 0.0
        for _ in range(5):
            with replaced_output(lambda output: output * (1 + 1e-6 * torch.randn_like(output))):
                again = _outputs(model, given, "regard", seed=None)
            nudged = max(nudged, _apart(found, again))
        if nudged > CLOSE:
            reason = f"changes of 1e-6 in the output of attention change an output by {nudged:.0e} (routing, choices)"
            return record | {"status": "unstable", "reason": f"differs by {record['difference']:.0e}; {reason}"}
        reason = _slip_of_eager(model, given, expected)
        if reason is not None and _apart(_outputs(model, given, "sdpa"), found) <= CLOSE:
            return record | {"status": "as sdpa", "reason": f"differs by {record['difference']:.0e}; {reason}"}
    with replaced_output(torch.zeros_like):
        record["without_attention"] = _apart(expected, _outputs(model, given, "regard"))
    record["wrong_scale"] = shown
    with without_choices() as choices:
        dense = _outputs(model, given, "regard")
    if choices:
        record["without_choice"] = _apart(expected, dense)
    for side in ("right", "left"):
        record |= {f"{side}_padded": _padded(model, given, side)}
    record["generation"] = _generation(model)
    return record | _judged(record)


def _judged(record: dict[str, Any]) -> dict[str, Any]:
    """The status of a record, and what is wrong."""
    wrong = [
        f"{name}: {found:.1e}" if isinstance(found, float) else f"{name}: {found}"
        for name in ("difference", "right_padded", "left_padded")
        if (isinstance(found := record[name], float) and not found <= CLOSE) or str(found).startswith("regard")
    ]
    for way, found in record["generation"].items():
        if found not in ("equal", "as sdpa") and not found.startswith("eager"):
            wrong.append(f"{way}: {found}")
    if wrong:
        return {"status": "differs", "reason": "; ".join(wrong)}
    mistakes = {"wrong_scale": f"a scale times {MISTAKE}", "without_choice": "seeing every key"}
    unseen = [words for name, words in mistakes.items() if record.get(name, 1.0) <= SHOWN]
    if unseen:
        return {"status": "blunt", "reason": f"{' and '.join(unseen)} changes nothing that is compared"}
    return {"status": "equal"}


@contextlib.contextmanager
def _on(model: Any, name: str) -> Iterator[None]:
    huggingface.register()
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _slip_of_eager(model: Any, given: dict[str, Any], expected: dict[str, Tensor]) -> str | None:
    """What eager attention does wrong: that which makes regard equal to it when regard does it too. None: neither."""

    def without_causality(mask: Any, query: Tensor) -> tuple[Any, dict[str, Any]]:
        return mask, {"is_causal": False} if mask is None else {}

    def with_added_truth(mask: Any, query: Tensor) -> tuple[Any, dict[str, Any]]:
        return mask.to(query.dtype) if mask is not None and mask.dtype == torch.bool else mask, {}

    slips = {
        "eager attention drops the causality of a layer without a mask": without_causality,
        "eager attention adds a boolean mask to the scores, as 0 and 1": with_added_truth,
    }
    for reason, change in slips.items():
        # Inside `_on`, which registers regard anew, so that the change is made afterwards.
        with _on(model, "regard"), called_with(change):
            found = dict(_tensors(run(model, given, 3), "output"))
        if _apart(expected, found) <= CLOSE:
            return reason
    return None


SIZES = {
    "sliding_window": WINDOW,
    "attention_chunk_size": WINDOW,
    "index_topk": WINDOW,
    "keep_window_size": WINDOW,
    "index_block_size": WINDOW // 2,
    "index_topk_blocks": 2,
    "topk_blocks": 2,
}


def _narrow(model: Any) -> None:
    """Windows, chunks and choices of keys that are shorter than the inputs: else they would hide nothing."""
    for module in model.modules():
        blocks = {"block_size": WINDOW // 2} if hasattr(module, "topk_blocks") else {}
        for place, sizes in ((module, {**SIZES, **blocks}), (getattr(module, "config", None), SIZES)):
            for name, most in sizes.items():
                size = getattr(place, "__dict__", {}).get(name)
                if isinstance(size, int) and size > most:
                    setattr(place, name, most)


def _sharpened(model: Any, given: dict[str, Any]) -> float:
    """Give a model weights under which a wrong scale shows; returns how much it changes the outputs."""
    shown = 0.0
    for gain in GAINS:
        _sharpen(model, given, gain)
        expected = _outputs(model, given, "eager")
        try:
            with wrong_scale():
                shown = _apart(expected, _outputs(model, given, "regard"))
        except Exception:  # a model that fails on regard, which the comparison reports
            break
        if shown > SHOWN:
            break
    return shown


def _sharpen(model: Any, given: dict[str, Any], gain: float = 1.0) -> None:
    """Larger weights than those of a fresh model, under which attention would be nearly uniform."""
    from transformers.pytorch_utils import Conv1D

    before = copy.deepcopy(model.state_dict())
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, (nn.Linear, Conv1D)) and module.weight.is_floating_point():
            size = module.weight.shape[0 if isinstance(module, Conv1D) else 1]
            module.weight.normal_(0.0, gain * max(size, 1) ** -0.5, generator=generator)
    if not all(bool(one.isfinite().all()) for one in _outputs(model, given, "eager").values()):
        model.load_state_dict(before)


def _outputs(model: Any, given: dict[str, Any], name: str, seed: int | None = 3) -> dict[str, Tensor]:
    """The floating-point outputs of a pass by name, without caches."""
    with _on(model, name):
        found = run(model, given, seed)
    tensors = dict(_tensors(found, "output"))
    if not tensors:
        raise NotBuilt(["forward: no floating-point output"])
    return tensors


def _tensors(found: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(found, Tensor):
        if found.is_floating_point():
            yield name, found
    elif hasattr(found, "items"):
        for key, part in found.items():
            if key != "past_key_values":
                yield from _tensors(part, f"{name}.{key}")
    elif isinstance(found, (list, tuple)):
        for at, part in enumerate(found):
            yield from _tensors(part, f"{name}.{at}")


def _apart(expected: dict[str, Tensor], found: dict[str, Tensor], real: Tensor | None = None) -> float:
    """The largest difference of an output, relative to its largest number; of the positions that are `real` (b,n)."""
    worst = 0.0
    for name, mine in expected.items():
        if "attentions" in name:  # eager attention returns weights to models that did not ask
            continue
        theirs = found[name]
        if real is not None and mine.shape[:2] == real.shape:
            mine, theirs = mine[real], theirs[real]
        elif real is not None and real.shape[1] in mine.shape[1:]:
            continue  # an output with positions elsewhere, such as weights
        if not mine.numel():
            continue
        finite = mine.isfinite()
        if not torch.equal(mine[~finite].isnan(), theirs[~finite].isnan()) or not theirs[finite].isfinite().all():
            return float("inf")
        if finite.any():
            apart = (mine - theirs)[finite].abs().max() / mine[finite].abs().max().clamp(min=1e-12)
            worst = max(worst, float(apart))
    return worst


def _padded(model: Any, given: dict[str, Any], side: str) -> float | str:
    """The difference on a batch whose second example is padded on one side; text where there is none."""
    ids = given.get("input_ids")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or len(ids) < 2 or ids.shape[1] < 2 * PADDED:
        return "no text"
    if "attention_mask" not in inspect.signature(model.forward).parameters:
        return "takes no attention_mask"
    mask = torch.ones_like(ids)
    mask[1, slice(-PADDED, None) if side == "right" else slice(0, PADDED)] = 0
    try:
        expected = _outputs(model, {**given, "attention_mask": mask}, "eager")
    except Exception as error:
        return f"eager: {_named(error)}"
    try:
        found = _outputs(model, {**given, "attention_mask": mask}, "regard")
    except Exception as error:
        return f"regard: {_named(error)}"
    apart = _apart(expected, found, mask.bool())
    if apart > CLOSE:
        # An output that reads rows of padding, or has other positions than the mask: is it only the empty rows?
        with empty_rows_of_eager():
            found = _outputs(model, {**given, "attention_mask": mask}, "regard")
        if _apart(expected, found) <= CLOSE:
            return f"{apart:.1e}, empty rows"
    return apart


def _generation(model: Any) -> dict[str, str]:
    """For each way to generate: equal, or what happened instead."""
    writer = _writer(model)
    if writer is None:
        return {}
    ways: dict[str, dict[str, Any]] = {
        "greedy": {},
        "beams": {"num_beams": 3},
        "static": {"cache_implementation": "static"},
    }
    return {name: _written(writer, options) for name, options in ways.items()}


def _writer(model: Any) -> Any:
    """A model of the same configuration that generates text; None where there is none."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    for table in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES):
        name = table.get(model.config.model_type)
        kind = getattr(transformers, name, None) if isinstance(name, str) else None
        if kind is None or "input_ids" not in inspect.signature(kind.forward).parameters:
            continue
        config = copy.deepcopy(model.config)
        if hasattr(config, "is_decoder") and not config.is_encoder_decoder:
            config.is_decoder = True
        try:
            torch.manual_seed(7)
            writer = kind._from_config(config, attn_implementation="eager").float().eval()
            text = {"input_ids": torch.arange(11)[None] + 3}
            _sharpen(writer, text | ({"decoder_input_ids": text["input_ids"]} if config.is_encoder_decoder else {}))
        except Exception:
            continue
        return writer if writer.can_generate() else None
    return None


def _written(writer: Any, options: dict[str, Any]) -> str:
    """Whether eager attention and regard write the same tokens after a left-padded prompt."""
    size = getattr(writer.config.get_text_config(), "vocab_size", 100)
    ids = torch.randint(3, max(4, min(size, 90)), (2, 11), generator=torch.Generator().manual_seed(9))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    if writer.config.is_encoder_decoder:
        mask = mask.flip(1)
    settings = {
        "max_new_tokens": NEW_TOKENS,
        "min_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "pad_token_id": 0,
        "eos_token_id": min(size - 1, 95),
        "decoder_start_token_id": 1,
        "bos_token_id": 1,
    }
    found = {}
    for name in ("eager", "regard", "sdpa"):
        if name == "sdpa" and _same_tokens(found["eager"], found["regard"]):
            return "equal"
        try:
            with _on(writer, name):
                torch.manual_seed(0)
                found[name] = writer.generate(ids, attention_mask=mask, **settings, **options)
        except Exception as error:
            if name != "sdpa":
                return f"{name}: {_named(error)}"
    if "sdpa" in found and _same_tokens(found["sdpa"], found["regard"]):
        return "as sdpa"  # a model that reads rows of padding
    return f"{int((found['eager'] != found['regard']).sum())} tokens differ"


def _same_tokens(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
