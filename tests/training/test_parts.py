"""Schedules, averages, guards, checkpoints and logs, each against what it promises."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from proxemics.core.config import OptimConfig
from proxemics.core.errors import TrainingError
from proxemics.training.checkpoint import (
    flatten_optimizer,
    load_checkpoint,
    load_module,
    restore_optimizer,
    save_checkpoint,
)
from proxemics.training.ema import WeightAverage
from proxemics.training.guard import check_finite
from proxemics.training.log import RunLog, read_log
from proxemics.training.schedule import rate_factor
from proxemics.training.shards import share_bounds


def test_cosine_falls_from_one_to_zero_after_the_warm_up() -> None:
    optim = OptimConfig(schedule="cosine", warmup_epochs=2)
    factors = [rate_factor("head", s, steps_per_epoch=5, epochs=12, optim=optim) for s in range(60)]
    assert factors[:11] == [1.0] * 11
    assert all(a >= b for a, b in pairwise(factors))
    assert factors[35] == pytest.approx(0.5)
    assert factors[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 49 / 50)))
    trunk = [rate_factor("trunk_no_decay", s, steps_per_epoch=5, epochs=12, optim=optim) for s in range(60)]
    assert trunk[:10] == [0.0] * 10
    assert trunk[10:] == factors[10:]


def test_average_is_put_in_and_taken_out_again() -> None:
    layer = nn.BatchNorm1d(3)
    average = WeightAverage(layer, decay=0.9)
    with torch.no_grad():
        layer.weight.fill_(2.0)
    average.update(layer)
    with average.applied_to(layer):
        assert layer.weight.tolist() == pytest.approx([1.1] * 3)
    assert layer.weight.tolist() == [2.0] * 3
    assert layer.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_terms_are_named(value: float) -> None:
    check_finite({"base": 1.0}, 1)
    with pytest.raises(TrainingError, match=r"Non-finite loss at step 12 \(odba="):
        check_finite({"base": 1.0, "odba": value}, 12)


def _trained_layer() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return layer, optimizer


def test_optimiser_comes_back_and_takes_the_same_next_step(tmp_path: Path) -> None:
    """User-pains 32: moments survive in float32 and the next step is the same bit for bit."""
    layer, optimizer = _trained_layer()
    save_checkpoint(tmp_path, {**layer.state_dict(), **flatten_optimizer(optimizer)}, {"epoch": 1}, step=3)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    tensors, facts = loaded
    assert facts["epoch"] == 1
    other = nn.Linear(3, 2)
    load_module(other, {name: tensors[name] for name in other.state_dict()})
    second = torch.optim.AdamW(other.parameters(), lr=0.1)
    restore_optimizer(second, {name: value for name, value in tensors.items() if name[0].isdigit()})
    for model, steps in ((layer, optimizer), (other, second)):
        model(torch.ones(4, 3)).square().sum().backward()
        steps.step()
    assert torch.equal(layer.weight, other.weight)


def test_only_the_latest_checkpoint_stays_and_half_written_ones_are_swept(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"a": torch.zeros(2)}, {}, step=1)
    (tmp_path / ".step-00000002.safetensors.x.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path, {"a": torch.ones(2)}, {}, step=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "step-00000002.safetensors"]


def test_damaged_and_foreign_checkpoints_say_so(tmp_path: Path) -> None:
    """User-pains 34: shapes that differ are an error, never a silent new start."""
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, {"weight": torch.zeros(5, 2)}, {}, step=1)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    with pytest.raises(TrainingError, match=r"does not fit Linear: .*size mismatch"):
        load_module(nn.Linear(3, 2, bias=False), loaded[0])
    (tmp_path / "step-00000001.safetensors").write_bytes(b"rubbish")
    with pytest.raises(TrainingError, match="cannot be read"):
        load_checkpoint(tmp_path)


def test_log_is_cut_back_to_the_checkpoint_and_survives_a_torn_line(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    for step in (1, 2, 3):
        log.write({"step": step, "loss": 0.5})
    with (tmp_path / "metrics.jsonl").open("a") as handle:
        handle.write('{"step": 4, "lo')
    assert [record["step"] for record in read_log(tmp_path)] == [1, 2, 3]
    RunLog(tmp_path, resume_step=2).write({"step": 3, "loss": 0.4})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.5}, {"step": 3, "loss": 0.4}]


@pytest.mark.parametrize(("rows", "world"), [(7, 2), (1, 3), (0, 2), (8, 4)])
def test_shares_cover_each_row_once(rows: int, world: int) -> None:
    """User-pains 45: nothing is padded or repeated."""
    bounds = share_bounds(rows, world)
    assert len(bounds) == world
    assert [row for start, end in bounds for row in range(start, end)] == list(range(rows))
