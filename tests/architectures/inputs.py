"""Inputs for any model, from the signature of its forward pass, its configuration and its error messages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

KINDS = ("input_ids", "pixel_values", "input_features", "input_values", "pixel_values_videos")
NEVER = ("labels", "return_dict", "use_cache", "output_attentions", "output_hidden_states", "kwargs", "args", "self")


class Maker:
    """Makes inputs by name; sizes come from the configuration. `variant` chooses among possible shapes."""

    def __init__(self, config: Any, length: int = 17, variant: int = 0, names: Collection[str] = ()) -> None:
        self.config, self.length, self.variant = config, length, variant
        self.names = names  # names of all parameters of the forward pass
        self.batch = 2
        self.frames = length  # of a spectrogram

    @property
    def packed(self) -> bool:
        """Whether images are given as rows of patches with separate heights and widths."""
        return (
            any(re.search(r"grid_t?hw$|spatial_shapes$|pixel_position_ids$", name) for name in self.names)
            and self.variant % 2 == 0
        )

    def find(self, *names: str, default: int) -> int:
        """The first of some attributes, in the configuration or in a part of it."""
        for config in self._parts(self.config):
            for name in names:
                value = getattr(config, name, None)
                if isinstance(value, dict):
                    value = value.get("height") or value.get("shortest_edge")
                if isinstance(value, (list, tuple)) and value and all(isinstance(one, int) for one in value):
                    value = value[0] if len(value) < 3 else value[-1]
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return default

    def _parts(self, config: Any) -> list[Any]:
        parts = [config]
        for name in ("vision_config", "audio_config", "text_config", "backbone_config", "vision_tower_config"):
            parts += [part] if (part := getattr(config, name, None)) is not None and not isinstance(part, dict) else []
        for value in list(vars(config).values()):
            if hasattr(value, "to_dict") and value not in parts:
                parts += self._parts(value)
        return parts

    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of a picture."""
        channels = self.find("num_channels", "in_channels", "in_chans", "input_channels", default=3)
        if channels > 16:
            channels = 3
        size = self.find("image_size", "img_size", "input_size", "crop_size", "resolution", default=0)
        size = size or self.find("pretrain_image_size", default=224)
        own = getattr(self.config, "image_size", None)
        if isinstance(own, (list, tuple)) and len(own) == 2 and self.variant % 5 == 0:
            return channels, own[0], own[1]
        size = (size, 224, 256, 64, 512)[self.variant % 5]
        return channels, size, size

    def ids(self, length: int | None = None) -> Tensor:
        """Token ids without special tokens, ending with the end of the text."""
        words = self.find("vocab_size", "text_vocab_size", "src_vocab_size", "input_vocab_size", default=1000)
        shape: tuple[int, ...] = (self.batch, length or self.length)
        if self.variant == 2 and (books := self.find("num_codebooks", "n_codebooks", "num_channels", default=0)) > 3:
            shape = (*shape, books)  # one id of each codebook
        ids = torch.randint(min(5, words - 1), max(6, min(words, 800)), shape)
        end = getattr(self.config, "eos_token_id", None)
        if isinstance(end, int) and 0 <= end < words:
            ids[:, -1] = end
        return ids

    def make(self, name: str) -> Any:
        """An input of this name; None where no rule knows the name."""
        for pattern, maker in RULES:
            if re.search(pattern, name):
                return maker(self, name)
        return None

    def width_of_text(self) -> int:
        """The width of the embeddings of tokens."""
        text = getattr(self.config, "text_config", None)
        return (Maker(text) if hasattr(text, "to_dict") else self).width()

    def width(self) -> int:
        """The width of hidden states."""
        return self.find("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim", default=64)


def _picture(maker: Maker, name: str) -> Tensor:
    if maker.packed:
        return _patches(maker, name)
    if maker.variant == 1 and any(one in maker.names for one in ("pixel_attention_mask", "image_sizes")):
        return torch.randn(maker.batch, 1, *maker.image())
    return torch.randn(maker.batch, *maker.image())


def _video(maker: Maker, name: str) -> Tensor:
    frames = maker.find("num_frames", "frames", "frames_per_clip", default=2)
    return torch.randn(maker.batch, min(frames, 64), *maker.image())


