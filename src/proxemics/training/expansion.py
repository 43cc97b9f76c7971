"""What the expansion of a run makes: a sheet of training pictures beside versions that the generator made of them.

``expansion.jpg`` is a table of square tiles: a row a picture (all pictures of the first method, then of the next), the
picture first and its versions after it. ``expansion.json`` says what stands in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from proxemics.core.config import Config
from proxemics.core.files import atomic_path, write_json
from proxemics.core.seeds import torch_generator
from proxemics.data.preprocess import Preprocess
from proxemics.methods.base import Method
from proxemics.methods.center_polar import CenterPolar, ExpansionEqualisation
from proxemics.training.picture_sample import read_batches, spread_rows
from proxemics.training.run_folder import RunFolder

PICTURES, VERSIONS = 8, 3
LARGEST_TILE = 160


def save_expansion(
    config: Config, methods: Mapping[str, Method], preprocess: Preprocess, rows: pd.DataFrame, folder: RunFolder
) -> bool:
    """Write the sheet, with the methods as they are now.

    Args:
        config: of the run; its seed chooses pictures and draws.
        methods: by name.
        preprocess: of the model.
        rows: the training rows.
        folder: of the run.

    Returns:
        Whether it was written: False where no method makes pictures, or none can be read.

    Raises:
        ProxemicsError: the disk is full.
    """
    makers = {name: one for name, one in methods.items() if _makes_pictures(one)}
    if not makers:
        return False
    drawn = rows.iloc[spread_rows(rows, PICTURES, config.seed)].reset_index(drop=True)
    ((found, pixels),) = read_batches(drawn["path"].to_list(), preprocess, max_pixels=config.data.max_pixels)
    if not found:
        return False
    shown = drawn.iloc[found].fillna("")
    side = min(preprocess.size, LARGEST_TILE) // 8 * 8  # whole JPEG blocks, so that tiles do not run into each other
    sheet = Image.new("RGB", ((1 + VERSIONS) * side, len(makers) * len(found) * side))
    for number, method in enumerate(makers.values()):
        columns = [pixels, *versions(method, pixels, preprocess, config.seed)]
        for column, pictures in enumerate(columns):
            for row, picture in enumerate(pictures):
                tile = Image.fromarray(_grey_levels(picture)).resize((side, side), Image.Resampling.LANCZOS)
                sheet.paste(tile, (column * side, (number * len(found) + row) * side))
    with atomic_path(folder.expansion) as temporary:
        sheet.save(temporary, "JPEG", quality=92, subsampling=0)
    write_json(
        folder.expansion.with_suffix(".json"),
        {
            "tile": side,
            "versions": VERSIONS,
            "methods": [{"name": name, "learnt": _has_learnt(one)} for name, one in makers.items()],
            "pictures": [
                {"path": str(path), "label": str(label), "domain": str(domain)}
                for path, label, domain in zip(shown["path"], shown["label"], shown["domain"], strict=True)
            ],
        },
    )
    return True


def versions(method: Method, pixels: Tensor, preprocess: Preprocess, seed: int) -> list[Tensor]:
    """Let the generator of a method change pictures a few times; all pictures of a version share its filters.

    Args:
        method: one that makes pictures.
        pixels: (n, 3, S, S) uint8.
        preprocess: of the model.
        seed: of the draws.

    Returns:
        Tensors like ``pixels``, float32 grey levels.
    """
    assert isinstance(method, CenterPolar | ExpansionEqualisation)
    images = preprocess.normalize(pixels)
    draws = [torch_generator(seed, "expansion", number) for number in range(VERSIONS)]
    return [preprocess.denormalize(method.expand_pictures(images, preprocess, draw)) for draw in draws]


def _makes_pictures(method: Method) -> bool:
    return isinstance(method, CenterPolar | ExpansionEqualisation) and method.on and method.learner is not None


def _has_learnt(method: Method) -> bool:
    assert isinstance(method, CenterPolar | ExpansionEqualisation)
    return method.learner is not None and int(method.learner.epoch) >= 0


def _grey_levels(picture: Tensor) -> NDArray[np.uint8]:
    values = picture.round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(values.permute(1, 2, 0).numpy())
