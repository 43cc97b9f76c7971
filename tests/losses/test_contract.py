"""Every loss keeps the contract, and the contract notices each way of breaking it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from proxemics.core.errors import LossError
from proxemics.losses import (
    LOSSES,
    MultiSimilarity,
    NormSoftmax,
    PotentialField,
    ProxyAnchor,
    ProxyNCA,
    SoftTriple,
    check_loss,
)
from proxemics.losses.contract import CHECKS


@pytest.mark.parametrize("name", LOSSES)
def test_defaults(name):
    assert check_loss(LOSSES[name]) == tuple(CHECKS)


@pytest.mark.parametrize(
    "factory",
    [
        lambda c, d: ProxyNCA(c, d, exclude_positive=False, label_smoothing=0.1),
        lambda c, d: SoftTriple(c, d, centers=1),
        lambda c, d: SoftTriple(c, d, centers=2, tau=0.0),
        lambda c, d: PotentialField(c, d, proxies_per_class=1, reduction="mean"),
        lambda c, d: MultiSimilarity(c, d, mining=False),
    ],
)
def test_other_options(factory):
    check_loss(factory)


class _Autocasting(NormSoftmax):
    """The textbook way, which autocast turns to half precision."""

    def forward(self, embeddings, labels):
        z, w = nn.functional.normalize(embeddings), nn.functional.normalize(self.proxies)
        return nn.functional.cross_entropy(z @ w.t() / self.sigma, labels)


class _Casting(NormSoftmax):
    """What user-pains 17 reports: the parameter is cast to the dtype of the embeddings and stays so."""

    def forward(self, embeddings, labels):
        value = super().forward(embeddings, labels)
        self.proxies.data = self.proxies.data.to(embeddings.dtype)
        return value


class _NaiveAnchor(ProxyAnchor):
    """The published Proxy-Anchor formula without log-sum-exp: overflows in half precision (user-pains 18)."""

    def forward(self, embeddings, labels):
        s = nn.functional.normalize(embeddings) @ nn.functional.normalize(self.proxies).to(embeddings.dtype).t()
        hot = nn.functional.one_hot(labels.long(), self.num_classes)
        pull = torch.log1p((torch.exp(-self.alpha * (s - self.delta)) * hot).sum(0))
        push = torch.log1p((torch.exp(self.alpha * (s + self.delta)) * (1 - hot)).sum(0))
        return pull.sum() / (hot.sum(0) > 0).sum() + push.mean()


class _SumNotMean(NormSoftmax):
    def forward(self, embeddings, labels):
        return super().forward(embeddings, labels) * len(labels)


class _Unchecked(NormSoftmax):
    def forward(self, embeddings, labels):
        return super().forward(embeddings, labels.long() % self.num_classes)


class _WrongSign(NormSoftmax):
    def forward(self, embeddings, labels):
        return -super().forward(embeddings, labels)


class _OrderDependent(NormSoftmax):
    def forward(self, embeddings, labels):
        weights = torch.arange(1.0, len(labels) + 1).to(embeddings)[:, None]
        return super().forward(embeddings, labels) + ((embeddings * weights).sum() * 1e-3).to(self.proxies.dtype)


class _Detached(NormSoftmax):
    def forward(self, embeddings, labels):
        value = super().forward(embeddings, labels)
        return value + (value.detach() - value) * 0.5  # right value, half the gradient


class _NanOnZero(NormSoftmax):
    def forward(self, embeddings, labels):
        return super().forward(embeddings / embeddings.norm(dim=1, keepdim=True), labels)


class _HiddenCounter(NormSoftmax):
    """Has state that is not in the state dict."""

    steps = 0

    def forward(self, embeddings, labels):
        self.steps += 1
        return super().forward(embeddings, labels) * self.steps


class _NoGraphWhenEmpty(NormSoftmax):
    def forward(self, embeddings, labels):
        return super().forward(embeddings, labels) if len(labels) else torch.zeros(())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_Autocasting, "half precision|finite|empty batch|labels"),
        (_Casting, "half precision"),
        (_NaiveAnchor, "half precision|empty batch"),
        (_SumNotMean, "per_sample_mean"),
        (_Unchecked, "labels"),
        (_WrongSign, "descent"),
        (_OrderDependent, "permutation"),
        (_Detached, "gradient"),
        (_NanOnZero, "finite.*zero vectors"),
        (_HiddenCounter, "state dict"),
        (_NoGraphWhenEmpty, "empty batch"),
    ],
)
def test_broken_losses_are_found(broken, message):
    with pytest.raises(LossError, match=f"Contract '?({message})"):
        check_loss(broken)