def _mel(maker: Maker, name: str) -> Tensor:
    bins = maker.find(
        "num_mel_bins",
        "n_mels",
        "num_mel_features",
        "mel_bins",
        "input_feat_size",
        "input_feat_per_channel",
        "feature_size",
        "input_dim",
        "input_size",
        "feature_projection_input_dim",
        "model_in_dim",
        "mel_dim",
        default=80,
    )
    frames = 2 * maker.find("max_source_positions", "n_window", "max_length", default=64)
    shapes = [
        (maker.batch, bins, frames),
        (maker.batch, 96, bins),
        (maker.batch, 1, frames, bins),
        (bins, 96),
        (maker.batch, bins, 200),
        (maker.batch, 1, bins, 256),
        (maker.batch, maker.find("max_length", default=96), bins),
    ]
    shape = shapes[maker.variant % len(shapes)]
    maker.frames = next((size for size in reversed(shape) if size != bins), maker.length)
    return torch.randn(shape)


def _wave(maker: Maker, name: str) -> Tensor:
    bins = maker.find("num_mel_bins", default=0)
    frame = maker.find("frame_size", default=0)
    samples = 4 * frame if 1 < frame < 8000 else 4000
    spectrogram = (maker.batch, maker.find("max_length", default=96), bins or 80)
    shapes = [
        (maker.batch, samples),
        (maker.batch, 1, samples),
        spectrogram,
        (maker.batch, 2, samples),
        (maker.batch, 32000),
    ]
    return torch.randn(shapes[maker.variant % len(shapes)])


def _mask(maker: Maker, name: str) -> Tensor:
    return torch.ones(maker.batch, maker.length, dtype=torch.long)


def _boxes(maker: Maker, name: str) -> Tensor:
    corners = torch.randint(0, 500, (maker.batch, maker.length, 2))
    return torch.cat([corners, corners + 7], -1)


def _series(maker: Maker, name: str) -> Any:
    """Parts of a time series: the past, the future and its features."""
    config = maker.config
    context = maker.find("context_length", default=16)
    lags = max(getattr(config, "lags_sequence", None) or [0])
    past, future = context + lags, maker.find("prediction_length", default=8)
    steps = future if "future" in name else past
    channels = maker.find("num_input_channels", "input_size", "num_variates", default=1)
    if "static_categorical" in name:
        return torch.zeros(maker.batch, 1, dtype=torch.long)
    if "time_features" in name:
        return torch.randn(maker.batch, steps, getattr(config, "num_time_features", 1))
    if "mask" in name or channels > 1:
        return torch.ones(maker.batch, steps, channels) if channels > 1 else torch.ones(maker.batch, steps)
    return torch.randn(maker.batch, steps) if maker.variant < 2 else torch.randn(maker.batch, steps, channels)


def _features(maker: Maker, name: str) -> Tensor:
    """Features of objects in a picture, and where they are."""
    width = maker.find("visual_feat_dim", "visual_embedding_dim", default=maker.width())
    return torch.rand(maker.batch, 5, 4 if name.endswith("pos") else width)


def _hidden(maker: Maker, name: str) -> Tensor:
    width = maker.width()
    if maker.packed and name in ("hidden_states", "x"):
        return _patches(maker, name)
    if "encoder_hidden" in name:
        width = maker.find("encoder_hidden_size", "encoder_width", "cross_attention_hidden_size", default=width)
    other = maker.find("input_dim", "feature_projection_input_dim", "num_mel_bins", "in_channels", default=width)
    shapes = [
        (maker.batch, maker.length, width),
        (maker.batch, maker.length, other),
        (maker.length, width),
        (maker.batch, width, 16),
        (maker.batch, width, 16, 16),
        (1, 16, width),
    ]
    return torch.randn(shapes[maker.variant % len(shapes)])


def _grid(maker: Maker, name: str) -> Tensor:
    return torch.tensor([[1, 4, 4] if "t" in name.rpartition("_")[2] else [4, 4]] * maker.batch)


def _patches(maker: Maker, name: str) -> Tensor:
    size = maker.find("patch_size", default=16)
    time = maker.find("temporal_patch_size", default=1)
    channels = maker.find("in_channels", "in_chans", "num_channels", default=3)
    row = channels * time * size * size
    batched = "spatial_shapes" in maker.names or "pixel_position_ids" in maker.names
    return torch.randn((maker.batch, 16, row) if batched else (16 * maker.batch, row))


