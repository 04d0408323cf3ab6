"""From operations to parts: which box each operation belongs to, and which boxes its inputs come from.

An operation inside a module that is drawn as one box belongs to that box. Outside of boxes, one that multiplies by
weights belongs to the module that owns them, whether that was called or not; one inside `attend` to that call; one that
joins the outputs of two parts (a sum, a product, a concatenation) is a part by itself. All others only hand on.
"""

from __future__ import annotations

from collections.abc import Set

from torch import nn

from regard.observation.architecture.graph import BOXES, Graph, Key, Part
from regard.observation.architecture.labels import is_one_box
from regard.observation.architecture.record import ModuleCall, Operation, Recording, Storage

Elements = dict[Key, None]  # the parts a value comes from, in order
SIGNS = {
    "add": "+",
    "sub": "+",
    "rsub": "+",
    "mul": "×",
    "div": "×",
    "cat": "∥",
    "stack": "∥",
    "mm": "·",
    "bmm": "·",
    "baddbmm": "·",
    "addmm": "·",
    "softmax": "softmax",
    "log_softmax": "softmax",
}
_WEIGHTED = {  # operations whose weights a module may hold itself
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "convolution",
    "embedding",
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "fused_rms_norm",
}
_STORES = ("copy", "index_put", "index_put_impl", "scatter", "slice_scatter", "select_scatter", "fill", "index_copy")


def contract(module: nn.Module, recording: Recording, apart: Set[str] = frozenset()) -> Graph:
    """The parts of a recording. Calls of the modules in `apart` are separate parts, those of others one."""
    return _Contraction(module, recording, apart).graph


