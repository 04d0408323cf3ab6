"""What several verbs share: the parser, settings as options, text on a terminal, what exists by name. Not a verb."""
