"""Patch points for recording: modules that may write their attention out, and their parts that run unrecorded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from torch import nn

from regard.observation.capture.interception import PatchPoint
from regard.observation.capture.written.detection import CONTAINERS, recorded_kinds, should_be_seen, takes_own_path
from regard.observation.capture.written.recording import recording, unrecorded


def recording_points(
    kinds: Mapping[type[nn.Module], nn.Module], parts: Sequence[nn.Module], adapted: Collection[type]
) -> Iterator[PatchPoint]:
    """Patch points for classes of modules: to record, to leave unrecorded, and to mark as having run.

    `adapted`: classes whose forward has an adapter already.
    """
    recorded, helpers = recorded_kinds(kinds, adapted)
    attends = recorded | set(adapted) | {kind for kind, module in kinds.items() if should_be_seen(module)}
    attends -= helpers
    for kind in attends:
        yield PatchPoint(kind, "forward", scope=recording if kind in recorded else None, counted=True)
    for module in parts:  # a forward on the instance (hooks of other libraries) bypasses the class's
        if "forward" in vars(module) and type(module) in attends:
            yield PatchPoint(module, "forward", scope=recording if type(module) in recorded else None, counted=True)
    if recorded:
        apart: dict[type[nn.Module], None] = {}
        deep: dict[int, bool] = {}
        for module in parts:
            if type(module) in recorded:
                apart |= dict.fromkeys(_apart(module, attends, deep))
        yield from (PatchPoint(kind, "forward", scope=unrecorded) for kind in apart if kind not in recorded)


def _apart(module: nn.Module, attends: Collection[type], deep: dict[int, bool]) -> Iterator[type[nn.Module]]:
    """Classes of submodules that attend themselves, or take another path while a mode is active."""
    for submodule in module._modules.values():
        if isinstance(submodule, CONTAINERS):
            yield from _apart(submodule, attends, deep)
        elif submodule is not None and _attends(submodule, attends, deep):
            yield type(submodule)


def _attends(module: nn.Module, attends: Collection[type], deep: dict[int, bool]) -> bool:
    if id(module) not in deep:
        deep[id(module)] = False  # guards against a module that contains itself
        deep[id(module)] = (
            type(module) in attends
            or takes_own_path(module)
            or any(
                _attends(submodule, attends, deep) for submodule in module._modules.values() if submodule is not None
            )
        )
    return deep[id(module)]
