"""Opening a Hugging Face model from a folder or from the Hub's cache: local files only, no code from the folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue
from regard_workbench.models.pretrained.source import HUB, cached_folder, is_hub_form
from regard_workbench.tasks.text.characters import whole_characters
from regard_workbench.training.hardware import choose_device
from regard_workbench.viewer.opening import classification, predictions
from regard_workbench.viewer.opening.library_errors import in_words
from regard_workbench.viewer.opening.loading import LOCAL, LoadedPretrained, load_model
from regard_workbench.viewer.opening.no_model import no_model
from regard_workbench.viewer.opening.options import OpenedModel, ViewOptions
from regard_workbench.viewer.opening.tokenizer import load_tokenizer

EXAMPLE = "The animal did not cross the street because it was too tired."
OWN_WORDS = 40  # tokens that an encoder-decoder generates by default
READ = ("input_ids", "attention_mask", "token_type_ids")


def is_pretrained(where: str) -> bool:
    """Whether a folder holds a model in Hugging Face's form, or the Hub's cache has one of this name."""
    return is_hub_form(where) or cached_folder(where) is not None


def open_named(where: str) -> Any:
    """The model of a folder or of a name in the Hub's cache, as transformers builds it, for `regard.observe`."""
    if not is_pretrained(where):
        raise no_model(where, "model")
    transformers = _library()
    with _quiet(transformers):
        return load_model(transformers, _folder(where), where).model.eval()


def _folder(where: str) -> str:
    return str(Path(where if is_hub_form(where) else cached_folder(where) or where).resolve())


def open_pretrained(options: ViewOptions, where: str, tell: Callable[[str], None]) -> OpenedModel:
    """The model of a folder on a text or an image."""
    transformers = _library()
    with _quiet(transformers):
        return _open(transformers, options, where, tell)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the library's progress bars and log messages."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _open(transformers: Any, options: ViewOptions, where: str, tell: Callable[[str], None]) -> OpenedModel:
    folder = _folder(where)
    device = choose_device(options.device)
    tell(f"loading {where}")
    loaded = load_model(transformers, folder, where, options.allow_missing)
    model, config = loaded.model.to(device).eval(), loaded.config
    path = Path(folder)
    name = path.name if path.name not in ("model", "checkpoint") else f"{path.parent.name}/{path.name}"
    name = name if is_hub_form(where) else where.removeprefix(HUB)
    reads = str(getattr(model, "main_input_name", "input_ids"))
    if reads not in ("input_ids", "pixel_values"):
        raise BadValue(
            f"RUN: {type(model).__name__} reads {reads}, which cannot be made from a text or an image. Run it yourself "
            "inside `with regard.observe(model) as seen:`, then seen.export('page.html')."
        )
    if reads == "pixel_values":
        from regard_workbench.viewer.opening.vision import open_vision

        def on_image(wanted: ViewOptions) -> OpenedModel:
            opened = in_words(
                lambda: open_vision(wanted, transformers, folder, name, config, model, device, tell),
                f"the settings for images in {where!r} cannot be used",
            )
            opened.doubt, opened.reopen, opened.takes = loaded.doubt, on_image, ("image",)
            return opened

        return on_image(options)
    for kind in ("image", "sound", "table"):
        if getattr(options, kind) is not None:
            raise BadValue(f"--{kind}: {where} reads text. Give --text instead.")
    tokenizer = load_tokenizer(transformers, folder, where, LOCAL)

    def on_text(wanted: ViewOptions) -> OpenedModel:
        with _quiet(transformers):  # the tokenizer warns of long texts; ours is the one message
            opened = in_words(
                lambda: _open_text(wanted, name, loaded, tokenizer, device),
                f"the tokenizer in {where!r} cannot be used",
            )
        opened.reopen = on_text
        return opened

    return on_text(options)


