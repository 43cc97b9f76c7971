"""Counterfactual causal embedding, our reading: amplitude randomisation and a dictionary of backgrounds."""

from proxemics.methods.couce.adjustment import attended, enumerated, shifted
from proxemics.methods.couce.atoms import heat_maps, location_responses, rank_atoms, top_rows
from proxemics.methods.couce.background import background_descriptors
from proxemics.methods.couce.dictionary import (
    coherence,
    seed_dictionary,
    soft_orthogonal_step,
    span_energy,
    span_split,
    update_dictionary,
)
from proxemics.methods.couce.divergence import class_similarities, symmetric_kl
from proxemics.methods.couce.gates import channel_gate, profile_gate, spatial_gate
from proxemics.methods.couce.method import CouCE
from proxemics.methods.couce.msrci import MSRCI
from proxemics.methods.couce.odba import ODBA
from proxemics.methods.couce.orthogonality import soft_orthogonality, spectral_orthogonality
from proxemics.methods.couce.ramp import ramp_weight
from proxemics.methods.couce.randomization import amplitude_randomization, amplitudes
from proxemics.methods.couce.spectrum import band_masks

__all__ = [
    "MSRCI",
    "ODBA",
    "CouCE",
    "amplitude_randomization",
    "amplitudes",
    "attended",
    "background_descriptors",
    "band_masks",
    "channel_gate",
    "class_similarities",
    "coherence",
    "enumerated",
    "heat_maps",
    "location_responses",
    "profile_gate",
    "ramp_weight",
    "rank_atoms",
    "seed_dictionary",
    "shifted",
    "soft_orthogonal_step",
    "soft_orthogonality",
    "span_energy",
    "span_split",
    "spatial_gate",
    "spectral_orthogonality",
    "symmetric_kl",
    "top_rows",
    "update_dictionary",
]
