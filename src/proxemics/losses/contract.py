"""What a loss promises to the training loop, as a suite that anyone can run on their own class."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from proxemics.core.errors import LossError

Factory = Callable[[int, int], nn.Module]
"""``factory(num_classes, dim) -> loss``; a loss class with all options at their defaults is one."""

CLASSES, DIM, BATCH = 5, 6, 8


def check_loss(factory: Factory) -> tuple[str, ...]:
    """Run the loss contract on a class or a function that builds a loss; takes about a second.

    The contract: a scalar float32 with a graph; ``num_classes``, ``dim`` and ``per_sample_mean``; ``proxies``, if any,
    of shape (C, [K,] M) in float32 before and after half-precision inputs and autocast; finite values and gradients for
    one-class, single, duplicate, opposite (cosine ±1) and zero embeddings; 0 with a graph for an empty batch; any
    integer label dtype; LossError for labels outside 0..C-1 and for wrong shapes; correct gradients in float64; no
    change by permuting the batch (unless the loss says ``stochastic``) or the classes together with their proxies; an
    honest ``per_sample_mean``; an exact state dict; and a gradient step that raises the own-class similarity.

    Args:
        factory: called with (num_classes, dim).

    Returns:
        The names of the checks that ran.

    Raises:
        LossError: the first promise that does not hold, in one sentence.

    Example:
        >>> from proxemics.losses import NormSoftmax
        >>> len(check_loss(NormSoftmax)) == len(CHECKS)
        True
    """
    with torch.random.fork_rng(devices=[]):
        for name in CHECKS:
            torch.manual_seed(0)
            _check(name, factory)
    return tuple(CHECKS)


def _check(name: str, factory: Factory) -> None:
    try:
        CHECKS[name](factory)
    except LossError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise LossError(f"Contract '{name}': raised {type(error).__name__}: {reason}.") from error


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise LossError(f"Contract '{name}': {message}.")


def _batch(loss: nn.Module, *, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Return (B, M) embeddings that lie loosely around their class, and (B,) labels with pairs, in float32."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    centers = torch.randn(CLASSES, DIM, generator=generator)
    proxies = getattr(loss, "proxies", None)
    if proxies is not None:
        centers = proxies.detach().float().reshape(CLASSES, -1, DIM)[:, 0]
    centers = nn.functional.normalize(centers, dim=1)
    return centers[labels] + noise * torch.randn(BATCH, DIM, generator=generator), labels


def _run(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and gradient by the embeddings from a copy of the loss, so that its state does not move."""
    leaf = embeddings.detach().clone().requires_grad_()
    value = copy.deepcopy(loss)(leaf, labels)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def _check_form(factory: Factory) -> None:
    name = "form"
    loss = factory(CLASSES, DIM)
    _require(
        getattr(loss, "num_classes", None) == CLASSES, name, "num_classes must be the first argument of the constructor"
    )
    _require(getattr(loss, "dim", None) == DIM, name, "dim must be the second argument of the constructor")
    _require(isinstance(getattr(loss, "per_sample_mean", None), bool), name, "per_sample_mean must be True or False")
    value = loss(*_batch(loss))
    _require(value.shape == () and value.dtype == torch.float32, name, "the value must be a float32 scalar")
    proxies = getattr(loss, "proxies", None)
    if proxies is not None:
        shape = tuple(proxies.shape)
        _require(
            shape[0] == CLASSES and shape[-1] == DIM and len(shape) in (2, 3) and proxies.dtype == torch.float32,
            name,
            f"proxies must be float32 (C, M) or (C, K, M), got {proxies.dtype} {shape}",
        )