def _open_text(
    options: ViewOptions, name: str, loaded: LoadedPretrained, tokenizer: Any, device: torch.device
) -> OpenedModel:
    """The model on a text."""
    model, config = loaded.model, loaded.config
    text = whole_characters(EXAMPLE if options.text is None else options.text)
    inputs = tokenizer(text, return_tensors="pt", truncation=False)
    inputs = {key: value.to(device) for key, value in inputs.items() if key in READ}
    ids: list[int] = inputs["input_ids"][0].tolist()
    _check_length(ids, config, tokenizer)
    described = f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters"
    opened = OpenedModel(
        name,
        name,
        model,
        lambda: model(**inputs),
        {"tokens": pieces_of(tokenizer, ids)},
        words=described,
        input=f"“{text}”",
        ids=ids,
        two_sides=bool(getattr(config, "is_encoder_decoder", False)),
        doubt=loaded.doubt,
        text=text,
    )
    _give_writer(opened, model, tokenizer, inputs)
    opened.answer = classification.of_pretrained(model, opened.labels["tokens"]) or _prediction(opened, tokenizer, ids)
    opened.piece = partial(_piece, tokenizer)
    if opened.two_sides and options.generate is None:
        _answer(opened, options, model, tokenizer, inputs)
    elif opened.writer is None:
        opened.places = predictions.hidden_places(ids, getattr(tokenizer, "mask_token_id", None))
    return opened


def _piece(tokenizer: Any, token: int) -> str:
    """The label of one token."""
    return pieces_of(tokenizer, [token])[0]


def _prediction(
    made: OpenedModel, tokenizer: Any, ids: list[int]
) -> Callable[[Any], classification.Answer | None] | None:
    """How to read the next token, or the hidden ones, from the output; None for models without a vocabulary head."""
    piece = partial(_piece, tokenizer)

    def read(output: Any) -> classification.Answer | None:
        logits = getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() != 3:
            return None
        rows = logits[0].detach().cpu()
        if made.writer is not None:
            return predictions.next_token(rows[-1], piece)
        return predictions.hidden_tokens(rows, ids, getattr(tokenizer, "mask_token_id", None), piece)

    return read


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise BadValue(
            "RUN: the folder holds a Hugging Face model, which needs the package transformers. "
            'Install it: pip install "regard[huggingface]".'
        ) from None
    return transformers


def _check_length(ids: list[int], config: Any, tokenizer: Any) -> None:
    if not ids:
        raise BadValue("--text: the tokenizer returns no tokens for it. Give another text.")
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    bounds = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if bounds and len(ids) > min(bounds):
        raise BadValue(f"--text: expected at most {min(bounds):,} tokens, got {len(ids):,}. Shorten it.")


def pieces_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Labels of tokens: as in the vocabulary, with readable spaces and characters.

    Byte-level vocabularies write each byte as a character; such a token is decoded unless it is part of a character.
    """
    spelled = tokenizer.convert_tokens_to_ids("Ġ") not in (None, tokenizer.unk_token_id)
    labels = []
    for number, raw in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        text = str(raw)
        if spelled:
            plain = str(tokenizer.decode([number], clean_up_tokenization_spaces=False))
            text = plain if plain and "\ufffd" not in plain else text
        labels.append(text.replace("▁", " ") if text.strip("▁") else text)
    return labels


def _give_writer(made: OpenedModel, model: Any, tokenizer: Any, inputs: dict[str, Tensor]) -> None:
    if not callable(getattr(model, "prepare_inputs_for_generation", None)) or model.get_output_embeddings() is None:
        made.no_writer = f"{type(model).__name__} writes no text"
    elif getattr(model.config, "is_decoder", None) is False and not made.two_sides and _reads_both_ways(model):
        made.no_writer = f"{type(model).__name__} fills gaps and writes no text"
    else:
        made.writer = PretrainedWriter(model, tokenizer, inputs, made.two_sides)


def _reads_both_ways(model: Any) -> bool:
    """Whether a model is bidirectional and so cannot generate token by token."""
    return "MaskedLM" in type(model).__name__ or "ForPreTraining" in type(model).__name__


@torch.no_grad()
def _answer(made: OpenedModel, options: ViewOptions, model: Any, tokenizer: Any, inputs: dict[str, Tensor]) -> None:
    """Give the decoder its input: the target that the user gave, or the model's own output."""
    from regard_workbench.viewer.opening.generation import write

    writer = made.writer
    if options.target is not None:
        ids = tokenizer(text_target=whole_characters(options.target))["input_ids"]
    elif writer is not None:
        ids = write(writer, OWN_WORDS)[0]
    else:
        raise BadValue(f"--target: {made.no_writer}; give the target text.")
    start = PretrainedWriter(model, tokenizer, inputs, True).prompt
    read = torch.tensor([[*start, *ids[:-1]]], device=inputs["input_ids"].device)
    written = pieces_of(tokenizer, ids)
    made.labels = {**made.labels, "targets": written, "read": pieces_of(tokenizer, read[0].tolist())}
    made.input += f" → “{tokenizer.decode(ids, skip_special_tokens=True)}”"
    plain = {key: value for key, value in inputs.items() if key != "token_type_ids"}
    made.run = lambda: model(**plain, decoder_input_ids=read, use_cache=False)
    text = str(tokenizer.decode(ids, skip_special_tokens=True))

    def read_answer(output: Any) -> classification.Answer | None:
        logits = output.logits[0].detach().cpu()
        return predictions.written(logits, ids, text, partial(_piece, tokenizer))

    made.answer, made.places = read_answer, list(enumerate(written))


