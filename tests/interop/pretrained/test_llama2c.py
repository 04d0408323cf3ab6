"""The format of llama2.c: files written here from a Llama of transformers, and the published model of 260K numbers."""

import struct

import pytest
import torch
import transformers

from regard.errors import BadValue
from regard_workbench.models import from_pretrained, save_pretrained
from regard_workbench.models.pretrained.llama2c import llama2c_vocabulary
from regard_workbench.tasks.parts.batch import Batch
from tests.interop.pretrained.checkpoints import SIZES, inputs, random_model
from tests.observation import peers

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high."
)
LAYER = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def neighbours(weight, width):
    """Rows of a projection for columns that are rotated with their neighbour, from those rotated with i + d/2."""
    rows = []
    for head in weight.split(width):
        for first, second in zip(head[: width // 2], head[width // 2 :], strict=True):
            rows += [first, second]
    return torch.stack(rows)


def write_llama2c(model, path, shared):
    """The bytes that llama2.c's export.py writes (version 0)."""
    config, tensors = model.config, model.state_dict()
    sizes = (
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.vocab_size * (1 if shared else -1),
        config.max_position_embeddings,
    )
    width = config.hidden_size // config.num_attention_heads
    parts = [tensors["model.embed_tokens.weight"]]
    for name in LAYER:
        for number in range(config.num_hidden_layers):
            weight = tensors[f"model.layers.{number}.{name}.weight"]
            parts.append(neighbours(weight, width) if name.endswith(("q_proj", "k_proj")) else weight)
    parts += [tensors["model.norm.weight"], torch.zeros(config.max_position_embeddings, width)]
    parts += [] if shared else [tensors["lm_head.weight"]]
    path.write_bytes(struct.pack("<7i", *sizes) + b"".join(part.contiguous().numpy().tobytes() for part in parts))


@pytest.fixture
def made():
    """A function that makes a model of transformers, written to a file."""

    def make(path, shared=True):
        config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=shared)
        model = random_model(transformers.LlamaForCausalLM, config)
        write_llama2c(model, path, shared)
        return model

    return make


@pytest.mark.parametrize("shared", [True, False], ids=["the head shares the embedding", "the head has its own weights"])
def test_a_file_of_llama2c_gives_the_logits_of_the_llama_that_it_was_written_from(made, shared, tmp_path):
    model = made(tmp_path / "model.bin", shared)
    loaded = from_pretrained(tmp_path / "model.bin")
    ids, _ = inputs("none")
    with torch.no_grad():
        torch.testing.assert_close(loaded(Batch.of(ids)), model(ids).logits, rtol=0, atol=1e-5)
    save_pretrained(loaded, tmp_path / "saved")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "saved").eval()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.state_dict().items())


def test_damaged_files_are_refused_before_memory_is_taken(made, tmp_path):
    path = tmp_path / "model.bin"
    made(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with pytest.raises(BadValue, match=r"expected [\d,]+ bytes for the sizes in its header"):
        from_pretrained(path)
    for sizes in ((64, 172, 5, 8, 4, 512, 0), (2**30,) * 7, (-1, 172, 5, 8, 4, 512, 512), (63, 172, 5, 8, 4, 512, 512)):
        path.write_bytes(struct.pack("<7i", *sizes) + whole[28:])
        with pytest.raises(BadValue, match="not in the format of llama2"):
            from_pretrained(path)
    for damaged in (b"", b"PK\x03\x04 a pickle of torch begins like this"):
        path.write_bytes(damaged)
        with pytest.raises(BadValue, match="pickle"):
            from_pretrained(path)


def test_the_published_model_tells_its_published_story():
    place = peers.shared("models", "stories260k")
    model = from_pretrained(place / "stories260K.bin")
    vocabulary = llama2c_vocabulary(place / "tok512.bin")
    (best,) = model.generate(Batch.of(torch.tensor([[1]])), max_length=80)[0]
    assert vocabulary.decode(best.tokens).startswith(STORY)


def merged_by_score(pieces, scores, text):
    """llama2.c's own way: characters (or bytes), then the neighbours with the best score, again and again."""
    known = {piece: number for number, piece in reversed(list(enumerate(pieces)))}
    ids = [1]
    for char in f" {text}" if text else "":
        raw = char.encode()
        ids += [known[raw]] if raw in known else [byte + 3 for byte in raw]
    while True:
        pairs = [
            (scores[both], -place, both)
            for place in range(1, len(ids) - 1)
            if (both := known.get(pieces[ids[place]] + pieces[ids[place + 1]])) is not None
        ]
        if not pairs:
            return ids
        _, place, both = max(pairs)
        ids[-place : -place + 2] = [both]


@pytest.mark.parametrize(
    "text", ["Once upon a time, there was a cat.", "Lily's mom said, \"Don't!\"\n\tOK  two", "é 中 🙂 <s> </s>", ""]
)
def test_texts_are_split_as_llama2c_splits_them(text):
    path = peers.shared("models", "stories260k") / "tok512.bin"
    data, place, pieces, scores = path.read_bytes(), 4, [], []
    while place < len(data):
        score, size = struct.unpack_from("<fi", data, place)
        pieces.append(data[place + 8 : place + 8 + size])
        scores.append(score)
        place += 8 + size
    vocabulary = llama2c_vocabulary(path)
    found = vocabulary.encode(text)
    assert found == merged_by_score(pieces, scores, text)
    assert vocabulary.decode(found) == text


def test_a_damaged_vocabulary_is_refused(tmp_path):
    path = tmp_path / "tokenizer.bin"
    for data in (b"", b"1234" + struct.pack("<fi", 0.0, 10**9), b"1234" + struct.pack("<fi", 0.0, 2) + b"\xff\xfe"):
        path.write_bytes(data)
        with pytest.raises(BadValue, match="path: "):
            llama2c_vocabulary(path)