def _check_finite(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    embeddings, labels = _batch(loss)
    cases = {
        "one class": (embeddings, torch.full_like(labels, 2)),
        "batch of one": (embeddings[:1], labels[:1]),
        "duplicates": (embeddings[:1].expand(BATCH, DIM), labels),
        "opposite": (torch.cat([embeddings[:4], -embeddings[:4]]), labels),
        "zero vectors": (torch.zeros(BATCH, DIM), labels),
        "one zero vector": (torch.cat([embeddings[1:], torch.zeros(1, DIM)]), labels),
    }
    proxies = getattr(loss, "proxies", None)
    if proxies is not None:
        ends = proxies.detach().reshape(CLASSES, -1, DIM)[:, 0]
        cases["cosine 1 to the own proxy"] = (ends, torch.arange(CLASSES))
        cases["cosine 1 to a wrong proxy"] = (ends.roll(1, 0), torch.arange(CLASSES))
        cases["cosine -1 to the own proxy"] = (-ends, torch.arange(CLASSES))
    for case, (rows, classes) in cases.items():
        value, gradient = _run(loss, rows, classes)
        fine = bool(value.isfinite()) and bool(gradient.isfinite().all())
        _require(fine, "finite", f"{case}: value {float(value)}, or a gradient that is not finite")


def _check_empty(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    value, gradient = _run(loss, torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64))
    _require(float(value) == 0 and gradient.shape == (0, DIM), "empty batch", "must give 0 with a graph")


def _check_half(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    embeddings, labels = _batch(loss)
    used = copy.deepcopy(loss)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = embeddings.to(dtype)
        exact, _ = _run(copy.deepcopy(loss).double(), rounded.double(), labels)
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                used(rounded, labels)
                value, gradient = _run(loss, rounded, labels)
            fine = value.dtype == torch.float32 and gradient.dtype == dtype and bool(gradient.isfinite().all())
            near = abs(float(value) - float(exact)) <= 1e-3 * max(1.0, abs(float(exact)))
            _require(
                fine and near, "half precision", f"{dtype}, autocast={autocast}: {float(value)} for {float(exact)}"
            )
    kept = [p.dtype for p in used.parameters()] == [p.dtype for p in loss.parameters()]
    _require(kept, "half precision", "parameters changed their dtype")


def _check_labels(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    embeddings, labels = _batch(loss)
    value, _ = _run(loss, embeddings, labels)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        other, _ = _run(loss, embeddings, labels.to(dtype))
        _require(bool(other == value), "labels", f"{dtype} labels gave another value")
    for bad in (CLASSES, -1):
        wrong = labels.clone()
        wrong[3] = bad
        message = _refusal(loss, embeddings, wrong)
        named = all(part in message for part in (str(bad), str(CLASSES), "3"))
        _require(
            named, "labels", f"label {bad} must raise LossError naming label, row and class count, got {message!r}"
        )
    for shape in ((BATCH, DIM + 1), (BATCH, DIM, 1)):
        message = _refusal(loss, torch.zeros(shape), labels)
        _require(str(DIM) in message, "shapes", f"embeddings {shape} must raise LossError naming dim")
    _require(bool(_refusal(loss, embeddings, labels[:-1])), "shapes", "one label too few must raise LossError")


def _refusal(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> str:
    try:
        copy.deepcopy(loss)(embeddings, labels)
    except LossError as error:
        return str(error)
    return ""


def _check_gradient(factory: Factory) -> None:
    loss = factory(CLASSES, DIM).double()
    embeddings, labels = _batch(loss)
    names = [key for key, parameter in loss.named_parameters() if parameter.requires_grad]
    inputs = [dict(loss.named_parameters())[key].detach().clone().requires_grad_() for key in names]

    def value(rows: Tensor, *parameters: Tensor) -> Tensor:
        fixed = copy.deepcopy(loss)  # so that a loss with its own random numbers draws the same each time
        result: Tensor = torch.func.functional_call(fixed, dict(zip(names, parameters, strict=True)), (rows, labels))
        return result

    rounding = 1e-6 * max(1.0, float(_run(loss, embeddings.double(), labels)[0].abs()))
    torch.autograd.gradcheck(
        value, (embeddings.double().requires_grad_(), *inputs), rtol=1e-4, atol=rounding, fast_mode=True
    )


def _check_permutation(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    embeddings, labels = _batch(loss)
    if getattr(loss, "stochastic", False):
        return
    value, gradient = _run(loss, embeddings, labels)
    order = torch.tensor([3, 7, 0, 4, 1, 6, 2, 5])
    other, moved = _run(loss, embeddings[order], labels[order])
    same = torch.allclose(other, value, rtol=1e-5, atol=1e-5) and torch.allclose(
        moved, gradient[order], rtol=1e-3, atol=1e-5
    )
    _require(same, "permutation", f"permuting the batch changed {float(value)} to {float(other)}")
    if hasattr(loss, "proxies"):
        # ``loss`` is any module, so the type checker does not know that these proxies are a tensor.
        names = torch.tensor([2, 0, 4, 1, 3])
        renamed = copy.deepcopy(loss)
        with torch.no_grad():
            renamed.proxies.copy_(loss.proxies[names.argsort()])  # type: ignore[operator, index]
        other, _ = _run(renamed, embeddings, names[labels])
        same = torch.allclose(other, value, rtol=1e-5, atol=1e-5)
        _require(same, "permutation", f"permuting the classes changed {float(value)} to {float(other)}")


def _check_per_sample_mean(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    if not loss.per_sample_mean:
        return
    embeddings, labels = _batch(loss)
    _, whole = _run(loss, embeddings, labels)
    chunks = [_run(loss, embeddings[part], labels[part])[1] / 2 for part in (slice(0, 4), slice(4, 8))]
    same = torch.allclose(torch.cat(chunks), whole, rtol=1e-4, atol=1e-6)
    _require(
        same, "per_sample_mean", "is True, but gradients over two halves do not average to the gradient of the batch"
    )


def _check_state(factory: Factory) -> None:
    loss, fresh = factory(CLASSES, DIM), factory(CLASSES, DIM)
    embeddings, labels = _batch(loss)
    loss(embeddings, labels)
    fresh.load_state_dict(loss.state_dict())
    same = bool(loss(embeddings, labels) == fresh(embeddings, labels))
    _require(same, "state dict", "a loss with a loaded state gave another value at the next step")


def _check_step(factory: Factory) -> None:
    loss = factory(CLASSES, DIM)
    if not hasattr(loss, "similarities"):
        return
    embeddings, labels = _batch(loss, noise=1.5)  # far from the proxies, where every loss has to pull
    _, gradient = _run(loss, embeddings, labels)
    moved = embeddings - gradient * (1e-3 / gradient.norm().clamp_min(1e-12))
    # ``loss`` is any module, so its methods are unknown to the type checker; that it has this one was checked before.
    before, after = (loss.similarities(rows)[range(BATCH), labels].mean() for rows in (embeddings, moved))  # type: ignore[operator]
    _require(
        bool(after > before), "descent", "a small step against the gradient did not raise the own-class similarity"
    )


CHECKS: dict[str, Callable[[Factory], None]] = {
    "form": _check_form,
    "finite": _check_finite,
    "empty batch": _check_empty,
    "half precision": _check_half,
    "labels": _check_labels,
    "gradient": _check_gradient,
    "permutation": _check_permutation,
    "per_sample_mean": _check_per_sample_mean,
    "state dict": _check_state,
    "descent": _check_step,
}