class PretrainedWriter:
    """A Hugging Face model that generates, with its own cache."""

    def __init__(self, model: Any, tokenizer: Any, inputs: dict[str, Tensor], two_sides: bool) -> None:
        self.model, self.tokenizer, self.two_sides = model, tokenizer, two_sides
        self.inputs = {key: value for key, value in inputs.items() if key != "token_type_ids"}
        self.device = inputs["input_ids"].device
        settings = [getattr(model, "generation_config", None), model.config]
        ends = next((end for config in settings if (end := getattr(config, "eos_token_id", None)) is not None), None)
        if isinstance(ends, list | tuple):
            ends = ends[0] if ends else None
        self.end: int | None = ends
        starts = (getattr(options, "decoder_start_token_id", None) for options in settings)
        start = next((token for token in starts if token is not None), getattr(model.config, "bos_token_id", None) or 0)
        self.prompt: list[int] = [start] if two_sides else inputs["input_ids"][0].tolist()
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])

    def begin(self) -> Any:
        """An empty cache; the encoded source, where there is one."""
        return {"past": None, "source": self._source() if self.two_sides else None}

    def _source(self) -> Any:
        return self.model.get_encoder()(**self.inputs)

    def advance(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits for tokens that continue a state, and the next state."""
        tokens = tokens.to(self.device)
        if self.two_sides:
            mask = {"attention_mask": self.inputs["attention_mask"]} if "attention_mask" in self.inputs else {}
            output = self.model(
                encoder_outputs=state["source"],
                decoder_input_ids=tokens,
                past_key_values=state["past"],
                use_cache=True,
                **mask,
            )
        else:
            output = self.model(input_ids=tokens, past_key_values=state["past"], use_cache=True)
        return output.logits, {"past": output.past_key_values, "source": state["source"]}

    def searching(self) -> Callable[[Tensor], Tensor]:
        """A step that recomputes every prefix: slow, but correct for every kind of cache."""
        source = self._source() if self.two_sides else None

        def step(prefixes: Tensor) -> Tensor:
            prefixes = prefixes.to(self.device)
            if source is None:
                logits = self.model(input_ids=prefixes, use_cache=False).logits
            else:
                rows = type(source)(last_hidden_state=source.last_hidden_state.expand(len(prefixes), -1, -1))
                mask = self.inputs.get("attention_mask")
                shared = {} if mask is None else {"attention_mask": mask.expand(len(prefixes), -1)}
                logits = self.model(encoder_outputs=rows, decoder_input_ids=prefixes, use_cache=False, **shared).logits
            log_probabilities: Tensor = logits[:, -1].float().log_softmax(-1).cpu()
            return log_probabilities

        return step

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Labels of tokens."""
        return pieces_of(self.tokenizer, ids)
