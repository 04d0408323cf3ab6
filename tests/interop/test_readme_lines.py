"""The lines of the README's section "Adopt", as they are printed, for each of the three who adopt regard.

`tests/test_documents.py` runs them too; here their results are compared with those of the code they change.
"""

import re
from pathlib import Path

import pytest
import torch

import regard
from regard import masks
from regard.interop.torch import MultiheadAttention
from tests.training.distributed import torchrun

README = Path(__file__).parents[2] / "README.md"
# What the section may count on: the README's first block imports torch, regard and masks, and makes q, k and v.
BEFORE = """
import torch
import regard
from regard import masks
torch.manual_seed(3)
whole = torch.randn(3, 1, 2, 1024, 4).unbind()
q, k, v = whole
"""
AFTER = """
assert sequence.ranks == 2 and sequence.local_length == 512 == out.shape[2], sequence
expected = regard.attend(*whole, mask=masks.causal())
torch.testing.assert_close(sequence.unshard(out, 2), expected)
print(f"rank {sequence.rank} agrees", flush=True)
torch.distributed.destroy_process_group()
"""


def adopt() -> dict[str, str]:
    """The parts of the section's block: of a torch, a Hugging Face and a cluster user."""
    section = README.read_text(encoding="utf-8").partition("\n## Adopt\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    parts = re.split(r"^(?=from regard)", code, flags=re.MULTILINE)[1:]
    return dict(zip(("torch", "huggingface", "cluster"), parts, strict=True))


def test_each_part_has_three_lines():
    for part in adopt().values():
        assert len(part.splitlines()) == 3, part


def test_the_lines_for_torch_leave_the_network_what_it_was():
    names = {"torch": torch}
    torch.manual_seed(5)
    exec(adopt()["torch"], names)
    torch.manual_seed(5)
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    expected = torch.nn.TransformerEncoder(layer, num_layers=2)
    assert sum(isinstance(part, MultiheadAttention) for part in names["encoder"].modules()) == 2
    rows, padding = torch.randn(2, 11, 64), torch.arange(11) >= torch.tensor([[11], [7]])
    for network in (names["encoder"], expected):
        network.eval()
    found, right = (one(rows, src_key_padding_mask=padding) for one in (names["encoder"], expected))
    torch.testing.assert_close(found[~padding], right[~padding])


def test_the_lines_for_hugging_face_leave_logits_and_tokens_what_they_were():
    pytest.importorskip("transformers")
    from tests.interop.huggingface.models import CLOSE, apart, built

    model = built("llama")
    ids = torch.randint(3, 90, (2, 13), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    logits, tokens = model(ids).logits, model.generate(ids, **options)
    exec(adopt()["huggingface"], {"model": model})
    assert model.config._attn_implementation == "regard"
    assert apart(model(ids).logits, logits) <= CLOSE
    assert torch.equal(model.generate(ids, **options), tokens)


def test_the_lines_for_a_cluster_alone_are_attend():
    names: dict[str, object] = {}
    exec(BEFORE + adopt()["cluster"], names)
    expected = regard.attend(*names["whole"], mask=masks.causal())
    torch.testing.assert_close(names["out"], expected)


@pytest.mark.slow
def test_the_lines_for_a_cluster_share_the_sequence_of_two_processes_of_torchrun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(BEFORE + adopt()["cluster"] + AFTER)
    started = torchrun(script, log=tmp_path / "log.txt")
    assert started.wait(300) == 0, (tmp_path / "log.txt").read_text()
    assert sorted(re.findall(r"rank \d agrees", (tmp_path / "log.txt").read_text())) == [
        "rank 0 agrees",
        "rank 1 agrees",
    ]
