"""The picture of a network, made from its modules while they run: what is called, and what feeds what."""

from regard.observation.architecture.diagram import Diagram, DiagramNode, Edge, Frame
from regard.observation.architecture.network import drawn, of_layer, of_module
from regard.observation.architecture.svg import svg
from regard.observation.architecture.text import text

__all__ = ["Diagram", "DiagramNode", "Edge", "Frame", "drawn", "of_layer", "of_module", "svg", "text"]
