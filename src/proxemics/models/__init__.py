"""Floor 1: the embedder, its trunk, weights and pooling, hooks into its stages, and bundles on disk."""

from proxemics.models.bundle import load_bundle, load_labels, save_bundle
from proxemics.models.embedder import Embedder, Encoded
from proxemics.models.hooks import StageHook

__all__ = ["Embedder", "Encoded", "StageHook", "load_bundle", "load_labels", "save_bundle"]
