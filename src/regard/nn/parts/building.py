"""Build mechanisms by name. `build` has one overload per name, so that type checkers know the class of the layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from regard.errors import BadValue
from regard.nn.parts.mechanism import MECHANISMS, Mechanism, entry, names, options_of
from regard.registry import parse
from regard.support.options import converted, read_options

if TYPE_CHECKING:
    from regard.nn.additive import Additive
    from regard.nn.causal import Causal
    from regard.nn.concat import Concat
    from regard.nn.dot import Dot
    from regard.nn.dynamic_memory import DynamicMemory
    from regard.nn.general import General
    from regard.nn.gla import GlobalQuery
    from regard.nn.global_ import Global
    from regard.nn.global_layer import GlobalLayer
    from regard.nn.hard import Hard
    from regard.nn.interactive import Interactive
    from regard.nn.key_value_memory import KeyValueMemory
    from regard.nn.linear import Linear
    from regard.nn.local import Local
    from regard.nn.local_layer import LocalLayer
    from regard.nn.local_m import LocalM
    from regard.nn.local_p import LocalP
    from regard.nn.multihead import Multihead
    from regard.nn.ntm import NTM
    from regard.nn.query_key_memory import QueryKeyMemory
    from regard.nn.relative import Relative
    from regard.nn.static_memory import StaticMemory


@overload
def build(name: Literal["additive"], dim: int, **options: Any) -> Additive: ...
@overload
def build(name: Literal["causal"], dim: int, **options: Any) -> Causal: ...
@overload
def build(name: Literal["concat"], dim: int, **options: Any) -> Concat: ...
@overload
def build(name: Literal["dot"], dim: int, **options: Any) -> Dot: ...
@overload
def build(name: Literal["dynamic-memory"], dim: int, **options: Any) -> DynamicMemory: ...
@overload
def build(name: Literal["general"], dim: int, **options: Any) -> General: ...
@overload
def build(name: Literal["global", "soft"], dim: int, **options: Any) -> Global: ...
@overload
def build(name: Literal["global-layer"], dim: int, **options: Any) -> GlobalLayer: ...
@overload
def build(name: Literal["global-query", "gla"], dim: int, **options: Any) -> GlobalQuery: ...
@overload
def build(name: Literal["hard"], dim: int, **options: Any) -> Hard: ...
@overload
def build(name: Literal["interactive"], dim: int, **options: Any) -> Interactive: ...
@overload
def build(name: Literal["key-value-memory"], dim: int, **options: Any) -> KeyValueMemory: ...
@overload
def build(name: Literal["linear"], dim: int, **options: Any) -> Linear: ...
@overload
def build(name: Literal["local"], dim: int, **options: Any) -> Local: ...
@overload
def build(name: Literal["local-layer"], dim: int, **options: Any) -> LocalLayer: ...
@overload
def build(name: Literal["local-m"], dim: int, **options: Any) -> LocalM: ...
@overload
def build(name: Literal["local-p"], dim: int, **options: Any) -> LocalP: ...
@overload
def build(name: Literal["multihead"], dim: int, **options: Any) -> Multihead: ...
@overload
def build(name: Literal["ntm"], dim: int, **options: Any) -> NTM: ...
@overload
def build(name: Literal["query-key-memory"], dim: int, **options: Any) -> QueryKeyMemory: ...
@overload
def build(name: Literal["relative"], dim: int, **options: Any) -> Relative: ...
@overload
def build(name: Literal["static-memory"], dim: int, **options: Any) -> StaticMemory: ...
@overload
def build(name: str, dim: int, **options: Any) -> Mechanism: ...
def build(name: str, dim: int, **options: Any) -> Mechanism:
    """Build the mechanism of that name, for instance `build("local", dim=256, num_heads=8, window=65)`.

    The name may contain options: `build("local(window=65)", dim=256)`. Keyword arguments take precedence over them.
    """
    plain, inside = parse(name)
    mechanism = entry(plain)
    accepted = options_of(mechanism.layer)
    chosen = read_options(mechanism.name, mechanism.layer, {**inside, **options}, accepted)
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in chosen and n != "dim"]
    if missing:
        raise BadValue(
            f"{missing[0]}: {mechanism.name} needs this option, for instance "
            f"build({mechanism.name!r}, dim={dim}, {missing[0]}={mechanism.needs.get(missing[0], '…')})."
        )
    return mechanism.layer(dim, **chosen)


def build_causal(name: str, dim: int, **options: Any) -> Mechanism:
    """Build a causal mechanism, for instance for the own positions of a decoder; raise where it cannot be causal."""
    plain, inside = parse(name)
    spec = entry(plain)
    if spec.causal == "no":
        able = [candidate for candidate in names() if MECHANISMS[candidate].causal != "no"]
        raise BadValue(
            f"attention: {spec.name} sees the whole sequence and cannot be causal, so a decoder cannot use it for its "
            f"own positions. These can: {', '.join(able)}."
        )
    chosen = {**inside, **options}
    if spec.causal == "option":
        if "causal" in chosen and not converted("causal", chosen["causal"], bool, spec.name):
            raise BadValue(
                f"attention: a decoder cannot attend to later positions, got {spec.name} with causal=False. "
                f"Leave causal out."
            )
        chosen["causal"] = True
    elif converted("bidirectional", chosen.get("bidirectional", False), bool, spec.name):
        raise BadValue(
            f"attention: a decoder cannot attend to later positions, got {spec.name} with bidirectional=True. "
            f"Leave bidirectional out."
        )
    return build(plain, dim, **chosen)


def build_bidirectional(name: str, dim: int, **options: Any) -> Mechanism:
    """Build a mechanism for an encoder: one that can read in both directions does, unless its options say otherwise."""
    plain, inside = parse(name)
    both = {"bidirectional": True} if "bidirectional" in options_of(entry(plain).layer) else {}
    return build(plain, dim, **{**both, **inside, **options})


def build_across(name: str, dim: int, **options: Any) -> Mechanism:
    """Build a mechanism for cross-attention, for instance from a decoder to its encoder.

    Step-by-step decoding does not know how many queries will follow, so queries cannot be aligned with the end of the
    source. Masks and positions are therefore aligned with its beginning, in training as in decoding.
    """
    plain, inside = parse(name)
    chosen = {**inside, **options}
    if "align" in options_of(entry(plain).layer):
        chosen.setdefault("align", "top-left")
        if chosen["align"] != "top-left":
            raise BadValue(
                f"align: step-by-step decoding does not know how many queries will follow, so a decoder aligns its "
                f"cross-attention at the top left; got {chosen['align']!r}. Leave align out."
            )
    return build(plain, dim, **chosen)
