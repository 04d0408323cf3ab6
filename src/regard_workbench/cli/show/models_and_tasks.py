"""The facts of a model or a task for `regard show`: answers, options, recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch

from regard.support.options import read_options
from regard_workbench import models, tasks
from regard_workbench.cli.common import catalogue, docstring
from regard_workbench.cli.show import options, toy
from regard_workbench.inspection.architecture import of_model as picture_of_model
from regard_workbench.models.parts.model import MODELS, fits, options_of
from regard_workbench.tasks.answers import NEEDS
from regard_workbench.tasks.parts.task import TASKS

Facts = dict[str, Any]

# Meanings of options that several models share; a model's own docstring overrides them.
SHARED_OPTIONS = {
    "dim": "width of the rows between all layers",
    "layers": "how many layers, of the encoder where there are two sides",
    "decoder_layers": "how many layers the decoder has; as many as the encoder by default",
    "num_heads": "heads of each attention",
    "attention": "another mechanism instead of the default one, for instance local(window=65)",
    "cross": "the mechanism with which the decoder attends to the encoder",
    "positions": "position encoding: sinusoidal, sinusoidal-split, learned, counted, half-wave or none",
    "dropout": "share of activations dropped in training",
    "word_dropout": "share of the words (of a vocabulary) whose embedding is zero for a training step",
    "attention_dropout": "share of the attention weights dropped in training",
    "hidden_dropout": "share of activations dropped inside the feed-forward blocks; like dropout by default",
    "norm": "normalisation before (pre) or after (post) each sublayer, or none",
    "residual": "whether the input of each sublayer is added to its result",
    "activation": "non-linearity of the feed-forward blocks: gelu, gelu-tanh, relu, silu, tanh or sigmoid",
    "hidden": "width inside the feed-forward blocks, or of the controller",
    "gated": "feed-forward blocks with a gate",
    "tied": "embedding and output share their weights",
    "tied_source": "source and target share their embedding",
    "norm_type": "kind of normalisation: layer or rms",
    "norm_eps": "what normalisations add to the variance; torch's default if none",
    "feed_forward_bias": "linear maps of feed-forward blocks add a learned vector",
    "shared_positions": "all layers add the same table of distances to their scores, as in T5",
    "scaled_embedding": "embeddings of ids are multiplied by √dim",
    "embedding_norm": "normalisation of embeddings: none, layer or rms",
    "segments": "parts of a text that have a vector of their own, as BERT's two sentences; 0 for none",
    "head_bias": "a learned vector is added to the logits",
    "head_scale": "factor of the rows that the head reads",
    "pooling": "what stands for an example: the mean over its positions, or the first of them",
    "before_head": "a layer before the head: none, tanh, norm or gelu-norm",
    "preset": "options and optimiser settings of a paper under one name; options beside it override them",
    "form": "of a language model: decoder or encoder-decoder",
    "upsample": "positions that the encoder reads as one; its rows are brought back to the rate of the input",
    "cell": "rnn, gru or lstm",
    "segment": "positions processed at once",
    "memory": "earlier positions that stay visible",
    "slots": "number of memory slots",
    "width": "width of a memory slot",
    "read_heads": "number of read heads",
    "write_heads": "number of write heads",
    "controller": "lstm or feed-forward",
    "shift_range": "largest shift of a head in one step",
    "initial": "initial memory: constant or learned",
}


def of_item(item: catalogue.Item) -> Facts:
    """The facts of a model or a task."""
    facts = (of_model if item.kind == "models" else of_task)(item.name, item.given)
    return {**facts, "namesakes": catalogue.namesakes(item)}


def _described(kind: str, name: str, cls: type) -> Facts:
    """What the docstring of a class says."""
    doc = docstring.read(cls)
    return {
        "kind": kind,
        "name": name,
        "summary": doc.summary,
        "body": [{"kind": section, "text": text} for section, text in doc.body],
        "paper": doc.labelled.get("Paper", doc.labelled.get("Papers", "")),
    }


def of_model(name: str, given: Mapping[str, Any]) -> Facts:
    """The facts of a model."""
    cls = MODELS[name]
    declared = options_of(cls)
    read_options(name, cls, given, declared)  # raises for unknown options
    able = [task for task in tasks.names() if any(fits(cls, problem) for problem in catalogue.posed(task))]
    return {
        **_described("models", name, cls),
        "gives": {need: NEEDS[need] for need in cls.gives},
        "tasks": able,
        "attention": cls.takes_attention,
        "attention_default": cls.attention_default,
        "options": options.rows(declared, SHARED_OPTIONS | docstring.meanings(cls)),
        "example": f"regard train {_usual_task(name, able)} --model {_written(name, given)}" if able else "",
        "picture": None,
        **(_network(name, given, _usual_task(name, able)) if able else {}),
    }


def _network(name: str, given: Mapping[str, Any], task_name: str) -> Facts:
    """The picture of the model as it is built for a task."""
    with toy.seeded():
        task = tasks.build(task_name)
        problem = models.problem_for(name, task.problems())
        task.pose(problem)
        built = models.build(name, problem, **given)
        examples = task.examples("train")
        drawn = task.batch(examples, range(min(2, len(examples))), torch.Generator(), built)
        picture = picture_of_model(built, drawn)
    count = sum(parameter.numel() for parameter in built.parameters())
    return {"architecture": picture.to_dict(), "built_for": task_name, "parameters": count}


INPUTS = {"text": '--text "…"', "image": "--image FILE", "sound": "--sound FILE", "table": "--table FILE"}


def of_task(name: str, given: Mapping[str, Any]) -> Facts:
    """The facts of a task."""
    cls = TASKS[name]
    parameters = dict(inspect.signature(cls).parameters)
    read_options(name, cls, given, parameters)  # raises for unknown options
    problems = catalogue.posed(name)
    return {
        **_described("tasks", name, cls),
        "answers": {type(problem.answer).__name__: problem.answer.words for problem in problems},
        "models": [model for model in models.names() if any(fits(MODELS[model], posed) for posed in problems)],
        "metric": cls.metric.name,
        "higher_is_better": cls.metric.higher_is_better,
        "recipe": dataclasses.asdict(cls.recipe),
        "reaches": catalogue.reached(name),
        "options": options.rows(parameters, docstring.meanings(cls)),
        "example": f"regard train {_written(name, given)} --out runs/{name}",
        "commands": _commands(name, given),
        "own_input": _own_input(name),
        "picture": None,
    }


def _commands(name: str, given: Mapping[str, Any]) -> list[str]:
    """What can be done with a task, in order: each command uses the run of the first."""
    cls, written, run = TASKS[name], _written(name, given), f"runs/{name}"
    tried = " ".join(f'"{word}"' if " " in word else word for word in cls.tried)
    return [
        f"regard train {written} --out {run}",
        f"regard evaluate {run}",
        f"regard predict {run} {tried}" + (f" --figure {name}.svg" if cls.pictured else ""),
        *([f"regard chat {run}"] if cls.defines("conversation") else []),
        f"regard view {run}",
        f"regard compare {written}",
    ]


def _own_input(name: str) -> str:
    """How an input of one's own is given to a run; empty where texts are, which a command above shows."""
    cls = TASKS[name]
    takes = cls.takes if cls.together else cls.takes[:1]
    read = " ".join(INPUTS[kind] for kind in takes)
    return f"regard predict runs/{name} {read}" if "FILE" in read else ""


def _usual_task(name: str, able: list[str]) -> str:
    """The task whose recipe names the model, else the first one that it fits."""
    return next((task for task in able if TASKS[task].recipe.model == name), able[0])


def _written(name: str, given: Mapping[str, Any]) -> str:
    if not given:
        return name
    return f'"{name}({", ".join(f"{option}={value}" for option, value in given.items())})"'
