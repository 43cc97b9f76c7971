"""Synthetic domains: pure functions from a uint8 picture (H, W, 3) to one of the same shape, without random numbers.

They stand in for the undefined 'Ext.' versions of CUB and Cars (our definition). Only NumPy is used, so that the same
picture gives the same result wherever NumPy rounds alike.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_LUMA = (299, 587, 114)  # thousandths


def sketch(picture: Picture) -> Picture:
    """Dark lines on white: the Sobel magnitude of the grey picture, inverted."""
    grey = np.pad(_grey(picture), 1, mode="edge")
    smooth_rows = grey[:-2] + 2 * grey[1:-1] + grey[2:]
    smooth_columns = grey[:, :-2] + 2 * grey[:, 1:-1] + grey[:, 2:]
    across = smooth_rows[:, 2:] - smooth_rows[:, :-2]
    down = smooth_columns[2:] - smooth_columns[:-2]
    return _three(255 - np.hypot(across, down))


def cartoon(picture: Picture) -> Picture:
    """Flat regions: five bilateral filters (5 x 5, 2 px, 25 grey levels), then 8 levels a channel."""
    values = picture.astype(np.float32)
    for _ in range(5):
        values = _bilateral(values, reach=2, space=2.0, colour=25.0)
    return _bytes(np.floor(values / 32) * 32 + 16)


def oil(picture: Picture) -> Picture:
    """Strokes: a mode filter of radius 4; each pixel is the mean of the most frequent of 8 grey levels around it."""
    level = _luma(picture) // 32_000
    best = np.zeros(level.shape, dtype=np.int64)
    result = np.zeros(picture.shape, dtype=np.int64)
    for number in range(8):
        chosen = level == number
        count = _box(chosen.astype(np.int64), 4)
        total = _box(np.where(chosen[..., None], picture, 0).astype(np.int64), 4)
        better = count > best
        best = np.where(better, count, best)
        # Rounded to the nearest in whole numbers.
        mean = (2 * total + count[..., None]) // np.maximum(2 * count[..., None], 1)
        result = np.where(better[..., None], mean, result)
    return result.astype(np.uint8)


def negative(picture: Picture) -> Picture:
    """Every value v becomes 255 - v."""
    return np.asarray(255 - picture, dtype=np.uint8)


def grey_blur(picture: Picture) -> Picture:
    """Grey, then a Gaussian blur of 2 px."""
    grid = np.arange(-6, 7, dtype=np.float32)
    weights = np.exp(-(grid**2) / 8)
    weights /= weights.sum()
    grey = np.pad(_grey(picture), 6, mode="edge")
    height, width = picture.shape[:2]
    rows = sum((weight * grey[i : i + height] for i, weight in enumerate(weights)), np.zeros((), np.float32))
    return _three(sum((weight * rows[:, i : i + width] for i, weight in enumerate(weights)), np.zeros((), np.float32)))


def fog(picture: Picture) -> Picture:
    """A bright veil of 40 to 80 percent, in fixed soft clouds, thicker towards the top."""
    height, width = picture.shape[:2]
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :]
    clouds = (
        np.sin(5.1 * x + 2.3 * y + 0.7) + 0.5 * np.sin(9.7 * y - 6.1 * x) + 0.25 * np.sin(17.3 * x + 13.9 * y + 1.9)
    )
    veil = (0.6 + 0.08 * clouds - 0.06 * (2 * y - 1))[..., None]
    return _bytes(picture * (1 - veil) + 235 * veil)


def spectral(picture: Picture) -> Picture:
    """The amplitude spectrum of a fixed texture with the phase of the picture, brought to its mean and spread."""
    values = picture.astype(np.float64)
    phase = np.angle(np.fft.fft2(values, axes=(0, 1)))
    amplitude = np.abs(np.fft.fft2(_texture(*picture.shape[:2]), axes=(0, 1)))
    mixed = np.real(np.fft.ifft2(amplitude * np.exp(1j * phase), axes=(0, 1)))
    axes = (0, 1)
    spread = mixed.std(axis=axes, keepdims=True)
    scale = values.std(axis=axes, keepdims=True) / np.maximum(spread, 1e-6)
    centred = (mixed - mixed.mean(axis=axes, keepdims=True)) * scale
    # Rounded to six decimals first, so that the last bits of the transform do not matter.
    return _bytes(np.round(centred + values.mean(axis=axes, keepdims=True), 6))


EFFECTS: dict[str, Callable[[Picture], Picture]] = {
    "sketch": sketch,
    "cartoon": cartoon,
    "oil": oil,
    "negative": negative,
    "grey-blur": grey_blur,
    "fog": fog,
    "spectral": spectral,
}


def _luma(picture: Picture) -> npt.NDArray[np.int64]:
    """Return the grey value of each pixel in thousandths, exactly."""
    red, green, blue = (weight * picture[..., i].astype(np.int64) for i, weight in enumerate(_LUMA))
    return np.asarray(red + green + blue, dtype=np.int64)


def _grey(picture: Picture) -> Floats:
    return np.asarray(_luma(picture) / 1000, dtype=np.float32)


def _bytes(values: npt.NDArray[np.floating]) -> Picture:
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


def _three(grey: npt.NDArray[np.floating]) -> Picture:
    return np.repeat(_bytes(grey)[..., None], 3, axis=2)


def _bilateral(values: Floats, *, reach: int, space: float, colour: float) -> Floats:
    """Weigh each neighbour by its distance and by how near its colour is (all channels together)."""
    height, width = values.shape[:2]
    padded = np.pad(values, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    total = np.zeros_like(values)
    norm = np.zeros((height, width, 1), dtype=np.float32)
    for down in range(-reach, reach + 1):
        for across in range(-reach, reach + 1):
            near = padded[reach + down : reach + down + height, reach + across : reach + across + width]
            gap = np.sum((near - values) ** 2, axis=2, keepdims=True)
            weight = np.exp(-(down * down + across * across) / (2 * space**2) - gap / (2 * colour**2)).astype(
                np.float32
            )
            total += weight * near
            norm += weight
    return total / norm


def _box(values: npt.NDArray[np.int64], radius: int) -> npt.NDArray[np.int64]:
    """Sum over the square around each pixel, cut at the border."""
    sums = values
    for axis in (0, 1):
        size = values.shape[axis]
        running = np.concatenate([np.zeros_like(np.take(sums, [0], axis)), np.cumsum(sums, axis=axis)], axis=axis)
        middle = np.arange(size)
        high, low = np.minimum(middle + radius + 1, size), np.maximum(middle - radius, 0)
        sums = np.take(running, high, axis) - np.take(running, low, axis)
    return sums


def _texture(height: int, width: int) -> npt.NDArray[np.float64]:
    """A fixed pattern of whole numbers, (H, W, 3), with energy at all frequencies."""
    y, x = np.mgrid[:height, :width].astype(np.int64)
    channels = [(a * x * x + b * y * y + c * x * y) % 251 for a, b, c in ((3, 5, 7), (5, 7, 3), (7, 3, 5))]
    return np.stack(channels, axis=2).astype(np.float64)
