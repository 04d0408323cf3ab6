"""Every architecture of the installed transformers: listed from its registries, built small, and called."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.architectures import inputs, shrinking
from tests.architectures.building import Built, NoModel, NotBuilt, attempt
from tests.architectures.repairs import mended

SPARSE = re.compile(r"\w+_sparse|indexed_attention")  # kinds of layers
Check = Callable[[Any, dict[str, Any]], int]  # a model and its inputs → attention calls of a pass


def names() -> list[str]:
    """The model types of the registry."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def classes(name: str, config: Any) -> list[type]:
    """Model classes of an architecture, plain ones first: from the registries, else from its own module."""
    import transformers
    from transformers.models.auto import modeling_auto

    tables = sorted(
        (table for table in vars(modeling_auto) if re.fullmatch(r"MODEL_.*MAPPING_NAMES", table)),
        key=lambda table: (table != "MODEL_MAPPING_NAMES", "PRETRAINING" not in table, table),
    )
    found: list[str] = []
    for table in tables:
        entry = getattr(modeling_auto, table).get(name, ())
        found += [entry] if isinstance(entry, str) else list(entry)
    kinds = [getattr(transformers, one) for one in dict.fromkeys(found) if hasattr(transformers, one)]
    kinds = [kind for kind in kinds if _takes(kind) in (type(config), None)] or kinds
    return kinds or _of_module(config)  # parts of a model do not represent it


def _of_module(config: Any) -> list[type]:
    """Models of the architecture's own files that take this configuration."""
    package = importlib.import_module(type(config).__module__.rpartition(".")[0])
    found: list[type] = []
    for file in sorted(Path(package.__path__[0]).glob("modeling_*.py")):
        place = f"{package.__name__}.{file.stem}"
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        found += [
            kind
            for kind in vars(module).values()
            if inspect.isclass(kind)
            and hasattr(kind, "from_pretrained")
            and kind.__module__ == place
            and _takes(kind) is type(config)
            and kind.forward is not torch.nn.Module.forward
        ]
    return found


def _takes(kind: type) -> type | None:
    """The class of configurations that a model is made from: as its own __init__ says, else its class."""
    said = inspect.signature(kind.__init__).parameters.get("config")
    wanted = getattr(kind, "config_class", None) if said is None else said.annotation
    if isinstance(wanted, str):
        wanted = getattr(importlib.import_module(kind.__module__), wanted, None)
    return wanted if inspect.isclass(wanted) and hasattr(wanted, "to_dict") else getattr(kind, "config_class", None)


def build(name: str, attend: str | None, check: Check, reasons: list[str]) -> Built:
    """A small model of an architecture and valid inputs. `attend`: its attn_implementation."""
    from transformers import CONFIG_MAPPING

    config = attempt(lambda: CONFIG_MAPPING[name](), "configuration", reasons) or _composite(name, reasons)
    if config is None:
        raise NotBuilt(reasons)
    _use_sparse_layers(config)
    kinds = classes(name, config)
    found = _built(config, kinds, attend, check, reasons)
    if found is None and all(kind.forward is torch.nn.Module.forward for kind in kinds):
        # A container without a forward pass: represented by its first part that attends.
        for part in vars(config).values():
            if not (hasattr(part, "to_dict") and hasattr(part, "model_type")) or (found is not None and found.calls):
                continue
            built = _built(part, _of_module(part), attend, check, reasons)
            found = built if built is not None and (found is None or built.calls) else found
    if found is None and not kinds:
        raise NoModel("no model class takes this configuration by itself: it is a part of others")
    if found is None:
        raise NotBuilt(reasons)
    return found


def _use_sparse_layers(config: Any) -> None:
    """Let every second layer be one that chooses keys, where a model has such layers but its defaults have none."""
    for part in (config, *(one for one in vars(config).values() if hasattr(one, "layer_types"))):
        layers = getattr(part, "layer_types", None)
        if not isinstance(layers, list) or any(SPARSE.fullmatch(one) for one in layers):
            continue
        package = importlib.import_module(type(part).__module__.rpartition(".")[0])
        texts = [file.read_text() for file in sorted(Path(package.__path__[0]).glob("modeling_*.py"))]
        kinds = [kind for text in texts for kind in re.findall(r'layer_types\[\w+\] == "(\w+)"', text)]
        kind = next(filter(SPARSE.fullmatch, kinds), None)
        if kind is not None:
            part.layer_types = [layer if at % 2 == 0 else kind for at, layer in enumerate(layers)]