RULES: tuple[tuple[str, Any], ...] = (
    (r"^input_ids$|^decoder_input_ids$|^text_input_ids$|^input_text_ids$", lambda maker, name: maker.ids()),
    (r"^(pixel_values_videos|video_pixel_values|videos)$", _video),
    (
        r"^(pixel_values|images?|pixel_values_images|visual_pixel_values|prompt_pixel_values|prompt_masks)$",
        lambda maker, name: _video(maker, name) if maker.variant >= 5 else _picture(maker, name),
    ),
    (
        r"^(input_features|audio_features|audio_values|mel_values|spectrogram|input_mel|audio_mel|mel_spectrogram|reference_mel|audio_input_features)$",
        _mel,
    ),
    (r"^(input_values|audio|waveforms?)$", _wave),
    (
        r"pixel_attention_mask$",
        lambda maker, name: torch.ones(maker.batch, *(16,) if maker.packed else maker.image()[1:]),
    ),
    (r"pixel_mask$", lambda maker, name: torch.ones(maker.batch, *maker.image()[1:], dtype=torch.long)),
    (r"^(past|future|static)_|^context_|^history", _series),
    (r"bbox$|^boxes$", _boxes),
    (r"grid_thw$|grid_hw$|^grid_|spatial_shapes$", _grid),
    (
        r"flattened_patches",
        lambda maker, name: torch.rand(maker.batch, 16, maker.find("patch_embed_hidden_size", default=96)),
    ),
    (r"visual_(feats|embeds|pos)$", _features),
    (
        r"(features?|mel|audio|feature_attention)_mask$",
        lambda maker, name: torch.ones(maker.batch, maker.frames, dtype=torch.long),
    ),
    (r"image_attention_mask$", lambda maker, name: torch.ones(maker.batch, maker.length, 2, dtype=torch.long)),
    (r"attention_mask$|^input_mask$", _mask),
    (r"token_type_ids$|segment_ids$", lambda maker, name: torch.zeros(maker.batch, maker.length, dtype=torch.long)),
    (
        r"pixel_position_ids$",
        lambda maker, name: torch.cartesian_prod(*[torch.arange(4)] * 2).expand(maker.batch, -1, -1),
    ),
    (r"position_ids$", lambda maker, name: torch.arange(maker.length)[None].expand(maker.batch, -1)),
    (r"hidden_states?$|embeds?$|^hidden|embeddings?$|^x$|^context$|^inputs?$|features?$|latents?$|^sample$", _hidden),
    (r"task_inputs$", lambda maker, name: maker.ids(maker.find("task_seq_len", default=maker.length))),
    (r"timesteps?$", lambda maker, name: torch.zeros(maker.batch, dtype=torch.long)),
    (r"(_ids|_codes|_id|^codes|indices|tokens)$", lambda maker, name: maker.ids()),
    (r"lengths?$|lens$", lambda maker, name: torch.full((maker.batch,), maker.length)),
)


def accepted(model: Any) -> dict[str, inspect.Parameter]:
    """The parameters of a forward pass."""
    return dict(inspect.signature(model.forward).parameters)


def guesses(model: Any, maker: Maker) -> Iterator[dict[str, Any]]:
    """Candidate inputs: first every kind the model accepts (a text and an image), then the minimum."""
    signature = accepted(model)
    main = getattr(model, "main_input_name", "input_ids")
    main = main[0] if isinstance(main, (list, tuple)) else main
    needed = [
        name
        for name, one in signature.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in signature:
        needed.append("decoder_input_ids")
    kinds = [name for name in KINDS if name in signature]
    if "pixel_values" in kinds and "pixel_values_videos" in kinds:
        kinds.remove("pixel_values_videos")
    if "input_values" in kinds and "input_features" in kinds:
        kinds.remove("input_features")
    if maker.packed:
        beside = ("image_grid_thw", "image_grid_hw", "spatial_shapes", "pixel_attention_mask")
        kinds += [name for name in beside if name in signature]
    if main == "inputs" and kinds:  # an alias for one of them
        main = kinds[0]
    least = [main] if main in signature else kinds[:1] if not needed else []
    made: list[list[str]] = []
    masks = [name for name in signature if re.search(r"(attention|features?|audio|mel|values|pixel)_mask$", name)]
    texts = ["input_ids", *needed] if "input_ids" in signature else []
    for names in ([*least, *needed, *kinds], [*least, *needed, *kinds, *masks], [*least, *needed], texts):
        names = [name for name in dict.fromkeys(names) if name not in NEVER]
        if not names or sorted(names) in made:
            continue
        made.append(sorted(names))
        given = {name: maker.make(name) for name in names}
        yield {name: value for name, value in given.items() if value is not None}


def complete(model: Any, given: dict[str, Any]) -> bool:
    """Whether a model that takes text and something else was given something else."""
    others = [name for name in KINDS[1:] if name in accepted(model)]
    return not others or any(name in given for name in others)
