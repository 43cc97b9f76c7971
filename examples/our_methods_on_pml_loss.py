"""Methods of Proxemics on top of a proxy loss of pytorch-metric-learning, in a loop of your own.

    pip install "proxemics[train,demo]" pytorch-metric-learning
    python examples/our_methods_on_pml_loss.py --method couce

`wrap` makes their loss keep our contract: it gets ``proxies`` and ``similarities``, which is all that methods look at.
`TrainingStep` is the path of a batch: clean pass, views of the methods, loss and terms, each under its own name.
"""

import argparse

import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch import Tensor

from proxemics.data.confounded import ConfoundedSpec, render
from proxemics.evaluation import EvaluationResult, evaluate_embeddings
from proxemics.losses.pml import wrap
from proxemics.methods import SEE, Batch, CouCE, Method, ProbabilisticProxies
from proxemics.models import Embedder
from proxemics.training.step import TrainingStep

DIM = 128


def build_method(name: str, classes: int) -> Method:
    """Build a method from its name."""
    if name == "see":
        return SEE(num_synthetic=4, rho_min=0.4)
    if name == "probabilistic":
        return ProbabilisticProxies(classes, DIM, warm_start=False, init_norm_multiplier=1.0)
    return CouCE(DIM, ramp_epochs=0)


@torch.no_grad()
def measure(model: Embedder, pictures: Tensor, labels: list[str]) -> EvaluationResult:
    """Search unseen classes among themselves."""
    model.eval()
    return evaluate_embeddings(torch.cat([model(part) for part in pictures.split(100)]), labels, recall_at=(1, 2, 4))


def main(
    method: str, steps: int, *, classes: int = 40, size: int = 64
) -> tuple[EvaluationResult, EvaluationResult, list[dict[str, float]]]:
    """Train and return the result before, the result after and the terms of every step."""
    spec = ConfoundedSpec(train_classes=classes, test_classes=classes, per_class=10, size=size, rho=0)
    arrays, _, table = render(spec)
    model = Embedder("tf_efficientnet_lite0", dim=DIM, size=size, freeze_stages=3)
    pictures = model.preprocess.normalize(torch.from_numpy(arrays).permute(0, 3, 1, 2))
    seen = (table["split"] == "train").to_numpy(copy=True)
    train, labels = pictures[seen], torch.tensor(table["label"][seen].factorize()[0])
    unseen, unseen_labels = pictures[~seen], table["label"][~seen].to_list()

    torch.manual_seed(0)
    loss = wrap(ProxyAnchorLoss(classes, DIM), num_classes=classes, dim=DIM)
    step = TrainingStep(model, loss, [build_method(method, classes)], steps_per_epoch=10)
    groups = [
        {"params": [one for one in model.parameters() if one.requires_grad]},
        {"params": [*loss.parameters(), *step.methods.parameters()], "lr": 0.02},
    ]
    optimizer, generator = torch.optim.AdamW(groups, lr=5e-4), torch.Generator().manual_seed(0)
    before, taken = measure(model, unseen, unseen_labels), []
    for number in range(steps):
        model.train()
        rows = torch.randperm(len(labels), generator=generator)[:32]
        batch = Batch(model.stage_features("pixel", train[rows]), labels[rows], torch.zeros_like(rows), rows)
        terms = step(batch, epoch=number // 10, progress=number / steps, seed=number)
        optimizer.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        optimizer.step()
        step.look_back()
        taken.append({name: value.item() for name, value in terms.items()})
    return before, measure(model, unseen, unseen_labels), taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--method", choices=["see", "probabilistic", "couce"], default="see")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    untrained, trained, last = main(args.method, args.steps)
    print("terms of the last step:", {name: round(value, 3) for name, value in last[-1].items()})
    print(f"Recall@1 on unseen classes: untrained {untrained['recall_at_1']:.3f}, trained {trained['recall_at_1']:.3f}")
