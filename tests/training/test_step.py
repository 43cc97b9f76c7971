"""The path of a batch with and without methods."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from proxemics.core.errors import ModelError, TrainingError
from proxemics.losses.build import build_loss
from proxemics.methods.base import Batch, Method, Needs, Step, View
from proxemics.models.embedder import Embedder
from proxemics.models.hooks import StageHook
from proxemics.training.step import TrainingStep


class Copy(Method):
    """Adds a plain copy of some rows at a stage and notes what it gets to see."""

    def __init__(self, stage: str = "stage2", rows: Tensor | None = None, hooks: tuple[StageHook, ...] = ()) -> None:
        super().__init__()
        self.needs = Needs(stages=(stage,))
        self.stage, self.rows, self.hooks = stage, rows, hooks
        self.looked_back: list[Step] = []

    def views(self, step: Step) -> Sequence[View]:
        self.noise = torch.rand(3, generator=step.generator)
        features = step.features[self.stage]
        maps = features.as_map() if self.rows is None else features.as_map()[self.rows]
        return [View(features.with_map(maps.clone(), self.rows), self.rows, self.hooks)]

    def terms(self, step: Step) -> dict[str, Tensor]:
        self.step = step
        (seen,) = step.seen
        return {f"difference_{self.stage}": (step.z[seen.rows] - seen.z).abs().max()}

    def after_step(self, step: Step) -> None:
        self.looked_back.append(step)


@pytest.fixture(scope="module", params=["test_resnet.r160_in1k", "test_vit.r160_in1k"])
def parts(request: pytest.FixtureRequest) -> tuple[Embedder, Batch]:
    embedder = Embedder(request.param, weights="none", dim=8, size=32)
    labels = torch.tensor([0, 0, 1, 1])
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features = embedder.stage_features("pixel", images)
    return embedder, Batch(features, labels, torch.zeros(4, dtype=torch.int64), torch.arange(4))


def middle(embedder: Embedder) -> str:
    return embedder.stages[3]


def run(embedder: Embedder, batch: Batch, *methods: Method) -> tuple[dict[str, Tensor], list[Tensor]]:
    torch.manual_seed(0)
    step = TrainingStep(embedder, build_loss("proxy_anchor", 2, 8, {}), methods)
    embedder.zero_grad()
    terms = step(batch, 0, 0.0, 0)
    terms["base"].backward()
    step.look_back()
    return terms, [p.grad.clone() for p in embedder.parameters() if p.grad is not None]


def test_a_method_without_effect_leaves_the_base_run_bit_for_bit(parts: tuple[Embedder, Batch]) -> None:
    base, gradients = run(*parts)
    with_method, others = run(*parts, Method())
    assert torch.equal(base["base"], with_method["base"])
    assert all(torch.equal(a, b) for a, b in zip(gradients, others, strict=True))


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 1])])
def test_a_copied_view_gives_the_embeddings_of_its_rows(parts: tuple[Embedder, Batch], rows: Tensor | None) -> None:
    method = Copy(middle(parts[0]), rows)
    terms, _ = run(*parts, method)
    base, _ = run(*parts)
    (seen,) = method.step.seen
    assert seen.rows.tolist() == ([0, 1, 2, 3] if rows is None else [3, 1])
    assert seen.labels.tolist() == ([0, 0, 1, 1] if rows is None else [1, 0])
    assert terms[f"difference_{method.stage}"].item() < 1e-5
    assert torch.equal(terms["base"], base["base"])


def test_methods_at_two_stages_each_see_their_own_views(parts: tuple[Embedder, Batch]) -> None:
    low, high = Copy(parts[0].stages[1]), Copy(middle(parts[0]), torch.tensor([2]))
    pixel = Copy("pixel")
    terms, _ = run(*parts, low, pixel, high)
    assert {name for name in terms if name != "base"} == {f"difference_{method.stage}" for method in (low, high, pixel)}
    assert all(terms[name].item() < 1e-5 for name in terms if name != "base")
    assert [len(method.step.seen[0].z) for method in (low, pixel, high)] == [4, 4, 1]
    assert set(high.step.features) == {high.stage}
    assert not torch.equal(low.noise, high.noise)


def test_hooks_of_a_view_act_above_its_stage_only_on_the_view(parts: tuple[Embedder, Batch]) -> None:
    higher = parts[0].stages[4]
    method = Copy(middle(parts[0]), hooks=(StageHook(higher, torch.zeros_like),))
    terms, _ = run(*parts, method)
    base, _ = run(*parts)
    assert torch.equal(terms["base"], base["base"])
    assert terms[f"difference_{method.stage}"].item() > 1e-3


def test_methods_look_back_without_a_graph(parts: tuple[Embedder, Batch]) -> None:
    method = Copy(middle(parts[0]))
    run(*parts, method)
    (step,) = method.looked_back
    assert not step.z.requires_grad
    assert not step.features
    assert not step.seen[0].raw.requires_grad
    assert torch.equal(step.z, method.step.z)


def test_a_view_leaves_the_statistics_of_batch_norm_alone() -> None:
    moved = []
    for methods in ([], [Copy("stage1"), Copy("stage2")]):
        embedder = Embedder("test_resnet.r160_in1k", weights="none", dim=8, size=32, freeze_bn=False)
        images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        none = torch.zeros(4, dtype=torch.int64)
        batch = Batch(embedder.stage_features("pixel", images), torch.tensor([0, 0, 1, 1]), none, none)
        run(embedder, batch, *methods)
        moved.append({name: value for name, value in embedder.state_dict().items() if "running" in name})
        assert all(m.training for m in embedder.modules())
    assert all(torch.equal(moved[0][name], moved[1][name]) for name in moved[0])
    fresh = Embedder("test_resnet.r160_in1k", weights="none", dim=8, size=32, freeze_bn=False).state_dict()
    assert any(not torch.equal(moved[0][name], fresh[name]) for name in moved[0])


def test_wrong_combinations_fail_when_the_step_is_built(parts: tuple[Embedder, Batch]) -> None:
    embedder, _ = parts
    loss = build_loss("proxy_anchor", 2, 8, {})
    with pytest.raises(TrainingError, match="Method works on proxies and MultiSimilarity has none"):
        TrainingStep(embedder, build_loss("multi_similarity", 2, 8, {}), [Method()])
    with pytest.raises(ModelError, match="has no stage 'stage9'"):
        TrainingStep(embedder, loss, [Copy("stage9")])
    with pytest.raises(TrainingError, match=r"the stages below .* are stored and not computed"):
        TrainingStep(embedder, loss, [Copy("pixel")], entry=middle(embedder))
    frozen = Method()
    frozen.needs = Needs(frozen_bn=True)
    live = Embedder("test_resnet.r160_in1k", weights="none", dim=8, size=32, freeze_bn=False)
    with pytest.raises(TrainingError, match=r"Method needs frozen batch normalisation; set model.freeze_bn=true"):
        TrainingStep(live, loss, [frozen])
