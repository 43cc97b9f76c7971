"""SEE as a method: schedule, selection, gradient, and what it must leave alone."""

import math

import pytest
import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError
from proxemics.losses import NormSoftmax, ProxyAnchor, SoftTriple
from proxemics.losses.build import LOSSES, build_loss
from proxemics.methods.base import Step
from proxemics.methods.see import SEE, expanded_share, nearest_own_proxies, spherical_expansion

WITH_PROXIES = [name for name in LOSSES if hasattr(build_loss(name, 3, 4), "proxies")]


def make_step(
    raw: Tensor,
    labels: Tensor,
    loss: nn.Module,
    *,
    epoch: int = 100,
    progress: float = 0.999,
    seed: int = 0,
) -> Step:
    return Step(
        z=torch.nn.functional.normalize(raw, dim=-1),
        raw=raw,
        tokens=raw[:, None],
        labels=labels,
        domains=torch.zeros_like(labels),
        loss=loss,
        epoch=epoch,
        progress=progress,
        generator=torch.Generator().manual_seed(seed),
    )


def batch(size: int = 20, dim: int = 16, classes: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, dim, generator=generator, dtype=dtype), torch.arange(size) % classes


def test_schedule_values_of_the_release() -> None:
    epochs = (0, 10, 25, 50, 75, 100)
    wanted = (0, 0.009789, 0.058579, 0.2, 0.341421, 0.4)
    assert [expanded_share(t, 100) for t in epochs] == pytest.approx(wanted, abs=5e-7)
    raw = torch.zeros(180, 32)
    see = SEE(epochs=100)
    counts = [
        len(see.chosen(torch.linspace(-1, 1, 180), make_step(raw, torch.zeros(180).long(), nn.Module(), epoch=t)))
        for t in epochs
    ]
    assert counts == [0, 2, 11, 36, 61, 72]


def test_schedule_never_falls_and_stops_after_200_epochs() -> None:
    shares = [expanded_share(t, 300, rho_min=0.04) for t in range(300)]
    assert shares == sorted(shares)
    assert shares[0] == pytest.approx(0.04)
    assert shares[199] < shares[200] == shares[299] == pytest.approx(0.4)
    assert expanded_share(0, 0) == 0


def test_schedule_by_progress_is_the_same_curve() -> None:
    raw, labels = batch()
    by_epoch, by_progress = SEE(epochs=40), SEE()
    for epoch in range(40):
        step = make_step(raw, labels, nn.Module(), epoch=epoch, progress=epoch / 40)
        assert by_progress.share(step) == pytest.approx(by_epoch.share(step))


def test_the_nearest_samples_are_expanded() -> None:
    cosines = torch.tensor([0.1, 0.9, -0.5, 0.9, 0.3])
    step = make_step(torch.zeros(5, 8), torch.zeros(5).long(), nn.Module())
    assert SEE(rho_max=0.6).chosen(cosines, step).tolist() == [1, 3, 4]
    assert SEE(select="threshold", threshold=0.3).chosen(cosines, step).tolist() == [1, 3, 4]
    assert SEE(select="threshold", threshold=0.95).chosen(cosines, step).tolist() == []


def test_term_is_the_base_loss_of_the_points() -> None:
    raw, labels = batch(dtype=torch.float64)
    loss = NormSoftmax(5, 16).double()
    step = make_step(raw, labels, loss)
    term = SEE(num_synthetic=3, weight=0.2).terms(step)["see"]
    z, w = step.z, torch.nn.functional.normalize(loss.proxies, dim=-1)[labels]
    rows = torch.argsort((z * w).sum(-1), descending=True)[:8]
    points = spherical_expansion(z[rows], w[rows], 3, torch.Generator().manual_seed(0))
    wanted = 0.2 * loss(points.reshape(24, 16), labels[rows].repeat_interleave(3))
    torch.testing.assert_close(term, wanted)


def test_only_negative_logits_change() -> None:
    """NormSoftmax of a synthetic point differs from that of its embedding in the other classes alone."""
    raw, labels = batch(dtype=torch.float64)
    loss = NormSoftmax(5, 16).double()
    z = torch.nn.functional.normalize(raw, dim=-1)
    own, _ = nearest_own_proxies(z, labels, loss.proxies)
    points = spherical_expansion(z, own, 4, torch.Generator().manual_seed(0))
    here, there = loss.similarities(z), loss.similarities(points.flatten(0, 1)).view(20, 4, 5)
    mine = torch.nn.functional.one_hot(labels, 5).bool()
    torch.testing.assert_close(there[mine[:, None].expand(-1, 4, -1)], here[mine].repeat_interleave(4))

    def others(cosines: Tensor, mask: Tensor) -> Tensor:
        logits = (cosines - cosines[mask].view(*cosines.shape[:-1], 1)) / loss.sigma
        return torch.nn.functional.softplus(torch.logsumexp(logits.masked_fill(mask, -math.inf), -1))

    difference = others(there, mine[:, None].expand(-1, 4, -1)).mean() - others(here, mine).mean()
    direct = loss(points.flatten(0, 1), labels.repeat_interleave(4)) - loss(z, labels)
    torch.testing.assert_close(difference, direct)


