"""Image embeddings that hold up on classes and domains never seen in training."""

from proxemics.__about__ import __version__

__all__ = ["__version__"]