def _built(config: Any, kinds: list[type], attend: str | None, check: Check, reasons: list[str]) -> Built | None:
    """The first set of rules that gives a model that runs and attends; else one that only runs."""
    kinds = [kind for kind in kinds if kind.forward is not torch.nn.Module.forward]
    spare: Built | None = None
    for at, rules in enumerate(shrinking.SETS if kinds else ()):
        if spare is not None and spare.calls and at > 2:  # it runs, but with text alone
            return spare
        if spare is not None and not spare.calls and rules is not shrinking.DEEPER:
            continue
        smaller = attempt(lambda rules=rules: shrinking.small(config, rules), f"small configuration {at}", reasons)
        for kind in [] if smaller is None else kinds[: 1 if at else 3]:
            model = attempt(
                lambda kind=kind, smaller=smaller: _made(kind, smaller, attend), f"{kind.__name__} {at}", reasons
            )
            given = None if model is None else next(_working(model, reasons), None)
            if given is None:
                continue
            built = Built(model, given, kind.__name__, at, check(model, given))
            if built.calls and inputs.complete(model, given):
                return built
            spare = built if spare is None or built.calls > spare.calls else spare
    return spare


def _composite(name: str, reasons: list[str]) -> Any:
    """Composite configurations: a common encoder and decoder."""
    from transformers import CONFIG_MAPPING, BertConfig, ViTConfig, Wav2Vec2Config

    kind = CONFIG_MAPPING[name]
    first = {"vision": ViTConfig, "speech": Wav2Vec2Config}.get(name.partition("-")[0], BertConfig)
    decoder = BertConfig(is_decoder=True, add_cross_attention=True)
    for maker in (
        lambda: kind.from_encoder_decoder_configs(first(), decoder),
        lambda: kind.from_text_vision_configs(BertConfig(), ViTConfig()),
        lambda: kind.from_vision_text_configs(ViTConfig(), BertConfig()),
    ):
        made = attempt(maker, "composite", reasons)
        if made is not None:
            return made
    return None


def _made(kind: Any, config: Any, attend: str | None) -> Any:
    torch.manual_seed(0)
    if attend is not None:
        config._attn_implementation = attend
    count = _parameters(kind, config)
    if count > 150_000_000:
        raise MemoryError(f"{count / 1e6:.0f} million parameters")
    model = kind._from_config(config) if hasattr(kind, "_from_config") else kind(config)
    if attend is not None and hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(attend)
    return model.float().eval()


def _parameters(kind: Any, config: Any) -> int:
    """The number of parameters of a model; 0 where it cannot be built on the meta device."""
    import copy

    try:
        with torch.device("meta"):
            return sum(one.numel() for one in kind(copy.deepcopy(config)).parameters())
    except Exception:
        return 0


def _working(model: Any, reasons: list[str]) -> Iterator[dict[str, Any]]:
    """Valid inputs of a model, found by trial; gives up when errors stay the same."""
    known: set[str] = set()
    stale = 0
    names = inputs.accepted(model)
    for length, variant in [
        (17, 0),
        (17, 1),
        (17, 5),
        (64, 0),
        (17, 2),
        (17, 3),
        (17, 4),
        (17, 6),
        (17, 8),
        (128, 0),
        (512, 0),
    ]:
        torch.manual_seed(1)
        maker = inputs.Maker(model.config, length, variant, names)
        tries = list(inputs.guesses(model, maker))
        dummies = attempt(lambda: dict(model.dummy_inputs), "dummy_inputs", []) if variant == 1 else None
        if dummies and set(dummies) <= set(names):
            tries.append(dummies)
        before = len(reasons)
        for given in tries:
            found = _fitted(model, given, maker, reasons)
            if found is not None:
                yield found
        errors = set(reasons[before:])
        stale = stale + 1 if errors <= known else 0
        known |= errors
        if stale >= 3:
            break


def _fitted(model: Any, given: dict[str, Any], maker: Any, reasons: list[str]) -> dict[str, Any] | None:
    """Valid inputs of a model, repaired step by step from its error messages."""
    for _ in range(6):
        try:
            with torch.no_grad():
                torch.manual_seed(2)
                model(**given)
            return given
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            reasons.append(f"forward({', '.join(given)}): {reason[:300]}")
            more = mended(str(error), model, given, maker)
            if more is None:
                return None
            given = more
    return None
