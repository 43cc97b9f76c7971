"""What is shown of a background dictionary: plain values and small arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AtomPicture:
    """A picture that an atom answers to.

    Attributes:
        path: of the file.
        label: its class.
        domain: its domain, or empty.
        cosine: of its background and the atom.
        pixels: (S, S, 3) uint8, what the model saw.
        heat: (h, w) in [0, 1], where the atom answers; None where the trunk keeps no map.
    """

    path: str
    label: str
    domain: str
    cosine: float
    pixels: NDArray[np.uint8]
    heat: NDArray[np.float32] | None


@dataclass(frozen=True)
class Part:
    """A class or domain among the pictures of an atom.

    Attributes:
        name: of the class or domain.
        share: of the pictures of the atom.
        whole: of all pictures of the sample.
    """

    name: str
    share: float
    whole: float


@dataclass(frozen=True)
class AtomView:
    """One atom.

    Attributes:
        number: its row in the dictionary.
        prior: share of the training pictures that chose it of late, a moving average.
        chosen: pictures of the sample that are nearer to it than to any other.
        num_labels: classes among these.
        labels: the most frequent of them.
        domains: the most frequent domains; empty where the run has one only.
        pictures: the nearest pictures of the sample, nearest first.
    """

    number: int
    prior: float
    chosen: int
    num_labels: int
    labels: tuple[Part, ...]
    domains: tuple[Part, ...]
    pictures: tuple[AtomPicture, ...]


@dataclass(frozen=True)
class SplitRecall:
    """Recall@1 on the validation pictures, of embeddings and of their parts; None where nothing is left.

    Attributes:
        whole: of the embeddings.
        inside: of their part in the span of the dictionary.
        outside: of the rest.
        random_inside: of the part in the span of as many random directions, mean of three draws.
        random_outside: of the rest after these are taken out.
        num_queries: how many pictures were searched for.
    """

    whole: float
    inside: float | None
    outside: float | None
    random_inside: float | None
    random_outside: float | None
    num_queries: int


@dataclass(frozen=True)
class DictionaryView:
    """All that the page shows.

    Attributes:
        dataset: name of the data.
        method: name of the method that keeps the dictionary.
        checkpoint: a sentence on the weights and on the bundle.
        gate: what of a map counts as background, as in the option ``extract_gate``.
        num_atoms: K.
        dim: M.
        used: atoms with a prior above a tenth of 1/K.
        coherence: largest absolute cosine of two atoms.
        orth: L_orth of the sample.
        orth_random: K/M, its value for random embeddings.
        energy: mean share of an embedding in the span of the dictionary.
        energy_background: the same of the background descriptors.
        recall: on the validation pictures; None where they could not be read or evaluated.
        num_pictures: pictures of the sample.
        num_training: training pictures.
        num_unreadable: pictures that were drawn and could not be read.
        atoms: the most used first.
    """

    dataset: str
    method: str
    checkpoint: str
    gate: str
    num_atoms: int
    dim: int
    used: int
    coherence: float
    orth: float
    orth_random: float
    energy: float
    energy_background: float
    recall: SplitRecall | None
    num_pictures: int
    num_training: int
    num_unreadable: int
    atoms: tuple[AtomView, ...]
