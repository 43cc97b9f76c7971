"""What a method promises to the training loop, as a suite that anyone can run on their own class."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from proxemics.core.errors import TrainingError
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Method, Start
from proxemics.methods.build import Shapes
from proxemics.models.embedder import Embedder
from proxemics.training.step import TrainingStep

Factory = Callable[[Shapes], Method]
"""``factory(shapes) -> method``, built for the numbers of classes, dimensions and proxies in ``shapes``."""

CLASSES, DIM, SIDE = 5, 16, 32
PATIENCE = 20
"""Steps within which a method must have a term; some collect statistics first."""
EPOCH = 7
"""Late enough that ramps and warm-ups are over."""


def check_method(
    factory: Factory, *, off: Factory | None = None, trunk: str = "test_resnet", loss: str = "proxy_anchor"
) -> tuple[str, ...]:
    """Run the method contract on a function that builds a method; takes a few seconds.

    The contract: scalar float32 terms, finite, under names of their own; the same terms from the same seed, and no
    number drawn from torch's global generator; no gradient left on the model by looking at it, and the model's state
    dict as it was; buffers and parameters of fixed shape and dtype, from which a fresh method goes on exactly; finite
    values for one-class, duplicate and bfloat16 batches; rates that name parameters; reports of finite numbers. With
    ``off``: terms, gradients and random state equal those of the base run bit for bit.

    Args:
        factory: builds the method with weights above 0.
        off: builds it with all weights 0.
        trunk: a small timm model.
        loss: name of the base loss.

    Returns:
        The names of the checks that ran.

    Raises:
        TrainingError: the first promise that does not hold, in one sentence.

    Example:
        >>> from proxemics.methods.see import SEE
        >>> len(check_method(lambda shapes: SEE(num_synthetic=2), off=lambda shapes: SEE(weight=0)))
        8
    """
    setting = _Setting(factory, off, trunk, loss)
    checks = {name: check for name, check in CHECKS.items() if name != "off" or off is not None}
    with torch.random.fork_rng(devices=[]):
        for name, check in checks.items():
            torch.manual_seed(0)
            try:
                check(setting)
            except TrainingError:
                raise
            except Exception as error:
                reason = str(error).partition("\n")[0]
                raise TrainingError(f"Contract '{name}': raised {type(error).__name__}: {reason}.") from error
    return tuple(checks)


class _Setting:
    """A model, a loss and batches that every check starts from."""

    def __init__(self, factory: Factory, off: Factory | None, trunk: str, loss: str) -> None:
        self.factory, self.off = factory, off
        self.embedder = Embedder(trunk, dim=DIM, weights="none", size=SIDE)
        self.loss = build_loss(loss, CLASSES, DIM, {}, generator=torch.Generator().manual_seed(1))
        proxies = getattr(self.loss, "proxies", None)
        several = proxies is not None and proxies.ndim == 3
        self.shapes = Shapes(CLASSES, DIM, int(proxies.shape[1]) if several and proxies is not None else 1)

    def build(self, factory: Factory | None = None) -> TrainingStep:
        """A fresh step around copies of model and loss, with the method started."""
        method = (factory or self.factory)(self.shapes)
        step = TrainingStep(copy.deepcopy(self.embedder), copy.deepcopy(self.loss), [method], steps_per_epoch=2)
        return step.train()

    def start(self, step: TrainingStep) -> None:
        for method in step.methods:
            assert isinstance(method, Method)
            if method.needs.start:
                raw = torch.randn(4 * CLASSES, DIM, generator=torch.Generator().manual_seed(2))
                labels = torch.arange(CLASSES).repeat(4)
                with torch.no_grad():
                    method.start(Start(raw, labels, step.loss, step.embedder.head))

    def batch(self, labels: list[int] | None = None, *, seed: int = 3, same: bool = False) -> Batch:
        ids = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3] if labels is None else labels)
        images = torch.randn(len(ids), 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
        if same:
            images = images[:1].repeat(len(ids), 1, 1, 1)
        return Batch(self.embedder.stage_features("pixel", images), ids, torch.zeros_like(ids), torch.arange(len(ids)))


def _take(step: TrainingStep, batch: Batch, seed: int = 11) -> dict[str, Tensor]:
    """One step: forward, backward, look back; weights stay as they are."""
    step.zero_grad()
    terms: dict[str, Tensor] = step(batch, EPOCH, 0.5, seed)
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]  # torch does not type it
    step.look_back()
    return terms


def _require(condition: bool, name: str, message: str) -> None:
    if not condition:
        raise TrainingError(f"Contract '{name}': {message}.")


def _terms(setting: _Setting) -> None:
    step = setting.build()
    setting.start(step)
    own: dict[str, Tensor] = {}
    for seed in range(PATIENCE):
        terms = _take(step, setting.batch(seed=seed), seed)
        own = {name: value for name, value in terms.items() if name != "base"}
        if own or "base" not in terms:
            break
    _require(bool(own) or "base" not in terms, "terms", "no term at all; switch the method on for this check")
    for name, value in own.items():
        _require(value.ndim == 0 and value.dtype == torch.float32, "terms", f"{name} is not a scalar float32")
        _require(bool(value.isfinite()), "terms", f"{name} is {value.item()}")
    reports = {key: value for method in step.methods for key, value in _reports(method).items()}
    for key, number in reports.items():
        _require(isinstance(number, float) and math.isfinite(number), "terms", f"report {key} is {number!r}")


def _reports(method: nn.Module) -> dict[str, float]:
    assert isinstance(method, Method)
    return method.report()


def _off(setting: _Setting) -> None:
    assert setting.off is not None
    method = setting.build(setting.off)
    base = TrainingStep(copy.deepcopy(setting.embedder), copy.deepcopy(setting.loss)).train()
    found, wanted = _take(method, setting.batch()), _take(base, setting.batch())
    extra = [name for name in found if name != "base"]
    _require(not extra, "off", f"with all weights 0 there are terms {', '.join(extra)}")
    _require(torch.equal(found["base"], wanted["base"]), "off", "the base loss differs from that of the base run")
    gradients = zip(_gradients(method), _gradients(base), strict=True)
    _require(all(torch.equal(a, b) for a, b in gradients), "off", "gradients differ from those of the base run")


def _gradients(step: TrainingStep) -> list[Tensor]:
    parameters = [*step.embedder.parameters(), *step.loss.parameters()]
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def _seeded(setting: _Setting) -> None:
    found = []
    for seed in (11, 11):
        step = setting.build()
        setting.start(step)
        before = torch.get_rng_state()
        found.append(_take(step, setting.batch(), seed))
        _require(torch.equal(before, torch.get_rng_state()), "seeded", "numbers were drawn from the global generator")
    same = all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    _require(same, "seeded", "the same seed gave other terms")


def _model(setting: _Setting) -> None:
    step = setting.build()
    setting.start(step)
    before = {name: value.clone() for name, value in step.embedder.state_dict().items()}
    step(setting.batch(), EPOCH, 0.5, 11)
    touched = [name for name, p in step.embedder.named_parameters() if p.grad is not None]
    _require(not touched, "model", f"looking at the model left a gradient on {', '.join(touched[:2])}")
    step.look_back()
    after = step.embedder.state_dict()
    _require(list(after) == list(before), "model", "the model has other parameters than before")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    _require(not changed, "model", f"{', '.join(changed[:2])} of the model changed without the optimiser")


def _resume(setting: _Setting) -> None:
    first = setting.build()
    setting.start(first)
    fresh = {name: (value.shape, value.dtype) for name, value in first.methods.state_dict().items()}
    for number in range(3):
        _take(first, setting.batch(seed=number), number)
    state = {name: value.clone() for name, value in first.methods.state_dict().items()}
    for name, value in state.items():
        _require((value.shape, value.dtype) == fresh[name], "resume", f"{name} changed its shape or dtype")
    second = setting.build()
    second.methods.load_state_dict(state)
    second.embedder.load_state_dict(first.embedder.state_dict())
    second.loss.load_state_dict(first.loss.state_dict())
    found, wanted = (_take(step, setting.batch(seed=9), 9) for step in (second, first))
    same = found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)
    _require(same, "resume", "a method loaded from the state dict goes on differently")
    later = second.methods.state_dict()
    moved = [name for name, value in first.methods.state_dict().items() if not torch.equal(value, later[name])]
    _require(not moved, "resume", f"{', '.join(moved[:2])} went on differently")


def _extremes(setting: _Setting) -> None:
    batches = {
        "one class": setting.batch([1] * 8),
        "equal pictures": setting.batch(same=True),
        "a class with one picture": setting.batch([0, 0, 0, 0, 1, 1, 1, 2]),
    }
    for name, batch in batches.items():
        step = setting.build()
        setting.start(step)
        terms = _take(step, batch)
        _require(all(bool(value.isfinite()) for value in terms.values()), "extremes", f"not finite with {name}")
        finite = all(bool(gradient.isfinite().all()) for gradient in _gradients(step))
        _require(finite, "extremes", f"gradients are not finite with {name}")


def _half(setting: _Setting) -> None:
    step = setting.build()
    setting.start(step)
    dtypes = {name: value.dtype for name, value in step.methods.state_dict().items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = step(setting.batch(), EPOCH, 0.5, 11)
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]  # torch does not type it
    step.look_back()
    _require(all(value.dtype == torch.float32 for value in terms.values()), "half", "a term is not float32")
    _require(all(bool(value.isfinite()) for value in terms.values()), "half", "a term is not finite")
    after = {name: value.dtype for name, value in step.methods.state_dict().items()}
    _require(after == dtypes, "half", "a buffer changed its dtype")


def _rates(setting: _Setting) -> None:
    method = setting.factory(setting.shapes)
    unknown = set(method.rates()) - {name for name, p in method.named_parameters() if p.requires_grad}
    _require(not unknown, "rates", f"{', '.join(sorted(unknown))} are no trainable parameters")


CHECKS: dict[str, Callable[[_Setting], None]] = {
    "terms": _terms,
    "off": _off,
    "seeded": _seeded,
    "model": _model,
    "resume": _resume,
    "extremes": _extremes,
    "half": _half,
    "rates": _rates,
}