class _Contraction:
    def __init__(self, module: nn.Module, recording: Recording, apart: Set[str]) -> None:
        self.recording, self.apart, self.graph = recording, apart, Graph()
        self.one_box = {path for path, submodule in module.named_modules() if path and is_one_box(submodule)}
        self.used = {path for event in recording.events if (path := self._box(event)) is not None}
        self.comes: dict[Storage, Elements] = {}
        self.wrote: dict[Storage, ModuleCall] = {}  # the call of the box that wrote a storage last
        self.seen: set[tuple[Key, object]] = set()  # parts that ran at a place without reading themselves
        for storage, name in recording.inputs.items():
            self.graph.parts["input", name] = Part("input", "", detail=name)
            self.comes[storage] = {("input", name): None}
        for number, event in enumerate(recording.events):
            self._follow(number, event)
        self.graph.parts["output",] = Part("output", "", first=len(recording.events), last=len(recording.events))
        for storage in recording.outputs:
            for key in self._elements(storage):
                self._reads(("output",), key, len(recording.events))

    def _box(self, event: Operation) -> str | None:
        return next((call.path for call in event.running if call.path in self.one_box), None)

    def _elements(self, storage: Storage) -> Elements:
        if storage in self.recording.parameters:
            return {("learned", self.recording.parameters[storage]): None}
        return self.comes.get(storage, {})

    def _follow(self, number: int, event: Operation) -> None:
        read = [self._elements(storage) for storage in event.reads]
        together: Elements = {key: None for some in read for key in some}
        box = self._box(event)
        if box is not None:
            self._inside_box(number, event, box)
        elif event.attending is not None:
            key = ("attend", event.attending.call)
            place = event.attending.place
            vertex = self._part(key, "attend", self._path(event), number, event.attending.call, place)
            vertex.detail, vertex.place = event.attending.detail, place
            for source in together:
                if source != key:
                    self._reads(key, source, number)
            self._write(event, {key: None})
        elif event.op.rstrip("_") in _STORES:
            for storage in event.writes:
                self.comes[storage] = {**self.comes.get(storage, {}), **together}
        else:
            self._write(event, self._outside(number, event, read, together))

    def _inside_box(self, number: int, event: Operation, box: str) -> None:
        call = next(call for call in event.running if call.path == box)
        key: Key = ("box", box, call.number) if box in self.apart else ("box", box)
        vertex = self._part(key, "box", box, number, call)
        for storage in event.reads:
            writer = self.wrote.get(storage)
            kept = writer is not None and writer.number == 0 and self.recording.called[box] > 2
            for source in self._elements(storage):
                if source == key:  # what the first call left for all later ones, such as projected keys, is no state
                    vertex.again = vertex.again or not (writer == call or kept)
                elif not (source[0] == "learned" and self._owned(str(source[1]), box)):
                    self._reads(key, source, number)
        self._write(event, {key: None})
        self.wrote.update(dict.fromkeys(event.writes, call))

    def _outside(self, number: int, event: Operation, read: list[Elements], together: Elements) -> Elements:
        """Follow an operation outside of boxes; return the parts that its result comes from."""
        sign, path = SIGNS.get(event.op.rstrip("_"), "?"), self._path(event)
        learned = [str(key[1]) for key in together if key[0] == "learned"]
        if len(learned) < len(together):
            for name in learned:
                owner = name.rpartition(".")[0]
                is_own = owner == "" or any(call.path == owner for call in event.running)
                if not is_own or event.op in _WEIGHTED:
                    return self._raw(number, event, owner if not is_own else name, name, together)
        filled = [some for some in read if some]
        if sign != "softmax" and (len(filled) < 2 or len(together) < 2 or all(some == filled[0] for some in filled)):
            return together
        if not together or (sign == "softmax" and learned):
            return together
        key = ("join", sign, path, event.place, self._latest(together))
        vertex = self._part(key, "join", path, number, number, event.place)
        vertex.sign, vertex.place = sign, event.place
        vertex.shape = max(vertex.shape, self.recording.shapes.get(event.writes[0], ()), key=_numbers)
        for source in together:
            self._reads(key, source, number)
        return {key: None}

    def _raw(self, number: int, event: Operation, path: str, name: str, together: Elements) -> Elements:
        """Follow an operation that uses weights outside of a call of the module that owns them."""
        covering = next((box for box in self.used if self._owned(name, box)), None)
        key: Key = ("raw", path) if covering is None else ("box", covering)
        if covering is not None and covering in self.apart:
            key = ("box", covering, 0)
        role = "raw" if covering is None else "box"
        vertex = self._part(key, role, covering or path, number, number, event.place)
        if covering is None:
            owner = name.rpartition(".")[0]
            vertex.owns |= {str(source[1]) for source in together if source[0] == "learned" and _owner(source) == owner}
        itself = False
        for source in together:
            if source == key:
                itself = True
            elif not (source[0] == "learned" and (str(source[1]) in vertex.owns or self._owned(str(source[1]), path))):
                self._reads(key, source, number)
        if itself and (key, event.place) in self.seen:
            vertex.again = True
        if not itself:
            self.seen.add((key, event.place))
        return {key: None}

    def _reads(self, key: Key, source: Key, number: int) -> None:
        if source[0] == "learned" and source not in self.graph.parts:
            name = str(source[1])
            if any(self._owned(name, box) for box in self.used):
                return  # weights that a box shares with another
            self.graph.parts[source] = Part("learned", name, first=number, last=number, owns={name})
        if source in self.graph.parts:
            self.graph.connect(source, key, number)

    def _part(self, key: Key, role: str, path: str, number: int, run: object, place: object = None) -> Part:
        vertex = self.graph.parts.setdefault(key, Part(role, path, first=number))
        vertex.last = number
        vertex.runs.setdefault(place, set()).add(run)
        return vertex

    def _write(self, event: Operation, elements: Elements) -> None:
        for storage in event.writes:
            self.comes[storage] = elements
            self.wrote.pop(storage, None)

    def _latest(self, elements: Elements) -> Key | None:
        """The last of the boxes that a value comes from: it tells apart what a loop over layers does at one place."""
        boxes = [key for key in elements if key in self.graph.parts and self.graph.parts[key].role in BOXES]
        return max(boxes, key=lambda key: self.graph.parts[key].first, default=None)

    @staticmethod
    def _path(event: Operation) -> str:
        return event.running[-1].path if event.running else ""

    @staticmethod
    def _owned(parameter: str, path: str) -> bool:
        return parameter.startswith(f"{path}.")


def _owner(learned: Key) -> str:
    return str(learned[1]).rpartition(".")[0]


def _numbers(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape[1:]:
        product *= size
    return product if len(shape) > 1 else 0
