"""Probes: what else embeddings tell besides the class. scikit-learn is imported on use."""

from proxemics.evaluation.probes.decodability import Decoding, decode_category, decode_number

__all__ = ["Decoding", "decode_category", "decode_number"]
