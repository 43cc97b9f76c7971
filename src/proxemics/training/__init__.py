"""Floor 4: the loop, parameter groups, checkpoints and the run folder."""
