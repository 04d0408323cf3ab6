"""A real Llama generates a story step by step; each step shows its attention."""

import re

import pytest
import torch

from tests.browser import page_models
from tests.browser.driving import opened, saved, state, until
from tests.browser.serving import viewed
from tests.observation import peers

PROMPT, STEPS = "Once upon a time", 8
LIKELY = "document.querySelector('[data-testid=alternatives]').innerText"
PERCENT = rf"Number(({LIKELY}.match(/([\d.]+)\s?%/) ?? [0, NaN])[1])"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    peers.shared("models", "stories260k")
    return page_models.story_folder(tmp_path_factory.mktemp("story") / "stories260K")


@pytest.fixture(scope="module")
def address(folder):
    with viewed(str(folder), "--text", PROMPT, "--generate", str(STEPS)) as found:
        yield found


@pytest.fixture(scope="module")
def story(folder):
    """The same model with eager attention: its tokens, probabilities and weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    given = tokenizer(PROMPT, return_tensors="pt")
    return tokenizer, model.generate(
        **given,
        max_new_tokens=STEPS,
        do_sample=False,
        output_attentions=True,
        output_scores=True,
        return_dict_in_generate=True,
    )


def test_the_checkpoint_is_the_model_its_author_published(story):
    tokenizer, out = story
    assert tokenizer.decode(out.sequences[0], skip_special_tokens=True) == "Once upon a time, there was a little girl"


def test_a_generation_is_stepped_through(page, address, story):
    tokenizer, out = story
    opened(page, address, "steps", site=2, head=5, call=0)
    written = [tokenizer.decode(token).strip() for token in out.sequences[0, -STEPS:]]
    for step in range(STEPS):
        if step:
            page.get_by_test_id("step-next").click()
        at(page, step)
        probability = out.scores[step][0].softmax(-1).max().item()
        until(page, f"Math.abs(({PERCENT}) - given) < 0.6", 100 * probability)  # words come first, numbers when fetched
        assert written[step] in page.get_by_test_id("alternatives").inner_text()
        numbers = looked_at(page)
        expected = out.attentions[step][2][0, 5, -1].topk(3).values
        assert numbers[:3] == pytest.approx(expected.tolist(), rel=6e-3), step
    page.get_by_test_id("step-prev").click()
    at(page, STEPS - 2)


def at(page, step):
    """Waits for the words of a step."""
    until(page, "document.querySelector('[data-testid=step-words]').innerText.includes(given)", f"step {step} of")


def looked_at(page):
    text = page.get_by_test_id("looked-at").inner_text()
    return [float(found) for found in re.findall(r"^(\d?\.?\d+)$", text, flags=re.M) if "." in found]


def test_keys_step_through_every_view(page, address):
    opened(page, address, "matrix", site=1, head=2)
    assert state(page)["call"] == -1  # all steps below each other
    page.keyboard.press("[")
    until(page, "window.__regard.state().call === given", STEPS - 1)
    page.keyboard.press("[")
    until(page, "window.__regard.state().call === given", STEPS - 2)
    for _ in range(2):
        page.keyboard.press("]")
    until(page, "window.__regard.state().call === -1")
    opened(page, address, "steps")
    before = state(page)["call"]
    page.keyboard.press("]")
    until(page, "window.__regard.state().call !== given", before)
    assert saved(page, "csv")


def test_each_query_sees_only_what_was_written_before(page, address):
    """The map of the prompt is lower triangular on the screen, too: hidden pairs have code 0."""
    opened(page, address, "matrix", call=0)
    codes = page.evaluate(
        """() => fetch('/api/tile?variant=0&site=0&head=0&call=0&level=0&x=0&y=0').then(r => r.arrayBuffer())
            .then(b => [new Uint16Array(b, 0, 2)[0], new Uint16Array(b, 0, 2)[1], ...new Uint8Array(b, 8)])"""
    )
    wide, high = codes[:2]
    found = torch.tensor(codes[2:]).reshape(high, wide)
    assert not found.triu(1).any()
    assert found.diagonal().all()
