"""A dictionary of background directions, kept by moving averages behind a gate and held nearly orthogonal.

    k_i = argmax_k ⟨b_i, d_k⟩;  n_k, m_k: number and mean of the b_i that chose k;  s_k² = mean ‖b_i - m_k‖²
    γ_k = exp(-s_k²/σ_v²) where n_k >= 1, else 0         incoherent groups barely move an atom
    d_k ← norm((1 - (1-m) γ_k) d_k + (1-m) γ_k m_k)
    D   ← norm_rows(D - η (D Dᵀ - I) D)                  a gradient step on ¼ ‖D Dᵀ - I‖²
    π_k ← 0.99 π_k + 0.01 n_k/B

Pure functions; the state is kept by :class:`proxemics.methods.couce.odba.ODBA`.

With more atoms than kinds of background two atoms share a kind and orthogonality leaves it between them, 45° from
either; their span still holds it. So judge a dictionary by :func:`span_energy`, not by its best atom.

Source: our reading of "variance-gated dictionary" and "soft orthogonal regularisation" in the abstract of CouCE
(arXiv 2606.30365); moving averages from readers of the paper.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from proxemics.core.errors import LossError
from proxemics.core.geometry import normalize
from proxemics.methods.options import check_choice

UpdateGate = Literal["atom", "class", "none"]
"""atom: variance within the group; class: how little the group's labels explain of it; none: everything enters."""


class Update(NamedTuple):
    """What an update gives.

    Attributes:
        dictionary: (K, M) unit rows.
        prior: (K,), sums to 1.
        counts: (K,) float, n_k.
        gates: (K,) γ_k.
    """

    dictionary: Tensor
    prior: Tensor
    counts: Tensor
    gates: Tensor


@torch.no_grad()
def update_dictionary(
    dictionary: Tensor,
    prior: Tensor,
    descriptors: Tensor,
    labels: Tensor | None = None,
    *,
    gate: UpdateGate = "atom",
    sigma_v2: float = 0.5,
    momentum: float = 0.99,
    soft_orth_step: float = 0.1,
    prior_momentum: float = 0.99,
) -> Update:
    """Move the atoms towards the descriptors of one batch; the arguments are left alone.

    Args:
        dictionary: (K, M) unit rows.
        prior: (K,).
        descriptors: (B, M) unit, B >= 1.
        labels: (B,) int64, for ``gate="class"``.
        gate: what makes γ.
        sigma_v2: σ_v² > 0.
        momentum: m in [0, 1].
        soft_orth_step: η >= 0.
        prior_momentum: of π.

    Raises:
        LossError: ``gate="class"`` without labels, or an unknown gate.

    Example:
        >>> found = update_dictionary(torch.eye(2), torch.full((2,), 0.5), torch.eye(2)[:1], momentum=0.9)
        >>> found.counts.tolist(), found.gates.tolist()
        ([1.0, 0.0], [1.0, 0.0])
        >>> found.prior
        tensor([0.5050, 0.4950])
    """
    check_choice("gate", gate, get_args(UpdateGate))
    atoms = len(dictionary)
    chosen = (descriptors @ dictionary.t()).argmax(1)
    member = torch.nn.functional.one_hot(chosen, atoms).to(dictionary.dtype)  # matmuls sum in one order, atomics do not
    counts = member.sum(0)
    size = counts.clamp_min(1)[:, None]
    means = member.t() @ descriptors / size
    variance = (member.t() @ (descriptors - means[chosen]).square().sum(1, keepdim=True) / size)[:, 0]
    if gate == "atom":
        gates = torch.exp(-variance / sigma_v2)
    elif gate == "class":
        if labels is None:
            raise LossError("The gate 'class' needs labels; use 'atom' or 'none'.")
        gates = _class_gate(descriptors, labels, member, counts, variance)
    else:
        gates = torch.ones_like(counts)
    gates = gates * (counts >= 1)
    rate = ((1 - momentum) * gates)[:, None]
    moved = normalize(torch.lerp(dictionary, means, rate))
    return Update(
        soft_orthogonal_step(moved, soft_orth_step),
        prior_momentum * prior + (1 - prior_momentum) * counts / len(descriptors),
        counts,
        gates,
    )


