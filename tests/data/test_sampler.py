from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from proxemics.core.errors import DataError
from proxemics.data.sampler import MPerClass, Shuffled


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int]:
    """Labels with gaps, in any order; per_class; classes a batch; world size."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=9))
    labels = np.repeat(np.arange(len(sizes)) * 7 + 3, sizes)
    labels = np.random.default_rng(draw(st.integers(0, 99))).permutation(labels)
    per_class = draw(st.integers(1, 4))
    classes = draw(st.integers(1, len(sizes)))
    world = draw(st.sampled_from([w for w in (1, 2, 3, 4) if per_class * classes % w == 0]))
    return labels, per_class, classes, world


@settings(max_examples=150, deadline=None)
@given(cases(), st.integers(0, 5), st.integers(0, 3))
def test_every_batch_has_its_classes_and_every_class_its_turn(case, epoch: int, seed: int) -> None:
    """Spec 1.5, user-pains 12 and 13: len is exact, no batch of another size."""
    labels, m, classes, _ = case
    sampler = MPerClass(labels, m * classes, m, seed=seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    num_classes = len(set(labels))
    assert len(batches) == len(sampler) == max(len(labels) // (m * classes), -(-num_classes // classes))
    drawn = dict.fromkeys(labels.tolist(), 0)
    for batch in batches:
        names, counts = np.unique(labels[batch], return_counts=True)
        assert len(names) == classes
        assert (counts == m).all()
        for name in names.tolist():
            drawn[name] += 1
            rows = [row for row in batch if labels[row] == name]
            most = -(-m // (labels == name).sum())  # once, unless the class is smaller than m
            assert max(np.unique(rows, return_counts=True)[1]) <= most
    assert min(drawn.values()) >= 1
    assert max(drawn.values()) - min(drawn.values()) <= 1


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_class_shows_all_its_pictures_before_it_shuffles_them_anew(case) -> None:
    """The cycle runs on across epochs, without anything being remembered."""
    labels, m, classes, _ = case
    sampler = MPerClass(labels, m * classes, m, seed=1)
    draws: dict[int, list[list[int]]] = {label: [] for label in labels.tolist()}
    for epoch in range(6):
        for batch in sampler.plan(epoch):
            for block in batch.reshape(classes, m).tolist():
                draws[labels[block[0]]].append(block)
    for label, blocks in draws.items():
        rows = set(np.flatnonzero(labels == label).tolist())
        round_length = -(-len(rows) // m)
        for begin in range(0, len(blocks) - round_length + 1, round_length):
            assert {row for block in blocks[begin : begin + round_length] for row in block} == rows


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(0, 4))
def test_ranks_share_one_batch_and_a_resumed_pass_is_the_rest(case, epoch: int) -> None:
    labels, m, classes, world = case
    joined = MPerClass(labels, m * classes, m, seed=5)
    joined.set_epoch(epoch)
    whole = list(joined)
    ranks = [MPerClass(labels, m * classes, m, seed=5, rank=rank, world_size=world) for rank in range(world)]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    parts = list(zip(*ranks, strict=True))
    assert [[row for part in rows for row in part] for rows in parts] == whole
    assert {len(rows) for part in parts for rows in part} == {m * classes // world}
    step = len(whole) // 2
    joined.start(step)
    assert len(joined) == len(whole) - step
    assert list(joined) == whole[step:]
    assert list(joined) == whole  # only one pass starts late


def test_epochs_and_seeds_differ_and_repeat() -> None:
    labels = np.repeat(np.arange(10), 6)
    plans = {
        (seed, epoch): MPerClass(labels, 8, 2, seed=seed).plan(epoch).tobytes() for seed in (0, 1) for epoch in (0, 1)
    }
    assert len(set(plans.values())) == 4
    assert MPerClass(labels, 8, 2, seed=1).plan(1).tobytes() == plans[1, 1]


def test_pairs_are_not_always_the_same() -> None:
    """Six pictures two at a time make 15 pairs; cycling in a fixed order would show three of them."""
    labels = np.repeat(np.arange(2), 6)
    sampler = MPerClass(labels, 4, 2)
    pairs = {tuple(sorted(batch[:2])) for epoch in range(60) for batch in sampler.plan(epoch).tolist()}
    pairs |= {tuple(sorted(batch[2:])) for epoch in range(60) for batch in sampler.plan(epoch).tolist()}
    assert len(pairs) == 30


def test_pictures_are_drawn_evenly() -> None:
    labels = np.array([0] * 5 + [1] * 3 + [2] * 40)
    sampler = MPerClass(labels, 6, 2, seed=2)
    rows = np.concatenate([sampler.plan(epoch).ravel() for epoch in range(300)])
    counts = np.bincount(rows, minlength=len(labels))
    for label in range(3):
        share = counts[labels == label] / counts[labels == label].mean()
        assert share.min() > 0.85
        assert share.max() < 1.15


def test_twenty_thousand_classes_cost_little_memory() -> None:
    """user-pains 10: 20,000 classes x 5 pictures, under 100 MB with an epoch's plan."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(20_000), 5))
    tracemalloc.start()
    sampler = MPerClass(labels, 128, 4)
    plan = sampler.plan(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.shape == (781, 128)
    assert len(np.unique(labels[plan])) == 20_000
    assert peak < 30e6


@pytest.mark.parametrize("size", [8, 9, 15, 17, 33, 64, 101])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_loader_length_is_the_number_of_steps(size: int, workers: int) -> None:
    """user-pains 12: seven odd sizes, through a real loader, also after a resume."""
    labels = np.arange(size) % 4
    data = TensorDataset(torch.arange(size))
    for sampler in (MPerClass(labels, 8, 2), Shuffled(size, 8)):
        loader = DataLoader(data, batch_sampler=sampler, num_workers=workers)
        assert len(loader) == sum(1 for _ in loader)
        sampler.start(len(loader) // 2)
        assert len(loader) == sum(1 for _ in loader)
        assert len(loader) == sampler.steps_per_epoch


def test_start_survives_a_loader_with_workers() -> None:
    """torch asks for a second iterator when it has workers; the first must not use the start up."""
    sampler = Shuffled(12, 2)
    whole = [sorted(batch) for batch in sampler]
    sampler.start(3)
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_sampler=sampler, num_workers=1)
    assert [sorted(batch.tolist()) for (batch,) in loader] == whole[3:]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (np.arange(33), 32, 5),
            r"batch_size 32 is not a multiple of per_class 5. Use batch_size 30 or 35, or per_class 1, 2, 4, 8, 16",
        ),
        (
            (np.arange(9) % 3, 4, 5),
            r"batch_size 4 is not a multiple of per_class 5. Use batch_size 5, or per_class 1, 2",
        ),
        (
            (np.arange(50) % 5, 32, 4),
            r"batch_size 32 with per_class 4 needs 8 classes, but there are 5.",
        ),
        ((np.zeros((4, 2)), 2, 1), r"labels has shape \(4, 2\); expected \(n,\)"),
        ((np.array([]), 2, 1), r"labels has shape \(0,\)"),
        ((np.arange(4), 2, 0), "per_class is 0; it must be at least 1"),
        ((np.arange(4), 0, 1), "batch_size is 0"),
    ],
)
def test_numbers_that_do_not_fit(arguments, words: str) -> None:
    """user-pains 13: an error at construction that says what would work, never a surprise batch."""
    with pytest.raises(DataError, match=words):
        MPerClass(*arguments)


