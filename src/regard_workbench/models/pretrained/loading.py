"""Load a checkpoint of transformers (safetensors) into regard's own `encoder`, `decoder` or `transformer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue
from regard_workbench.files import shown
from regard_workbench.models.parts.model import Model, build
from regard_workbench.models.pretrained import families  # noqa: F401 - each registers itself
from regard_workbench.models.pretrained.family import BASE, FAMILIES, Family, ModelPlan
from regard_workbench.models.pretrained.files import CONFIG, StoredWeights, read_object
from regard_workbench.models.pretrained.llama2c import is_llama2c, read_llama2c
from regard_workbench.models.pretrained.names import Line, NameTable, listed, matches
from regard_workbench.models.pretrained.own_form import is_own_form, load_own_form
from regard_workbench.models.pretrained.settings import Settings
from regard_workbench.models.pretrained.source import located


@dataclass(frozen=True)
class Pretrained:
    """A checkpoint: where it is, what its configuration says, and tensors that regard's model has no place for."""

    folder: Path
    family: Family
    architecture: str
    config: Mapping[str, Any]
    plan: ModelPlan
    left: Mapping[str, Tensor] = field(default_factory=dict)

    def table(self, prefix: str, sizes: Mapping[str, Tensor]) -> NameTable:
        """The table of names for a model with these tensors, where names of the base model have this prefix."""
        return NameTable([_with_prefix(line, prefix) for line in self.plan.lines], sizes)


def from_pretrained(
    name: str | Path,
    *,
    revision: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """The model of a folder in the Hub's form or of a Hub name, ready to evaluate: model(Batch.of(ids, keep)).

    Reads BERT, RoBERTa, GPT-2, Llama, Mistral, Qwen 2 and 3, T5, Marian, and what `save_pretrained` of regard wrote;
    and a file (.bin) in the format of llama2.c.
    A configuration that regard's models cannot represent is refused, with its key.
    """
    if is_llama2c(name):
        pretrained, weights = _read_llama2c(Path(name))
    else:
        folder = located(name, revision)
        if is_own_form(folder):
            return load_own_form(folder).to(device=device, dtype=dtype).eval()
        pretrained, weights = read_pretrained(folder)
    model = build(pretrained.plan.model, pretrained.plan.problem, **pretrained.plan.options)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, tensor in weights.items():
            parameters[key].copy_(tensor)
    model.pretrained = pretrained
    return model.to(device=device, dtype=dtype).eval()


def plan_pretrained(folder: Path) -> tuple[Pretrained, StoredWeights, dict[str, str]]:
    """A checkpoint without its weights; the weights in its files; and their names there by those of its table."""
    config = read_object(folder / CONFIG)
    family = family_of(config)
    stored = StoredWeights(folder)
    names = {_canonical(name, family, stored.tensors): name for name in stored.tensors}
    architecture, answers = family.answers(config)
    prefix = _prefix(family, names)

    def differ(*pair: str) -> bool:
        """Whether the files hold two tensors of these names of the table, and they differ."""
        keys = [names.get(prefix + name.removeprefix(BASE) if name.startswith(BASE) else name) for name in pair]
        first, second = (None if name is None else stored.read(name) for name in keys)
        return first is not None and second is not None and not torch.equal(first, second)

    plan = family.plan(Settings(config, family.defaults_of(config), names, differ), answers)
    return Pretrained(folder, family, architecture, config, plan), stored, names


def read_pretrained(folder: Path) -> tuple[Pretrained, dict[str, Tensor]]:
    """A checkpoint, and its weights by the names that they have in regard's model."""
    pretrained, stored, names = plan_pretrained(folder)
    family = pretrained.family
    table = pretrained.table(_prefix(family, names), _outline(pretrained.plan))
    table.check(shown(folder), {key: stored.tensors[name].shape for key, name in names.items()})
    used = {line.theirs for line in table.lines}
    surplus = [key for key in names if key not in used and not matches(key, family.ignored)]
    strange = [key for key in surplus if not matches(key, family.unused)]
    if strange:
        raise BadValue(
            f"{shown(folder)}: {len(strange)} tensors have no place in a model with this {CONFIG}: {listed(strange)}. "
            "Is it the configuration of these weights?"
        )
    weights = table.to_ours(lambda key: stored.read(names[key]))
    return replace(pretrained, left={key: stored.read(names[key]) for key in surplus}), weights


def _read_llama2c(path: Path) -> tuple[Pretrained, dict[str, Tensor]]:
    """A model in the format of llama2.c, as a checkpoint of Llama."""
    config, tensors = read_llama2c(path)
    family = family_of(config)
    architecture, answers = family.answers(config)
    plan = family.plan(Settings(config, family.defaults_of(config), tensors), answers)
    pretrained = Pretrained(path.parent, family, architecture, config, plan)
    table = pretrained.table(family.prefix, _outline(plan))
    table.check(shown(path), {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return pretrained, table.to_ours(tensors.__getitem__)


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that a configuration names."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise BadValue(
            f"config.json: model_type: expected one of {', '.join(FAMILIES)}, got {str(kind)[:80]!r}. Any model of "
            "transformers can be looked at with regard.observe and `regard view`."
        )
    return FAMILIES[kind]


def _prefix(family: Family, names: Collection[str]) -> str:
    """What begins the names of the base model in these files."""
    return family.prefix if any(name.startswith(family.prefix) for name in names) else ""


def _outline(plan: ModelPlan) -> dict[str, nn.Parameter]:
    """The parameters of a model without memory; a shared one appears once, under its first name."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return dict(build(plan.model, plan.problem, **plan.options).named_parameters())
    except BadValue as trouble:
        raise BadValue(f"config.json: no {plan.model} can be built from it: {trouble}") from None
    except (RuntimeError, OverflowError, MemoryError) as trouble:
        text = " ".join(str(trouble).split())[:100]
        raise BadValue(f"config.json: its sizes are impossible: {text}.") from None


def _canonical(name: str, family: Family, names: Collection[str]) -> str:
    """The name of a tensor in the family's tables: old names of normalisations, and aliases of what is not there."""
    if "LayerNorm." in name:
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    alias = family.aliases.get(name, name)
    return name if alias in names else alias


def _with_prefix(line: Line, prefix: str) -> Line:
    return replace(line, theirs=prefix + line.theirs.removeprefix(BASE)) if line.theirs.startswith(BASE) else line
