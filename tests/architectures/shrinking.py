"""Small configurations of any Hugging Face architecture, by rules on the names of attributes.

All widths are divided by one number and heads stay as many as they are: whatever holds between widths and heads (a
hidden size is heads times the size of a head, a projection goes from one width to another) then still holds.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

WIDTHS = re.compile(
    r"(hidden|embed|emb|d_model|n_embd|d_embed|dim|dims|size|sizes|channels?|width|ffn|intermediate|n_inner|d_ff|dff|"
    r"d_kv|d_head|d_inner|d_latents|d_rel|rank|units|planes|pos_feats|mrope_section|axes_dims?|features|filters|"
    r"lowrank|inner_dim|state|v_head_dim|attention_channels|out_channel|channel|channel_list|n_mels?)(_|$)"
)
# Sizes that are no widths.
OTHERS = re.compile(
    r"kernel|patch_size|patch_sizes|image_size|img_size|input_size|window|pool_size|roi_size|vocab|chunk|block_size|stride|"
    r"crop|tile|sample|batch|bucket|merge_size|max_|min_|grid|position|spec_size|"
    r"group_size|queue|spatial|temporal|tubelet|reduction|scale|multiplier|_mult|ratio|seq_len|length|num_|n_layer|"
    r"n_head|heads|model_in_dim|mel|_id$|token|codebook_size|expansion|divis|feat_sizes|k_sizes|query_dim|"
    r"pos_dim|bits|fourier|act_dim|state_dim|frame_size|context_size|background|unit_size|hidden_act|state_size|d_state|"
    r"d_conv|conv_kernel_dim|input_dim$|feature_size|resolution|features_only|ngram|bins|depth|embed_positions|"
    r"classes|labels|num_embeddings|shape|block_sizes|out_features|split|cell"
)
LAYERS = re.compile(
    r"(^|_)(num_layers|hidden_layers|n_layers?|layers|num_blocks|depth|num_encoder_blocks|attn_blocks|"
    r"self_attends_per_block|layers_per_stack|num_hidden_groups|n_blocks|repeats)$"
)
NOT_LAYERS = re.compile(
    r"feat_extract|shared_layers|max_|window_layers|max_depth|min_depth|num_conv|max_window|skip|iou_"
)
EXPERTS = re.compile(r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts|num_routed_experts)$")
VOCABULARY = re.compile(r"vocab(_size)?(_base)?$|vocab_size|num_embeds$|hash_buckets$|byte_group_vocab$")
POSITIONS = re.compile(r"(max_position_embeddings|n_positions|max_target_positions)$")
TOKENS = re.compile(r"(token_id|token_ids|token_index|_id|_ids|_index)$")
IMAGES = re.compile(r"(^|_)(image_size|img_size|input_size|pretrain_image_size|crop_size|resolution)$")
PERIODS = re.compile(r"(_period|_interval|_every_n_layers|_sparse_step|sliding_window_pattern|_frequency)$")
OFFSETS = re.compile(r"_offset$")
HEADS = re.compile(r"(heads|n_head|num_heads)(_per_stage|_per_layer)?$")
HEAD_SIZES = re.compile(r"head_dim$|head_size$|d_head$|d_kv$|rope_dim$|kv_channels$|rotary_dim$|mrope_section$")
NEVER = {
    "transformers_version",
    "dtype",
    "torch_dtype",
    "architectures",
    "model_type",
    "id2label",
    "label2id",
    "num_labels",
    "attribute_map",
    "return_dict",
    "problem_type",
    "ignore_keys_at_rope_validation",
}
WORDS = 1000


@dataclass(frozen=True)
class Rules:
    """How much to shrink."""

    divide: int = 8
    layers: int = 2  # 0: as many as there are
    most_layers: int = 64
    experts: int = 16
    images: int = 224  # 0: as they are
    periods: bool = True  # patterns over layers are shortened, so that few layers have all kinds
    positions: int = 0  # 0: as they are
    widths_above: int = 0  # smaller ones stay
    heads: bool = False  # fewer heads of the same size, rather than as many smaller ones
    fill: bool = False  # numbers for what is None by default
    in_place: bool = False  # change a copy of the configuration instead of making one anew


DEEPER = Rules(layers=0, most_layers=12, periods=False)
SETS = (
    Rules(),
    Rules(fill=True),
    Rules(divide=4, heads=True),
    Rules(in_place=True),
    DEEPER,
    Rules(divide=4),
    Rules(divide=16),
    Rules(images=0),
    Rules(layers=0, most_layers=12, periods=False, images=0, divide=4),
    Rules(divide=2, experts=8),
    Rules(divide=1, experts=4),
    Rules(divide=8, widths_above=127),
    Rules(divide=1, layers=0, most_layers=24, periods=False, images=0, experts=4),
)


def small(config: Any, rules: Rules) -> Any:
    """A small configuration of the same class: made anew, so that what a configuration derives is derived again."""
    if not rules.in_place:
        return type(config)(**_changes(config, rules))
    changed = copy.deepcopy(config)
    for name, value in _changes(config, rules).items():
        if value is not None:
            setattr(changed, name, value)
    return changed


def _changes(config: Any, rules: Rules) -> dict[str, Any]:
    given: dict[str, Any] = {}
    raw = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    count = _layers(raw)
    kept = _kept_layers(raw, count, rules)
    for name, value in raw.items():
        if name in NEVER:
            continue
        if value is None:
            given[name] = _missing(name, raw, rules)
        elif hasattr(value, "to_dict") and hasattr(value, "model_type"):
            given[name] = small(value, rules)
        elif isinstance(value, dict) and value and not name.startswith(("rope", "id2", "label2")):
            given[name] = {key: _shrunk(str(key), part, rules) for key, part in value.items()}
        elif isinstance(value, dict) and name.startswith("rope"):
            given[name] = _rope(value, rules)
        elif isinstance(value, (list, tuple)) and count and len(value) == count and kept is not None and count > 4:
            given[name] = type(value)(value[at] for at in kept)
        elif kept is not None and value == count and LAYERS.search(name) and not NOT_LAYERS.search(name):
            given[name] = len(kept)
        else:
            given[name] = _shrunk(name, value, rules)
    if "num_random_blocks" in raw and rules.layers:  # short texts need short blocks
        given["block_size"] = 1
    text = getattr(given.get("text_config"), "hidden_size", None)
    for part in given.values():  # towers end where the text begins; defaults of both need not fit
        if isinstance(text, int) and isinstance(getattr(part, "out_hidden_size", None), int):
            part.out_hidden_size = text
    return given


def _missing(name: str, raw: dict[str, Any], rules: Rules) -> Any:
    """Values for None: placeholder tokens for images in a text, one layer that attends …"""
    if re.search(r"(image|video|audio)_token_(id|index)$", name):
        return WORDS - 1 - sum(map(ord, name)) % 40
    if re.search(r"(attn|attention)_layer_(indices|idx|ids)$|full_attn_idxs$", name):
        return [1]
    if name in ("vocab_size", "prediction_length"):
        return WORDS if name == "vocab_size" else 8
    if name == "pad_token_id" and rules.fill:
        return 0
    if not rules.fill:
        return None
    if name == "head_dim":
        heads, width = raw.get("num_attention_heads"), raw.get("hidden_size")
        return width // heads // rules.divide if isinstance(heads, int) and isinstance(width, int) else None
    if name == "num_key_value_heads":
        return raw.get("num_attention_heads")
    if name in ("sliding_window", "n_shared_experts"):
        return 8 if name == "sliding_window" else 1
    if name == "layer_types":
        return ["full_attention"] * min(_layers(raw), rules.layers or rules.most_layers) or None
    if name.endswith("_map"):
        return {"<image>": WORDS - 9}
    if EXPERTS.search(name) or re.search(r"experts_per_tok(en)?$|top_?k", name):
        return 8 if EXPERTS.search(name) else 2
    if re.search(r"rank$|(^|_)head_dim$|intermediate_size$|(^|_)hidden_size$", name):
        return 16
    return None


def _layers(raw: dict[str, Any]) -> int:
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "depth"):
        if isinstance(raw.get(name), int):
            return int(raw[name])
    return 0


def _kept_layers(raw: dict[str, Any], count: int, rules: Rules) -> list[int] | None:
    """Which layers to keep: one of each kind, at least as many as asked for."""
    lists = [value for value in raw.values() if isinstance(value, (list, tuple)) and len(value) == count]
    lists = [value for value in lists if all(isinstance(one, (str, int)) for one in value)]
    most = rules.layers or rules.most_layers
    if count <= max(4, most) or not lists:
        return None
    kept: list[int] = []
    for column in lists:
        known = {column[at] for at in kept}
        for at, value in enumerate(column):
            if value not in known and len(known) < 4:
                known.add(value)
                kept.append(at)
    kept = sorted(set(kept))
    for at in range(count):
        if len(kept) >= most:
            break
        if at not in kept:
            kept = sorted([*kept, at])
    return kept


def _rope(value: dict[str, Any], rules: Rules) -> dict[str, Any]:
    return {
        key: _rope(part, rules)
        if isinstance(part, dict)
        else [max(1, one // rules.divide) for one in part]
        if key == "mrope_section" and not rules.heads
        else part
        for key, part in value.items()
    }


def _shrunk(name: str, value: Any, rules: Rules) -> Any:
    """One attribute, by its name."""
    if isinstance(value, dict):
        return {key: _shrunk(str(key), part, rules) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            if name in ("depths", "layer_depths", "blocks_per_stage", "stage_num_blocks", "num_block_repeats"):
                return type(value)(min(one, rules.layers) if rules.layers else one for one in value)
            return type(value)(_number(name, one, rules) for one in value)
        if any(isinstance(one, (list, tuple)) for one in value):
            return type(value)(_shrunk(name, one, rules) for one in value)
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return _number(name, value, rules)


def _number(name: str, value: int, rules: Rules) -> int:
    lower = name.lower()
    if rules.heads and HEADS.search(lower):
        return max(1, value // rules.divide)
    if rules.heads and HEAD_SIZES.search(lower):
        return value
    if VOCABULARY.search(lower):
        return min(value, WORDS)
    if TOKENS.search(lower):
        return value if value < WORDS else WORDS - 100 + _place(lower, value) % 99
    if lower == "image_embedding_size" and rules.images:
        return min(value, rules.images // 16)
    if IMAGES.search(lower):
        return value if not rules.images or value <= rules.images else _image(value, rules.images)
    if rules.periods and rules.layers and PERIODS.search(lower) and value > 2:
        return 2
    if rules.periods and rules.layers and OFFSETS.search(lower) and "layer" in lower and value > 1:
        return 1
    if LAYERS.search(lower) and not NOT_LAYERS.search(lower):
        return min(value, rules.layers or rules.most_layers)
    if EXPERTS.search(lower):
        return min(value, rules.experts)
    if rules.layers and lower.endswith("kv_shared_layers"):
        return 0
    if POSITIONS.search(lower):
        return min(value, rules.positions) if rules.positions else value
    width = lower in ("num_pos_feats", "upsample_groups") or (WIDTHS.search(lower) and not OTHERS.search(lower))
    if width and value > 7 and value > rules.widths_above:
        if value % rules.divide == 0:
            return value // rules.divide
        return value if value <= 512 else value // rules.divide // 8 * 8  # small odd sizes are kept
    return value


def _image(value: int, most: int) -> int:
    """A smaller picture that divides into the same patches."""
    for size in range(most, 27, -1):
        if value % size == 0 or size % 32 == value % 32 == 0 or (value % 14 == size % 14 == 0 and value % 16):
            return size
    return value


def _place(name: str, value: int) -> int:
    """A number for a special token; different tokens get different ones."""
    return value % 97 if value % 97 else sum(map(ord, name))