def _class_gate(descriptors: Tensor, labels: Tensor, member: Tensor, counts: Tensor, variance: Tensor) -> Tensor:
    """1 - R² of the labels in each group, adjusted for the number of classes; 0 for a group of one class.

    The share of variance that labels explain is (c-1)/(n-1) by chance, for n descriptors of c classes; without the
    adjustment small groups would always look explained. Where every descriptor has its own class, nothing is known
    against the group, and it enters.
    """
    _, which = torch.unique(labels, return_inverse=True)
    own = torch.nn.functional.one_hot(which).to(member.dtype)
    table = member.t() @ own  # (K, c) how many of each class
    classes = (table > 0).sum(1)
    # Σ_i ‖b_i - mean of its own group and class‖²
    pair = member.argmax(1) * own.shape[1] + which
    pairs = torch.nn.functional.one_hot(pair, table.numel()).to(member.dtype)
    sizes = pairs.sum(0).clamp_min(1)[:, None]
    within = (descriptors - (pairs.t() @ descriptors / sizes)[pair]).square().sum(1)
    unexplained = member.t() @ within / (variance * counts).clamp_min(1e-12)
    spare = counts - classes
    adjusted = unexplained * (counts - 1) / spare.clamp_min(1)
    gates = torch.where((spare > 0) & (variance > 1e-8), adjusted.clamp(0, 1), 1.0)
    return gates * (classes >= 2)


def soft_orthogonal_step(dictionary: Tensor, step: float = 0.1) -> Tensor:
    """Return norm_rows(D - η (D Dᵀ - I) D); orthonormal rows stay as they are.

    Where rows are much alike the step is shortened to 1 / max_k Σ_j |D Dᵀ - I|_kj, which bounds the largest eigenvalue:
    the full step would overshoot and drive all rows to one line (64 rows with a mean cosine of 0.5 and η = 0.1 do so).

    Args:
        dictionary: (K, M) unit rows.
        step: η >= 0.

    Returns:
        (K, M) unit rows.

    Example:
        >>> soft_orthogonal_step(torch.tensor([[1.0, 0.0], [0.6, 0.8]])).round(decimals=3)
        tensor([[ 0.9990, -0.0500],
                [ 0.5590,  0.8290]])
    """
    gram = dictionary @ dictionary.t()
    gram.diagonal().sub_(1)
    bound = gram.abs().sum(1).amax().clamp_min(torch.finfo(gram.dtype).tiny)
    return normalize(dictionary - (gram @ dictionary) * (1 / bound).clamp_max(step))


@torch.no_grad()
def seed_dictionary(descriptors: Tensor, atoms: int, generator: torch.Generator | None = None) -> Tensor:
    """Choose atoms among descriptors by k-means++: each next one with a chance that grows with its squared distance.

    Args:
        descriptors: (n, M) unit, n >= 1.
        atoms: K; where there are fewer distinct descriptors, random directions follow.
        generator: source of the draws, on the device of the descriptors.

    Returns:
        (K, M) unit rows.

    Example:
        >>> found = seed_dictionary(torch.eye(3), 3, torch.Generator().manual_seed(0))
        >>> found.sum(0).tolist()
        [1.0, 1.0, 1.0]
    """
    dtype, device = descriptors.dtype, descriptors.device
    spread = normalize(torch.randn(atoms, descriptors.shape[1], generator=generator, dtype=dtype, device=device))
    draws = torch.rand(atoms, 1, generator=generator, dtype=dtype, device=device)
    distance = torch.full((len(descriptors),), 4.0, dtype=dtype, device=device)
    rows = []
    for number in range(atoms):
        total = distance.cumsum(0)
        row = torch.searchsorted(total, draws[number] * total[-1], right=True).clamp_max(len(total) - 1)[0]
        atom = torch.where(distance[row] > 1e-6, descriptors[row], spread[number])
        rows.append(atom)
        distance = torch.minimum(distance, (2 - 2 * (descriptors @ atom)).clamp_min(0))
    return torch.stack(rows)


