"""`ntm`: a Neural Turing Machine, a controller that learns to use a memory."""

from __future__ import annotations

from typing import Any, ClassVar

from regard.nn.ntm import Machine
from regard_workbench.models.parts.model import Model, model
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Vectors


@model("ntm", gives=("past",), reads=(Vectors,))
class NTMModel(Model):
    """A controller with read and write heads over a memory of slots; logits at every step.

    Paper: Graves et al. 2014. The defaults are those of its copy experiment with an LSTM controller.
    """

    attention_default: ClassVar[str] = "ntm"
    width_option: ClassVar[str] = "hidden"
    shows: ClassVar[dict[str, str]] = {"machine.tape": "the memory"}

    def __init__(
        self,
        problem: Problem,
        *,
        slots: int = 128,
        width: int = 20,
        read_heads: int = 1,
        write_heads: int = 1,
        controller: str = "lstm",
        hidden: int = 100,
        shift_range: int = 1,
        initial: str = "constant",
    ) -> None:
        super().__init__(problem)
        assert isinstance(problem.inputs, Vectors)
        self.machine = Machine(
            problem.inputs.width,
            problem.answer.outputs,
            slots=slots,
            width=width,
            read_heads=read_heads,
            write_heads=write_heads,
            controller=controller,
            hidden=hidden,
            shift_range=shift_range,
            initial=initial,
        )
        self.head = problem.answer.head()  # the machine's own outputs are the answer

    def forward(self, batch: Batch) -> Any:
        reads = self.machine(batch.inputs.to(self.machine.tape.heads.weight.dtype), keep=batch.keep)
        return self.head(reads[0], batch)
