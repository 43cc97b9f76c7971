"""Floor 6: the command line; one short file a verb, each importing its room only when called."""
