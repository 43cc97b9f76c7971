"""Floor 2: plug-ins that work on top of any proxy loss and leave nothing behind in the exported model."""

from proxemics.methods.base import Batch, Method, Needs, Step

__all__ = ["Batch", "Method", "Needs", "Step"]
