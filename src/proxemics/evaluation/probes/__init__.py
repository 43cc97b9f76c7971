"""Probes: what else embeddings tell besides the class. scikit-learn is imported on use."""

from proxemics.evaluation.probes.background import BackgroundReliance, background_reliance
from proxemics.evaluation.probes.card import bias_card
from proxemics.evaluation.probes.decodability import Decoding, decode_category, decode_number
from proxemics.evaluation.probes.geometry import (
    Compactness,
    Hubness,
    SeenUnseen,
    compactness,
    effective_rank,
    hubness,
    proxy_crowding,
    seen_unseen,
)
from proxemics.evaluation.probes.masks import Masks, estimate_masks, read_masks
from proxemics.evaluation.probes.measures import PROBES, Sample
from proxemics.evaluation.probes.nuisance import NUISANCES, Curve, Nuisance, nuisance_curves

__all__ = [
    "NUISANCES",
    "PROBES",
    "BackgroundReliance",
    "Compactness",
    "Curve",
    "Decoding",
    "Hubness",
    "Masks",
    "Nuisance",
    "Sample",
    "SeenUnseen",
    "background_reliance",
    "bias_card",
    "compactness",
    "decode_category",
    "decode_number",
    "effective_rank",
    "estimate_masks",
    "hubness",
    "nuisance_curves",
    "proxy_crowding",
    "read_masks",
    "seen_unseen",
]
