"""Small checkpoints with random weights, written by transformers, which is the oracle of these tests."""

import warnings

import torch

from regard_workbench.models import from_pretrained, save_pretrained
from regard_workbench.tasks.answers import Decoded, shifted
from regard_workbench.tasks.parts.batch import Batch

VOCABULARY, LENGTH = 97, 41
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": LENGTH,
}
GPT2_SIZES = {
    "vocab_size": VOCABULARY,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": LENGTH,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def random_model(cls, config):
    """A model of transformers all of whose parameters are random, the biases and gains of its norms too."""
    torch.manual_seed(7)
    model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # not Marian's sinusoids, which are computed
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def write(model, folder):
    """Save with transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return folder


def inputs(side, padding=0):
    """Token ids (3,11) and where they are real: all of them, or padded on one side."""
    ids = torch.randint(3, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(5))
    keep = torch.ones(ids.shape, dtype=torch.bool)
    if side == "none":
        return ids, keep
    keep[1, 7:] = keep[2, 4:] = False
    keep = keep.flip(1) if side == "left" else keep
    return ids.masked_fill(~keep, padding), keep


def target():
    """What a decoder is to write, (3,7)."""
    return torch.randint(3, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(6))


@torch.no_grad()
def theirs(model, ids, keep, **more):
    """The outputs of transformers at real positions, for each example, or for a target."""
    writes = hasattr(model, "lm_head") and model.config.is_encoder_decoder
    if writes:
        more["decoder_input_ids"] = shifted(target(), model.config.decoder_start_token_id)
    found = model(ids, attention_mask=keep.long(), **more)
    rows = found.logits if "logits" in found else found.last_hidden_state
    return rows[keep] if rows.dim() == 3 and not writes else rows


@torch.no_grad()
def ours(model, ids, keep):
    """The same outputs of a model of regard."""
    writes = isinstance(model.problem.answer, Decoded)
    found = model(Batch.of(ids, None if bool(keep.all()) else keep, target() if writes else None))
    return found[keep] if found.dim() == 3 and not writes else found


def check_same(model, folder, sides=("none", "right", "left"), padding=0):
    """Load what transformers wrote, compare outputs; save, let transformers load it, compare again. Returns ours."""
    loaded = from_pretrained(write(model, folder / "theirs"))
    for side in sides:
        ids, keep = inputs(side, padding)
        wanted = theirs(model, ids, keep)
        assert wanted.std() > 0.01, "the outputs would agree by chance"
        bound = min(1e-4, 1e-5 * max(1.0, float(wanted.abs().max())))
        torch.testing.assert_close(
            ours(loaded, ids, keep), wanted, rtol=0, atol=bound, msg=lambda text, side=side: f"padding: {side}. {text}"
        )
    save_pretrained(loaded, folder / "ours")
    again, report = type(model).from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    ids, keep = inputs(sides[-1], padding)
    assert torch.equal(theirs(again.eval(), ids, keep), theirs(model, ids, keep))
    return loaded
