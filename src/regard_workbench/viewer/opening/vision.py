"""Opening a Hugging Face model that reads images. The page shows the pixels that the model was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.tasks.formats.image_files import read_image
from regard_workbench.viewer.opening import classification
from regard_workbench.viewer.opening.images import on_grid, patch_labels
from regard_workbench.viewer.opening.loading import LOCAL
from regard_workbench.viewer.opening.options import OpenedModel, ViewOptions
from regard_workbench.viewer.opening.preprocessing import check_size, read_settings

HALF = [0.5, 0.5, 0.5]  # default mean and standard deviation


def open_vision(
    options: ViewOptions,
    transformers: Any,
    folder: str,
    name: str,
    config: Any,
    model: Any,
    device: torch.device,
    tell: Callable[[str], None],
) -> OpenedModel:
    """The model on an image."""
    if options.text is not None:
        raise BadValue(f"--text: {name} reads images. Give --image picture.png.")
    if options.image is None:
        raise BadValue(f"--image: {name} reads images. Give one: --image picture.png.")
    picture = read_image(options.image)
    pixels, mean, spread = _prepared(transformers, folder, config, picture, tell)
    pixels = pixels.to(device)
    grid = _grid(config, pixels)
    shown = (pixels[0].cpu() * torch.tensor(spread)[:, None, None] + torch.tensor(mean)[:, None, None]).permute(1, 2, 0)
    image = np.asarray(shown.numpy(), np.float32)

    def finish(keys: int) -> tuple[dict[str, list[str]], dict[str, Any] | None]:
        return _placed(image, grid, keys)

    return OpenedModel(
        name,
        name,
        model,
        lambda: model(pixel_values=pixels),
        {"patches": []},
        words=f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters",
        input=f"the image {Path(options.image).name}",
        finish=finish,
        no_writer=f"{type(model).__name__} writes no text",
        answer=classification.of_pretrained(model, ()),
    )


def _placed(
    image: NDArray[np.float32], grid: tuple[int, int] | None, keys: int
) -> tuple[dict[str, list[str]], dict[str, Any] | None]:
    """Labels and image for a model whose first layer has `keys` keys; no image where they are not the patches."""
    if grid is None or keys < grid[0] * grid[1]:
        return {"patches": [str(number) for number in range(keys)]}, None
    skip = keys - grid[0] * grid[1]
    return {"patches": patch_labels(*grid, skip)}, on_grid(image, *grid, skip)


def _prepared(
    transformers: Any, folder: str, config: Any, picture: Any, tell: Callable[[str], None]
) -> tuple[Tensor, list[float], list[float]]:
    """The model's input pixels, and the mean and standard deviation to undo their normalisation."""
    settings = read_settings(folder, picture.size)
    mean, spread = _three(settings.get("image_mean")), _three(settings.get("image_std"))
    if settings:
        try:
            processor = transformers.AutoImageProcessor.from_pretrained(folder, **LOCAL)
            pixels: Tensor = processor(images=picture, return_tensors="pt")["pixel_values"]
            return pixels, _three(processor.image_mean), _three(processor.image_std)
        except Exception as why:  # torchvision may be missing, or the processor of another kind
            tell(f"The folder's image processor cannot be used ({type(why).__name__}); resizing without it.")
    height, width = _pair(getattr(config, "image_size", None) or 224)
    check_size("config.json: image_size", [height, width], picture.size)
    small = np.asarray(picture.resize((width, height)), np.float32) / 255
    values = (torch.from_numpy(small.copy()) - torch.tensor(mean)) / torch.tensor(spread)
    return values.permute(2, 0, 1)[None].contiguous(), mean, spread


def _three(given: Any) -> list[float]:
    usable = isinstance(given, list | tuple) and len(given) == 3 and all(isinstance(x, int | float) for x in given)
    return [float(x) for x in given] if usable else list(HALF)


def _pair(given: Any) -> tuple[int, int]:
    if isinstance(given, list | tuple) and len(given) == 2:
        return int(given[0]), int(given[1])
    return int(given), int(given)


def _grid(config: Any, pixels: Tensor) -> tuple[int, int] | None:
    """Rows and columns of patches, where the model splits images into patches."""
    patch = getattr(config, "patch_size", None)
    if not isinstance(patch, int | list | tuple) or not patch:
        return None
    height, width = _pair(patch)
    return int(pixels.shape[2]) // height, int(pixels.shape[3]) // width
