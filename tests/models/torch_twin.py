"""torch's own Transformer layers with the weights of `transformer(preset=vaswani)`, as an oracle."""

import torch


def copied(ours, theirs):
    """Copy the weights of one of our attentions into torch's; ours has no biases."""
    maps = [ours.query_map, ours.key_map, ours.value_map]
    theirs.in_proj_weight.copy_(torch.cat([one.weight for one in maps]))
    theirs.in_proj_bias.zero_()
    theirs.out_proj.weight.copy_(ours.output_map.weight)
    theirs.out_proj.bias.zero_()


def torch_twin(model):
    """torch's encoder and decoder with our weights, without the last normalisations that post-norm does not have."""
    options = {"dropout": 0.0, "batch_first": True, "dtype": torch.float64}
    first = model.encoder.layers[0]
    sizes = (first.attention.dim, first.attention.num_heads, first.feed_forward.rise.out_features)
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(*sizes, **options), 2, enable_nested_tensor=False
    )
    decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(*sizes, **options), 2)
    with torch.no_grad():
        pairs = [*zip(model.encoder.layers, encoder.layers, strict=True)]
        pairs += [*zip(model.decoder.layers, decoder.layers, strict=True)]
        for mine, other in pairs:
            copied(mine.attention, other.self_attn)
            norms = [mine.around_attention.norm]
            if hasattr(mine, "cross"):
                copied(mine.cross, other.multihead_attn)
                norms.append(mine.around_cross.norm)
            norms.append(mine.around_feed_forward.norm)
            for index, norm in enumerate(norms, 1):
                getattr(other, f"norm{index}").load_state_dict(norm.state_dict())
            other.linear1.load_state_dict(mine.feed_forward.rise.state_dict())
            other.linear2.load_state_dict(mine.feed_forward.fall.state_dict())
    return encoder.eval(), decoder.eval()
