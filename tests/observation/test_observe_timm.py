"""timm's image models under observation, against their own unfused attention."""

import pytest
import torch

import regard
from tests.observation import peers
from tests.observation.peers import BAR, largest

with peers.stand_in_for_torchvision():
    import timm
    from timm.models.eva import Eva
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.vision_transformer import VisionTransformer


def attentions(model):
    return {name: module for name, module in model.named_modules() if hasattr(module, "fused_attn")}


def fused(model, on):
    for module in attentions(model).values():
        module.fused_attn = on
    return model


@torch.no_grad()
def plain_maps(model, image):
    """What goes into the dropout of the plain path: the weights."""
    found, hooks = [], []
    for module in attentions(model).values():
        hooks.append(module.attn_drop.register_forward_pre_hook(lambda _, given: found.append(given[0])))
    fused(model, False)(image)
    for hook in hooks:
        hook.remove()
    fused(model, True)
    return found


def vit():
    return VisionTransformer(img_size=20, patch_size=5, embed_dim=24, depth=2, num_heads=3, num_classes=7)


def eva():
    """Rotary positions, applied before the attention."""
    return Eva(img_size=20, patch_size=5, embed_dim=24, depth=2, num_heads=3, num_classes=7, use_rot_pos_emb=True)


def swin():
    """Windows as a batch, a bias by relative position, and a mask where the windows were shifted."""
    return SwinTransformer(
        img_size=20, patch_size=2, window_size=5, embed_dim=12, depths=(2,), num_heads=(3,), num_classes=7
    )


@pytest.mark.parametrize("make", [vit, eva, swin])
def test_weights_are_those_of_the_plain_path(make):
    model, image = fused(make().eval(), True), torch.randn(2, 3, 20, 20)
    for parameter in model.parameters():
        parameter.data.mul_(3)  # timm starts near zero, where every map is flat
    maps = plain_maps(model, image)
    assert len(maps) == 2 and maps[0].std() > 1e-3
    with torch.no_grad():
        before = model(image)
        with regard.observe(model) as seen:
            out = model(image)
    assert torch.equal(out, before)
    assert seen.names() == list(attentions(model))
    for name, expected in zip(seen.names(), maps, strict=True):
        assert largest(seen[name].weights(), expected) <= BAR, name


def test_a_model_by_its_name():
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64, depth=2).eval()
    image = torch.randn(1, 3, 64, 64)
    maps = plain_maps(model, image)
    with torch.no_grad(), regard.observe(model) as seen:
        model(image)
    assert seen.names() == ["blocks.0.attn", "blocks.1.attn"]
    assert seen["blocks.0.attn"].shape() == (1, 3, 17, 17)
    assert largest(seen["blocks.1.attn"].weights(), maps[1]) <= BAR
