"""Do two views of a picture say the same about all classes? Symmetric divergence between distributions over proxies.

    p = softmax(S/τ) of the clean view, q of the changed one, over the classes
    L_inv = 1/(2B) Σ_i [ KL(sg(p_i) ‖ q_i) + KL(sg(q_i) ‖ p_i) ]        sg: no gradient

The value is the mean of half the Jeffreys divergence. With the stop-gradients the gradient by the clean logits S/τ is
(p - q)/(2B), and its negative by the others: each view moves towards the other, neither is made less sure of itself.

Source: symmetric KL from the abstract of CouCE (arXiv 2606.30365), stop-gradient and distributions over proxies from
readers of the paper; temperature and the restriction to the hardest negatives are our reading.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from proxemics.core.geometry import upcast
from proxemics.losses.base import ProxyLoss


class _Similarities(nn.Module):
    def __init__(self, loss: ProxyLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor) -> Tensor:
        return self.loss.similarities(embeddings)


def class_similarities(loss: ProxyLoss, embeddings: Tensor, *, detach_proxies: bool = False) -> Tensor:
    """Return the loss's cosines to the classes, with or without a gradient to its proxies.

    Args:
        loss: any proxy loss.
        embeddings: (B, M) floating.
        detach_proxies: hold the proxies constant.

    Returns:
        (B, C) float32 or float64.

    Example:
        >>> from proxemics.losses import NormSoftmax
        >>> class_similarities(NormSoftmax(3, 4), torch.zeros(2, 4), detach_proxies=True).requires_grad
        False
    """
    if not detach_proxies:
        return loss.similarities(embeddings)
    constants = {f"loss.{name}": value.detach() for name, value in loss.named_parameters()}
    found: Tensor = torch.func.functional_call(_Similarities(loss), constants, (embeddings,))
    return found


def hardest_classes(similarities: Tensor, labels: Tensor, negatives: int) -> Tensor:
    """Return for each row its own class and the nearest others.

    Args:
        similarities: (B, C).
        labels: (B,) int64.
        negatives: R >= 1; at most C - 1 are taken.

    Returns:
        (B, 1 + min(R, C-1)) int64, the own class first.

    Example:
        >>> hardest_classes(torch.tensor([[0.1, 0.9, 0.5]]), torch.tensor([1]), 1).tolist()
        [[1, 2]]
    """
    others = similarities.detach().scatter(1, labels[:, None], -torch.inf)
    nearest = others.topk(min(negatives, similarities.shape[1] - 1), 1).indices
    return torch.cat([labels[:, None], nearest], 1)


def symmetric_kl(
    clean: Tensor,
    changed: Tensor,
    *,
    tau: float = 0.1,
    stop_grad: bool = True,
    labels: Tensor | None = None,
    top_negatives: int | None = None,
) -> Tensor:
    """Return the mean of half the Jeffreys divergence between the class distributions of two views.

    Args:
        clean: (B, C) similarities of the clean view.
        changed: (B, C) of the changed view.
        tau: temperature τ > 0.
        stop_grad: hold the first argument of either KL constant.
        labels: (B,) int64, needed for ``top_negatives``.
        top_negatives: compare over the own class and so many nearest others of the clean view; None: over all.

    Returns:
        Scalar >= 0; 0 with a graph for B = 0.

    Example:
        >>> s = torch.tensor([[8, 1, 7], [7, 8, 0], [6.6, 1.2, 8.4], [1, 0, 8]], dtype=torch.float64) / 9
        >>> t = s[torch.tensor([2, 1, 0, 3])]
        >>> f"{symmetric_kl(s, t).item():.10f}"
        '0.4922865730'
    """
    if top_negatives is not None:
        assert labels is not None
        columns = hardest_classes(clean, labels, top_negatives)
        clean, changed = clean.gather(1, columns), changed.gather(1, columns)
    log_p = (upcast(clean) / tau).log_softmax(-1)
    log_q = (upcast(changed) / tau).log_softmax(-1)
    if not stop_grad:
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / (2 * max(len(log_p), 1))
    p, q = log_p.detach(), log_q.detach()
    forward = (p.exp() * (p - log_q)).sum()
    backward = (q.exp() * (q - log_p)).sum()
    return (forward + backward) / (2 * max(len(log_p), 1))
