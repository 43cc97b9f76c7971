"""Draws the figures of the pages on methods. Run it from the root: ``python docs/methods/figures.py``."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from proxemics.methods.probabilistic import nivmf_log_density, sample_vmf, vmf_mean_resultant_length
from proxemics.methods.see import spherical_expansion

IMAGES = Path(__file__).resolve().parents[1] / "images"
BLUE, RED, GREY = "#2b6cb0", "#c53030", "#718096"


def sphere_grid(size=300):
    """Points of the visible half of the sphere seen along the first axis: (size, size, 3), NaN outside the disc."""
    y, z = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size))
    square = 1 - y**2 - z**2
    x = np.sqrt(np.where(square >= 0, square, np.nan))
    return np.stack([x, y, z], -1)


def on_screen(points):
    return points[..., 1], points[..., 2]


def see_figure():
    w = torch.tensor([[0.8, 0.15, 0.58]], dtype=torch.float64)
    w = w / w.norm()
    z = torch.tensor([[0.55, 0.75, 0.36]], dtype=torch.float64)
    z = z / z.norm()
    points = torch.cat([z, spherical_expansion(z, w, 2, frame="fixed")[0]])
    c = float(z @ w.T)
    a = torch.linalg.cross(w, torch.tensor([[0.0, 0, 1]], dtype=torch.float64))
    a = a / a.norm()
    b = torch.linalg.cross(w, a)
    turn = torch.linspace(0, 2 * np.pi, 200, dtype=torch.float64)[:, None]
    ring = c * w + np.sqrt(1 - c * c) * (torch.cos(turn) * a + torch.sin(turn) * b)

    figure, axes = plt.subplots(figsize=(3.6, 3.4))
    axes.add_patch(plt.Circle((0, 0), 1, facecolor="#edf2f7", edgecolor=GREY))
    visible = ring[:, 0] >= 0
    axes.plot(*on_screen(np.where(visible[:, None], ring, np.nan)), color=BLUE, lw=1.2)
    axes.plot(*on_screen(np.where(~visible[:, None], ring, np.nan)), color=BLUE, lw=1.2, ls=":")
    triangle = torch.cat([points, points[:1]])
    axes.plot(*on_screen(triangle), color=GREY, lw=0.8)
    axes.plot(*on_screen(w), "*", color=RED, ms=11)
    axes.plot(*on_screen(points[:1]), "o", color=BLUE)
    axes.plot(*on_screen(points[1:]), "o", color="white", markeredgecolor=BLUE)
    axes.annotate("w", on_screen(w[0]), (6, 4), textcoords="offset points", color=RED)
    axes.annotate("z", on_screen(points[0]), (7, 0), textcoords="offset points", color=BLUE)
    for name, point in zip(("z*₂", "z*₃"), points[1:], strict=True):
        axes.annotate(name, on_screen(point), (7, -4), textcoords="offset points", color=BLUE)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
    axes.axis("off")
    save(figure, "see.png")


def probabilistic_figure():
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3), width_ratios=(1, 1, 1.4))
    grid = torch.from_numpy(sphere_grid())
    mu = torch.tensor([[1.0, 0.35, 0.3]], dtype=torch.float64)
    for axes, kappa, title in ((left, (6, 6, 6), "vMF, κ = 6"), (middle, (3, 3, 12), "nivMF, K = (3, 3, 12)")):
        density = nivmf_log_density(grid.nan_to_num(), mu, torch.tensor([kappa]).double(), det="exact")[..., 0].exp()
        density = np.where(np.isnan(grid[..., 0]), np.nan, density)
        axes.imshow(density, origin="lower", extent=(-1, 1, -1, 1), cmap="Blues", vmin=0)
        axes.contour(density, extent=(-1, 1, -1, 1), levels=4, colors="white", linewidths=0.6)
        axes.add_patch(plt.Circle((0, 0), 1, fill=False, edgecolor=GREY))
        axes.set_title(title, fontsize=9)
        axes.axis("off")
    kappa = torch.logspace(-1, 4, 60)
    right.semilogx(kappa, vmf_mean_resultant_length(kappa, 512), color=GREY, label="A(κ)", lw=3, alpha=0.5)
    for sampler, colour in (("stable", BLUE), ("legacy", RED)):
        generator = torch.Generator().manual_seed(0)
        axis = torch.eye(1, 512).expand(60, -1)
        cosines = sample_vmf(axis, kappa, 200, generator, sampler=sampler)[..., 0].mean(0)
        right.semilogx(kappa, cosines, ".-", ms=3, lw=0.8, color=colour, label=f'sampler="{sampler}"')
    right.set(xlabel="κ", title="mean cosine of draws, M = 512")
    right.title.set_fontsize(9)
    right.legend(fontsize=7, frameon=False)
    right.spines[["top", "right"]].set_visible(False)
    save(figure, "probabilistic.png")


def save(figure, name):
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    see_figure()
    probabilistic_figure()