@torch.no_grad()
def revive_atoms(dictionary: Tensor, descriptors: Tensor, stale: Tensor) -> Tensor:
    """Put the descriptors that no atom is near to in the place of stale atoms, as many as there are.

    Args:
        dictionary: (K, M) unit rows.
        descriptors: (B, M) unit.
        stale: (K,) bool.

    Returns:
        (K, M) unit rows.

    Example:
        >>> revive_atoms(torch.eye(2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([False, True]))
        tensor([[ 1.,  0.],
                [-1.,  0.]])
    """
    places = stale.nonzero()[: len(descriptors), 0]
    kept = dictionary[~stale]
    near = (descriptors @ kept.t()).amax(1) if len(kept) else descriptors[:, 0]
    result = dictionary.clone()
    result[places] = descriptors[near.argsort(stable=True)[: len(places)]]
    return result


def random_atoms(atoms: int, dim: int, seed: int = 0) -> Tensor:
    """Return K random orthonormal rows (K, M), from a generator of their own.

    Raises:
        LossError: K > M.

    Example:
        >>> rows = random_atoms(2, 4)
        >>> torch.allclose(rows @ rows.t(), torch.eye(2), atol=1e-6)
        True
    """
    if atoms > dim:
        raise LossError(
            f"{atoms} atoms need an embedding of dimension {atoms} or more, got {dim}; use at most {dim} atoms."
        )
    noise = torch.randn(dim, atoms, generator=torch.Generator().manual_seed(seed))
    columns: Tensor = torch.linalg.qr(noise)[0]
    return columns.t().contiguous()


def span_split(embeddings: Tensor, dictionary: Tensor) -> tuple[Tensor, Tensor]:
    """Split embeddings into what lies in the span of the atoms and what does not, each as unit vectors.

    Retrieval with one and with the other says how much of the signal the background subspace carries.

    Args:
        embeddings: (B, M) floating, any length.
        dictionary: (K, M).

    Returns:
        (B, M) and (B, M) unit, differentiable in the embeddings; zero where a part is empty.

    Example:
        >>> inside, outside = span_split(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
        >>> inside.tolist(), outside.tolist()
        ([[1.0, 0.0]], [[0.0, 1.0]])
    """
    z, basis = normalize(embeddings), _basis(dictionary)
    basis = basis.to(z.dtype)
    inside = z @ basis @ basis.t()
    outside = z - inside
    # Rounding must not be blown up to a unit vector.
    empty = math.sqrt(torch.finfo(z.dtype).eps)
    return tuple(  # type: ignore[return-value]  # two of them
        torch.where(torch.linalg.vector_norm(part, dim=1, keepdim=True) > empty, normalize(part), part * 0)
        for part in (inside, outside)
    )


def span_energy(vectors: Tensor, dictionary: Tensor) -> Tensor:
    """Return ‖P_span(D) v‖² of unit vectors: 1 inside the span, 0 across it, about K/M at random.

    Args:
        vectors: (B, M) floating, any length.
        dictionary: (K, M).

    Returns:
        (B,) in [0, 1].

    Example:
        >>> span_energy(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))
        tensor([0.3600])
    """
    z = normalize(vectors)
    return (z @ _basis(dictionary).to(z.dtype)).square().sum(1)


def coherence(dictionary: Tensor) -> Tensor:
    """Return the largest ``|⟨d_i, d_j⟩|`` of two atoms; 0 for one atom.

    Example:
        >>> float(coherence(torch.eye(3)))
        0.0
    """
    gram = dictionary @ dictionary.t()
    return gram.fill_diagonal_(0).abs().max()


def _basis(dictionary: Tensor) -> Tensor:
    """Orthonormal columns (M, K) of the span; zero columns where atoms depend on each other."""
    left, values, _ = torch.linalg.svd(dictionary.detach().t(), full_matrices=False)
    basis: Tensor = left * (values > 1e-5 * values[:1])
    return basis
