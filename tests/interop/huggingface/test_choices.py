"""Sparse models of Hugging Face: the keys that they choose for a query are the keys that regard attends to."""

import ast
import re
from pathlib import Path

import pytest
import torch

import regard
from regard.interop.huggingface import attention, choices
from tests.interop.huggingface.models import CHOSEN, CLOSE, SPARSE, apart, built, on, padding, sparse
from tests.observation import peers

transformers = pytest.importorskip("transformers")
LENGTH = 37  # far more keys than a query may choose, and no whole number of blocks


def available(kind):
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        pytest.skip(f"this transformers has no {kind}")
    return sparse(kind)


@pytest.mark.parametrize("kind", SPARSE)
@torch.no_grad()
def test_sparse_models_equal_their_eager_attention_beyond_their_choice(kind, monkeypatch):
    model, ids = available(kind), peers.ids(LENGTH)
    for side in ("none", "right", "left"):
        keep = torch.ones_like(ids) if side == "none" else padding(*ids.shape, side)
        real = keep.bool()
        # Rows of padding may win blocks of MiniMax-M3. They are zeros on regard and sdpa, means on eager attention.
        peer = "sdpa" if (kind, side) == ("minimax_m3_vl_text", "left") else "eager"
        expected = on(model, peer)(ids, attention_mask=keep, use_cache=False).last_hidden_state[real]
        found = on(model, "regard")(ids, attention_mask=keep, use_cache=False).last_hidden_state[real]
        assert apart(found, expected) <= CLOSE, side
    monkeypatch.setattr(attention, "chosen_keys", lambda *given: None)  # a model that became dense
    dense = on(model, "regard")(ids, attention_mask=keep, use_cache=False).last_hidden_state[real]
    assert apart(dense, expected) > 0.03


@pytest.mark.parametrize("kind", ["deepseek_v32", "minimax_m3_vl_text"])
@torch.no_grad()
def test_pieces_with_a_cache_choose_what_they_choose_on_eager_attention(kind):
    """Not compared with one call: DeepSeek's indexer has many equal scores, and which it takes depends on the call."""
    model, ids = available(kind), peers.ids(LENGTH)
    rows = {}
    for name in ("eager", "regard"):
        on(model, name)
        past, first, rows[name] = transformers.DynamicCache(config=model.config), 0, []
        for size in (CHOSEN + 3, 1, 1, 11, 1, LENGTH - CHOSEN - 17):
            rows[name].append(model(ids[:, first : first + size], past_key_values=past).last_hidden_state)
            first += size
    assert apart(torch.cat(rows["regard"], 1), torch.cat(rows["eager"], 1)) <= CLOSE


class Blocks(torch.nn.Module):
    """A layer whose indexer counts in blocks of three."""

    def __init__(self):
        super().__init__()
        self.indexer = torch.nn.Module()
        self.indexer.block_size = 3


@pytest.mark.parametrize("name", ["indices", "block_indices"])
def test_chosen_numbers_become_visible_keys(name):
    """Eleven keys, so that the last block has two; -1 is an unused place; one choice for each pair of heads."""
    size, keys, query = (3 if name == "block_indices" else 1), 11, torch.zeros(2, 4, 5, 7)
    generator = torch.Generator().manual_seed(2)
    chosen = torch.randint(-1, -(-keys // size), (2, 2, 5, 3), generator=generator, dtype=torch.int32)
    assert (chosen == -1).any() and (chosen == (keys - 1) // size).any()
    found = choices.chosen_keys(Blocks(), query, keys, {name: chosen})
    visible = found.dense(5, keys, 2, 4)
    for at in torch.cartesian_prod(*map(torch.arange, (2, 4, 5, keys))).tolist():
        b, h, q, k = at
        assert bool(visible[b, h, q, k]) == (k // size in chosen[b, h // 2, q].tolist()), at


def test_blocks_of_unknown_size_are_refused():
    with pytest.raises(regard.Unsupported, match=r"block_indices: Linear chooses blocks.*='eager'"):
        choices.chosen_keys(
            torch.nn.Linear(2, 2), torch.zeros(1, 2, 3, 5), 7, {"block_indices": torch.zeros(1, 2, 3, 1)}
        )


@torch.no_grad()
def test_a_tensor_of_unknown_meaning_is_refused_by_its_name_and_what_means_nothing_passes():
    model, given = on(built("llama"), "regard"), peers.inputs("llama")
    expected = model(**given).logits
    with pytest.raises(regard.Unsupported, match=r"top_blocks: the model gives .* \(2, 3\).*='eager'"):
        model(**given, top_blocks=torch.zeros(2, 3, dtype=torch.long))
    harmless = {"num_items_in_batch": torch.tensor(7), "seq_idx": torch.zeros(2, 11), "top_blocks": None, "tag": "a"}
    assert torch.equal(model(**given, **harmless).logits, expected)


def keywords_of(folder):
    """What the modeling files pass to an attention interface by name, and the keywords that any model accepts."""
    names = set()
    for file in folder.glob("models/*/modeling_*.py"):
        text = file.read_text()
        for begun in re.finditer(r"attention_interface\(", text):
            ends = (at.end() for at in re.finditer(r"\)", text[begun.start() :]))
            call = next(one for end in ends if (one := parsed(text[begun.start() :][:end])) is not None)
            names |= {one.arg for one in call.keywords if one.arg}
        if "Kwargs(TypedDict" in text:
            names |= fields_of(text)
    for place in ("utils/generic.py", "modeling_flash_attention_utils.py"):
        names |= fields_of((folder / place).read_text())
    return names


def parsed(text):
    """The call in a text; None where the text ends within it."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def fields_of(text):
    """The fields of the classes of keywords that may hold a tensor or a number."""
    kinds = (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name.endswith("Kwargs")
    )
    fields = (one for node in kinds for one in node.body if isinstance(one, ast.AnnAssign))
    return {one.target.id for one in fields if re.search("Tensor|int", ast.unparse(one.annotation))}


def test_every_keyword_of_the_installed_transformers_is_read_or_has_no_effect():
    found = keywords_of(Path(transformers.__file__).parent)
    arguments = {"query", "key", "value", "attention_mask", "scaling", "dropout"}
    flags = {"deterministic"}  # of flash attention's backward pass
    assert {"position_bias", "s_aux", "softcap", "cu_seq_lens_k"} <= found
    assert not found - arguments - flags - choices.READ - choices.WITHOUT_EFFECT
    assert not choices.READ & choices.WITHOUT_EFFECT


def test_eager_attention_reads_nothing_of_a_layer_that_regard_does_not_read():
    """Sinks are read; `num_key_value_groups` and `head_dim` are in the shapes of queries and keys."""
    attributes, arguments = set(), set()
    for file in Path(transformers.__file__).parent.glob("models/*/modeling_*.py"):
        for text in re.split(r"\n(?=def |class |@|\w+ = )", file.read_text()):
            if re.match(r"def \w*eager\w*attention", text):
                attributes |= set(re.findall(r"\bmodule\.(\w+)|getattr\(module, \"(\w+)\"", text))
                arguments |= {one.arg for one in ast.parse(text).body[0].args.args}
    attributes = {"".join(names) for names in attributes}
    assert {"num_key_value_groups", "training", "sinks"} <= attributes
    assert attributes <= {"num_key_value_groups", "training", "head_dim", "sinks"}
    given = {"module", "query", "key", "value", "attention_mask", "scaling", "dropout"}
    renamed = {"query_states", "key_states", "value_states"}
    assert "softcap" in arguments and not arguments - given - renamed - choices.READ