def test_a_batch_that_the_ranks_cannot_share() -> None:
    with pytest.raises(DataError, match=r"A batch of 6 cannot be shared equally by 4 processes. .* use 4 or 8"):
        MPerClass(np.arange(12), 6, 2, world_size=4)
    with pytest.raises(DataError, match=r"rank 2 is outside 0..1"):
        Shuffled(10, 4, rank=2, world_size=2)
    with pytest.raises(DataError, match="There are 1 rows for 2 processes"):
        Shuffled(1, 4, world_size=2)
    with pytest.raises(DataError, match="Cannot start at step 3: an epoch has 2 steps"):
        Shuffled(10, 4).start(3)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4))
def test_shuffled_visits_rows_once(num: int, share: int, world: int) -> None:
    """user-pains 13: 33 rows in batches of 32 make one batch of 32; 3 rows make one batch of 3."""
    if num < world:
        return
    samplers = [Shuffled(num, share * world, seed=4, rank=rank, world_size=world) for rank in range(world)]
    steps = list(zip(*samplers, strict=True))
    rows = [row for step in steps for part in step for row in part]
    assert len(set(rows)) == len(rows)
    assert len(steps) == len(samplers[0]) == max(num // (share * world), 1)
    size = share * world if num >= share * world else num // world * world
    assert all(sum(map(len, step)) == size for step in steps)
    assert all(len({len(part) for part in step}) == 1 for step in steps)
