"""A plain PyTorch loop: a loss, a method on top of it, and an honest evaluation on classes never trained on.

    pip install "proxemics[train,demo]"
    python examples/plain_pytorch.py

Pictures are confounded glyphs, rendered on the spot. Nothing of Proxemics runs the loop: the loss is a module, the
method (SEE) returns terms to add, and the evaluation takes embeddings and labels. Any model will do in place of the
embedder, as long as it maps pictures (B, 3, H, W) to embeddings (B, D).
"""

import argparse

import torch
from torch import Tensor

from proxemics.data.confounded import ConfoundedSpec, render
from proxemics.evaluation import EvaluationResult, evaluate_embeddings
from proxemics.losses import ProxyAnchor
from proxemics.methods import SEE, Step
from proxemics.models import Embedder


@torch.no_grad()
def measure(model: Embedder, pictures: Tensor, labels: list[str]) -> EvaluationResult:
    model.eval()
    return evaluate_embeddings(torch.cat([model(part) for part in pictures.split(100)]), labels, recall_at=(1, 2, 4))


def main(steps: int, classes: int = 40, size: int = 64) -> tuple[EvaluationResult, EvaluationResult, list[float]]:
    spec = ConfoundedSpec(train_classes=classes, test_classes=classes, per_class=10, size=size, rho=0)
    arrays, _, table = render(spec)
    model = Embedder("tf_efficientnet_lite0", dim=128, size=size, freeze_stages=3)
    pictures = model.preprocess.normalize(torch.from_numpy(arrays).permute(0, 3, 1, 2))
    seen = (table["split"] == "train").to_numpy(copy=True)
    train, labels = pictures[seen], torch.tensor(table["label"][seen].factorize()[0])
    unseen, unseen_labels = pictures[~seen], table["label"][~seen].to_list()

    loss, method = ProxyAnchor(classes, 128), SEE(num_synthetic=4)
    groups = [{"params": model.parameters()}, {"params": loss.parameters(), "lr": 0.05}]  # proxies learn faster
    optimizer, generator = torch.optim.AdamW(groups, lr=5e-4), torch.Generator().manual_seed(0)
    untrained, losses = measure(model, unseen, unseen_labels), []
    for number in range(steps):
        model.train()
        rows = torch.randperm(len(labels), generator=generator)[:64]
        z = model.encode(train[rows])
        step = Step(z.unit, z.raw, labels[rows], loss, generator, progress=number / steps)
        value = loss(z.raw, labels[rows]) + sum(method.terms(step).values())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return untrained, measure(model, unseen, unseen_labels), losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    before, after, _ = main(parser.parse_args().steps)
    print(f"Recall@1 on unseen classes: untrained {before['recall_at_1']:.3f}, trained {after['recall_at_1']:.3f}")
