"""The embedded index: one folder, one writer, many readers."""
