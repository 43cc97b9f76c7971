"""A queue of runs: a plan becomes cells, each cell a run folder, and the folders are the only state."""
