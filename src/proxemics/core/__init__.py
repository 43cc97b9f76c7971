"""Floor 0: errors, configuration, sphere geometry, seeds and atomic files."""
