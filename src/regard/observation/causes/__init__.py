"""From where a model looked to what that did: patching, attribution of the answer, circuits, faithfulness."""
