"""Draws the figures of the pages on methods. Run it from the root: ``python docs/methods/figures.py``."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from proxemics.methods.center_polar import angles_between, centrifugal_step, class_preserving_cap
from proxemics.methods.couce import amplitude_randomization, spatial_gate
from proxemics.methods.couce.spectrum import band_index
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


def couce_figure():
    size = 64
    rows, columns = np.mgrid[0:size, 0:size] / size
    disc = (rows - 0.5) ** 2 + (columns - 0.5) ** 2 < 0.07
    own = np.where(disc, 1.0, 0.15) + 0.12 * np.sin(2 * np.pi * 20 * columns)
    partner = np.where(np.abs(rows - columns) < 0.15, 0.9, 0.3) + 0.35 * np.sin(2 * np.pi * 6 * (rows + columns))
    maps = torch.from_numpy(np.stack([own, partner]))[:, None]
    whole = torch.fft.fftshift(band_index_of_all(size))
    figure, axes = plt.subplots(1, 7, figsize=(10.5, 1.9))
    axes[0].imshow(whole, cmap="Blues", vmin=-1)
    shown = [("own map", own), ("partner", partner)]
    for band, name in enumerate(("low", "middle", "high")):
        strengths = torch.zeros(2, 3)
        strengths[:, band] = 1
        changed = amplitude_randomization(maps, strengths=strengths, partners=torch.tensor([1, 0]))
        shown.append((f"{name} band swapped", changed[0, 0]))
    for axis, (title, picture) in zip(axes[1:], shown, strict=False):
        axis.imshow(picture, cmap="Greys_r", vmin=-0.3, vmax=1.4)
        axis.set_title(title, fontsize=8)
    tokens = torch.full((1, 49, 64), 0.5) + 0.1 * torch.randn(1, 49, 64, generator=torch.Generator().manual_seed(0))
    for place in (16, 17, 23, 24, 30, 31):
        tokens[0, place, :8] += 4
    axes[6].imshow(spatial_gate(tokens).view(7, 7), cmap="Blues", vmin=0, vmax=1)
    axes[0].set_title("bands of the spectrum", fontsize=8)
    axes[6].set_title("gate: dark is background", fontsize=8)
    for axis in axes:
        axis.axis("off")
    save(figure, "couce.png")


def band_index_of_all(size):
    """The bands over the whole spectrum (size, size)."""
    half = band_index(size, size, (0, 1 / 3, 2 / 3, 1))
    mirror = half.flip(1)[:, 1:-1]
    return torch.cat([half, mirror.flip(0).roll(1, 0)], 1)


def center_polar_figure():
    """The plane of the circle: own centroid, sample, rival; and the cosines along the circle up to the cap."""
    turn = torch.linspace(0, np.pi, 400, dtype=torch.float64)
    ring = torch.stack([turn.cos(), turn.sin()], 1)
    centroids = torch.tensor([[1.0, 0.0], [np.cos(1.9), np.sin(1.9)]], dtype=torch.float64)
    z = torch.tensor([[np.cos(0.25), np.sin(0.25)]], dtype=torch.float64)
    own, label, margin = centroids[:1], torch.tensor([0]), 0.2
    theta = angles_between(z, own)
    cap = class_preserving_cap(theta, torch.tensor([[0.0, 1.0]]).double(), centroids, label, margin=margin)
    moved = centrifugal_step(z, own, 0.45)

    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.1), width_ratios=(1.25, 1))
    left.plot(*ring.T, color=GREY, lw=1)
    allowed = (turn >= 0) & (turn <= cap)
    left.plot(*ring[allowed].T, color=BLUE, lw=4, alpha=0.3, solid_capstyle="butt")
    arc = (turn >= theta) & (turn <= theta + 0.45)
    left.annotate("", moved[0] * 1.08, z[0] * 1.08, arrowprops={"arrowstyle": "->", "color": BLUE})
    left.plot(*ring[arc].T, color=BLUE, lw=1.5)
    left.plot(*centroids.T, "*", color=RED, ms=11)
    left.plot(*z.T, "o", color=BLUE)
    left.plot(*moved.T, "o", color="white", markeredgecolor=BLUE)
    edge = torch.stack([cap.cos(), cap.sin()], 1)[0]
    left.plot(*(torch.stack([edge * 0.95, edge * 1.05]).T), color=BLUE, lw=1.5)
    for name, point, colour, far in (
        ("c", own[0], RED, 0.9),
        ("c′", centroids[1], RED, 0.88),
        ("z", z[0], BLUE, 0.9),
        ("G(z; Δ)", moved[0], BLUE, 0.8),
        ("cap", edge, BLUE, 1.14),
    ):
        left.annotate(name, point * far, ha="center", va="center", color=colour, fontsize=9)
    left.set(xlim=(-0.45, 1.15), ylim=(-0.08, 1.12), aspect="equal")
    left.axis("off")

    degrees = turn.rad2deg()
    right.plot(degrees, ring @ own[0], color=BLUE, label="to the own centroid c")
    right.plot(degrees, ring @ centroids[1], color=RED, label="to the rival c′")
    right.axvspan(0, float(cap.rad2deg()), color=BLUE, alpha=0.1, lw=0)
    high, low = float(edge @ own[0]), float(edge @ centroids[1])
    right.vlines(float(cap.rad2deg()), low, high, color=GREY)
    right.annotate("margin", (float(cap.rad2deg()), (high + low) / 2), (18, -4), textcoords="offset points", fontsize=7)
    right.set(xlabel="φ, angle to the own centroid (degrees)", ylabel="cosine", xlim=(0, 110), ylim=(-0.4, 1.05))
    right.legend(fontsize=7, frameon=False, loc="lower left")
    right.spines[["top", "right"]].set_visible(False)
    save(figure, "center_polar.png")


def save(figure, name):
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    see_figure()
    probabilistic_figure()
    couce_figure()
    center_polar_figure()