def test_gradient_reaches_the_proxies_alone_by_default() -> None:
    raw, labels = batch()
    raw.requires_grad_()
    loss = ProxyAnchor(5, 16)
    SEE().terms(make_step(raw, labels, loss))["see"].backward()
    assert raw.grad is None
    assert loss.proxies.grad.abs().max() > 0


def test_gradient_reaches_everything_on_request() -> None:
    raw, labels = batch(6, 5, 3, dtype=torch.float64)
    raw.requires_grad_()
    loss = NormSoftmax(3, 5).double()

    def value(raw: Tensor, proxies: Tensor) -> Tensor:
        with torch.no_grad():
            loss.proxies.copy_(proxies)
        step = make_step(raw, labels, loss)
        step.loss = _Functional(proxies)
        return SEE(grad="all", num_synthetic=2, rho_max=1.0).terms(step)["see"]

    assert torch.autograd.gradcheck(value, (raw, loss.proxies.detach().clone().requires_grad_()))


class _Functional(nn.Module):
    """NormSoftmax around proxies that are not a parameter, so that gradcheck can vary them."""

    def __init__(self, proxies: Tensor) -> None:
        super().__init__()
        self.proxies = proxies

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        logits = embeddings @ torch.nn.functional.normalize(self.proxies, dim=-1).T / 0.05
        return torch.nn.functional.cross_entropy(logits, labels)


@pytest.mark.parametrize(
    "see", [SEE(weight=0.0), SEE(epochs=100), SEE(rho_max=0.0), SEE(select="threshold", threshold=1.0)]
)
def test_switched_off_it_adds_nothing_and_draws_nothing(see: SEE) -> None:
    raw, labels = batch()
    step = make_step(raw, labels, ProxyAnchor(5, 16), epoch=0)
    before = step.generator.get_state()
    assert see.terms(step) == {}
    assert torch.equal(step.generator.get_state(), before)
    assert see.base_weight == 1
    assert see.rates() == {}


@pytest.mark.parametrize("name", WITH_PROXIES)
@pytest.mark.parametrize("kind", ["plain", "one class", "duplicates", "at the proxies"])
def test_finite_on_every_proxy_loss(name: str, kind: str) -> None:
    loss = build_loss(name, 5, 16, generator=torch.Generator().manual_seed(0))
    raw, labels = batch()
    if kind == "one class":
        labels = torch.zeros_like(labels)
    if kind == "duplicates":
        raw = raw[:1].expand(20, -1).clone()
    if kind == "at the proxies":
        raw = loss.proxies.detach().reshape(5, -1, 16)[labels, 0].clone()
    raw.requires_grad_()
    for grad in ("proxies", "all"):
        term = SEE(grad=grad).terms(make_step(raw, labels, loss))["see"]  # type: ignore[arg-type]
        term.backward()
        assert torch.isfinite(term)
        assert torch.isfinite(loss.proxies.grad).all()
    assert torch.isfinite(raw.grad).all()


def test_the_nearest_of_several_proxies_counts() -> None:
    """Our reading for (C, K, M) proxies."""
    loss = SoftTriple(5, 16)
    raw, labels = batch()
    z = torch.nn.functional.normalize(raw, dim=-1)
    own, cosines = nearest_own_proxies(z, labels, loss.proxies)
    table = torch.einsum("bm,bkm->bk", z, torch.nn.functional.normalize(loss.proxies, dim=-1)[labels])
    torch.testing.assert_close(cosines, table.amax(1))
    torch.testing.assert_close((own * z).sum(-1), table.amax(1))


def test_nothing_to_save_or_to_train() -> None:
    assert dict(SEE().state_dict()) == {}
    assert list(SEE().parameters()) == []


def test_one_step_pushes_foreign_proxies_away_from_the_points() -> None:
    raw, labels = batch()
    loss = NormSoftmax(5, 16, generator=torch.Generator().manual_seed(0))
    see = SEE(weight=1.0)
    before = see.terms(make_step(raw, labels, loss))["see"]
    before.backward()
    with torch.no_grad():
        loss.proxies -= 0.01 * loss.proxies.grad
    assert see.terms(make_step(raw, labels, loss))["see"] < before


def test_bad_options_are_refused_with_a_sentence() -> None:
    with pytest.raises(
        LossError, match="8 synthetic points need an embedding of dimension 9 or more, got 8; use at most 7"
    ):
        SEE().check(ProxyAnchor(5, 8))
    SEE(num_synthetic=7).check(ProxyAnchor(5, 8))
    with pytest.raises(LossError, match=r"select='top': use topk or threshold\. Did you mean 'topk'"):
        SEE(select="top")  # type: ignore[arg-type]
    with pytest.raises(LossError, match=r"grad='proxy': use proxies or all\. Did you mean 'proxies'"):
        SEE(grad="proxy")  # type: ignore[arg-type]
    with pytest.raises(LossError, match=r"rho_min must be a finite number at least 0 and at most 0\.4, got 0\.5"):
        SEE(rho_min=0.5)
    with pytest.raises(LossError, match="weight must be a finite number at least 0, got -1"):
        SEE(weight=-1)
