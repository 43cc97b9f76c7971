"""The runtime beside torch: the same pixels, the same vectors, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from proxemics import runtime
from proxemics.core.errors import ConfigError, ExportError, ImageError, ModelError
from proxemics.data.preprocess import Preprocess
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.export.jobs.pictures import open_pictures
from proxemics.export.jobs.run import embed_pictures
from proxemics.export.onnx import export_onnx
from proxemics.models import Embedder, save_bundle
from proxemics.runtime.exact import ExactPreprocess
from proxemics.runtime.layout import ONNX


def copied(bundle: Path, folder: Path) -> Path:
    shutil.copytree(bundle, folder)
    return folder


def edit(folder: Path, **changes: object) -> None:
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**about, **changes}))


def test_vectors_and_lengths_are_those_of_torch(embedder: Embedder, bundle: Path, odd_pictures: list[Path]) -> None:
    model = runtime.load(bundle, threads=1)
    units, lengths = model.embed_with_lengths(odd_pictures, batch_size=5)
    assert units.shape == (len(odd_pictures), 8)
    assert units.dtype == lengths.dtype == np.float32
    pixels = torch.from_numpy(np.stack([embedder.preprocess(path) for path in odd_pictures]))
    with torch.no_grad():
        encoded = embedder.encode(pixels)
    assert np.abs(units - encoded.unit.numpy()).max() < 1e-5
    np.testing.assert_allclose(lengths, encoded.raw.norm(dim=1).numpy(), rtol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(units, axis=1), 1, rtol=1e-5)
    assert np.ptp(units, axis=0).min() > 1e-4, "a model that ignores its input would pass everything above"
    assert (model.embed(odd_pictures, batch_size=1)[:, 0] - units[:, 0]).max() < 1e-5
    assert np.array_equal(model.lengths(odd_pictures, batch_size=5), lengths)


def test_vectors_are_those_of_the_evaluation(embedder: Embedder, bundle: Path, odd_pictures: list[Path]) -> None:
    """The evaluation prepares pictures with its fast engine, whose pixels may be one grey level off."""
    units = runtime.load(bundle, threads=1).embed(odd_pictures)
    theirs, _ = extract_with_certainty(embedder, odd_pictures)
    assert (units * theirs).sum(1).min() > 0.9999


def test_pixels_are_those_of_the_exact_engine(embedder: Embedder, bundle: Path, odd_pictures: list[Path]) -> None:
    model = runtime.load(bundle, threads=1)
    for path in odd_pictures:
        mine, theirs = model.prepare(path), embedder.preprocess(path)
        assert mine.dtype == theirs.dtype == np.float32
        assert np.array_equal(mine, theirs), path
        assert np.array_equal(model.prepare(path.read_bytes()), theirs), path
        with Image.open(path) as opened:
            assert np.array_equal(model.prepare(opened), theirs), path


def test_what_a_model_says_of_itself(embedder: Embedder, bundle: Path, tmp_path: Path) -> None:
    model = runtime.load(str(bundle), threads=1)
    assert model.fingerprint == embedder.fingerprint()
    assert model.preprocess_fingerprint == embedder.preprocess.fingerprint()
    assert (model.dim, model.labels, model.precision) == (8, ("owl", "auk"), "float32")
    assert model.thresholds is None
    assert model.certainty is None
    folder = copied(bundle, tmp_path / "b")
    (folder / "labels.json").unlink()
    (folder / "thresholds.json").write_text('{"threshold": 0.5}')
    (folder / "certainty.json").write_text('{"trained": false}')
    model = runtime.load(folder, threads=1)
    assert model.labels is None
    assert model.thresholds == {"threshold": 0.5}
    assert model.certainty == {"trained": False}
    (folder / "thresholds.json").write_text("[]")
    with pytest.raises(Exception, match=r"thresholds.json does not hold what it should"):
        runtime.load(folder, threads=1)


def test_nothing_gives_nothing(bundle: Path) -> None:
    model = runtime.load(bundle, threads=1)
    assert model.embed([]).shape == (0, 8)
    assert model.lengths([]).shape == (0,)
    assert model.encode(np.zeros((0, 3, 48, 48), np.float32))[0].shape == (0, 8)
    assert model.embed(iter([Image.new("RGB", (9, 9))])).shape == (1, 8)


def test_a_bundle_can_be_moved_and_need_not_be_whole(bundle: Path, tmp_path: Path) -> None:
    picture = Image.new("RGB", (60, 50), (10, 200, 30))
    before = runtime.load(bundle, threads=1).embed([picture])
    folder = copied(bundle, tmp_path / "somewhere é else")
    (folder / "model.safetensors").unlink()  # not needed to run
    assert np.array_equal(runtime.load(folder, threads=1).embed([picture]), before)


def test_bad_pictures_give_one_line(bundle: Path, odd_pictures: list[Path], tmp_path: Path) -> None:
    model = runtime.load(bundle, threads=1, max_pixels=50_000)
    good = odd_pictures[0]
    for name, content, message in (
        ("empty.jpg", b"", r"empty.jpg cannot be read: the file is empty"),
        ("cut.jpg", good.read_bytes()[:900], r"cut.jpg cannot be read: image file is truncated"),
        ("text.png", b"hello", r"text.png cannot be read: it is not a picture in a known format"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=message) as error:
            model.embed([good, tmp_path / name])
        assert "\n" not in str(error.value)
    large = tmp_path / "large.png"
    Image.new("1", (400, 400)).save(large)
    for picture in (large, large.read_bytes(), Image.new("1", (400, 400))):
        with pytest.raises(ImageError, match=r"400 x 400 = 160000 pixels is over the limit of 50000"):
            model.embed([picture])
    with pytest.raises(ImageError, match=r"absent.jpg cannot be read: there is no such file"):
        model.embed([tmp_path / "absent.jpg"])
    with pytest.raises(ImageError, match=r"picture 1 cannot be read: the file is empty"):
        model.embed([good, b""])
    for single in (str(good), good, good.read_bytes(), Image.new("RGB", (2, 2))):
        with pytest.raises(ImageError, match=r"write \[picture\] for a single one"):
            model.embed(single)
    with pytest.raises(ImageError, match="picture 0 is no path, bytes or Pillow image but int"):
        model.embed([3])
    with pytest.raises(ImageError, match="batch_size=0"):
        model.embed([good], batch_size=0)
    with pytest.raises(ImageError, match=r"Prepared pictures are \(B, 3, 48, 48\), not \(1, 3, 9, 9\)"):
        model.encode(np.zeros((1, 3, 9, 9), np.float32))


def test_a_bomb_is_refused_by_its_header(bundle: Path, tmp_path: Path) -> None:
    """Decoded it would be 2.7 GB; the file ends after its header."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(header)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "bomb.png").write_bytes(data + struct.pack(">I", 9) + b"IDAT" + bytes(13))
    with pytest.raises(ImageError, match=r"bomb.png cannot be read: .*\b900000000 pixels"):
        runtime.load(bundle, threads=1).embed([tmp_path / "bomb.png"])


@pytest.mark.parametrize("name", ["onnx/model.onnx", "preprocess.json", "labels.json"])
def test_changed_files_are_refused(name: str, bundle: Path, tmp_path: Path) -> None:
    folder = copied(bundle, tmp_path / "b")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name} is not the file that was exported: its hash differs"):
        runtime.load(folder, threads=1)


def test_a_graph_that_nobody_recorded_is_refused(bundle: Path, tmp_path: Path) -> None:
    folder = copied(bundle, tmp_path / "b")
    shutil.copyfile(folder / "onnx/model.onnx", folder / "onnx/model.int8.onnx")
    with pytest.raises(ModelError, match=r"model.int8.onnx is not recorded in model.json"):
        runtime.load(folder, precision="int8", threads=1)


def test_what_is_no_bundle_is_told(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is no bundle: it has no model.json"):
        runtime.load(tmp_path)
    folder = copied(bundle, tmp_path / "b")
    with pytest.raises(ModelError, match=r"precision='int9'; there are float32, float16, int8. Did you mean 'int8'"):
        runtime.load(folder, precision="int9")
    with pytest.raises(ModelError, match=r"has no onnx/model.int8.onnx; it has float32. Write it with `proxemics ex"):
        runtime.load(folder, precision="int8")
    edit(folder, schema=9, version="7.0")
    with pytest.raises(ModelError, match=r"was written by Proxemics 7.0, which is newer; update this one"):
        runtime.load(folder)
    edit(folder, schema=2, files=None)
    with pytest.raises(ModelError, match="does not describe a bundle"):
        runtime.load(folder)
    shutil.rmtree(folder / "onnx")
    edit(folder, schema=1)
    with pytest.raises(ModelError, match=r"it has no ONNX file. Write it with `proxemics export`"):
        runtime.load(folder)


def test_a_graph_that_does_not_run_is_told(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"^ONNX Runtime cannot run x.onnx: "):
        runtime.open_session(b"no graph", name="x.onnx")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "invalid JSON"),
        ('{"size": 9}', "of which size and resize must be there"),
        ('{"size": 9, "resize": 9, "crop": 1}', "its fields are size, resize, mean, std, interpolation"),
        ('{"size": 0, "resize": 9}', "size=0 is no positive whole number"),
        ('{"size": true, "resize": 9}', "size=True is no positive whole number"),
        ('{"size": 300, "resize": 256}', "size=300 is larger than resize=256"),
        ('{"size": 9, "resize": 9, "std": [1, 0, 1]}', "std=[1, 0, 1]; give three numbers, above 0"),
        ('{"size": 9, "resize": 9, "mean": [1, NaN, 1]}', "mean=[1, nan, 1]; give three numbers"),
        ('{"size": 9, "resize": 9, "interpolation": "lanczos"}', "allowed are bilinear, bicubic"),
    ],
)
def test_a_wrong_preprocessing_is_told(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        ExactPreprocess.from_json(text)
    assert message in str(error.value)


def test_both_read_the_same_preprocessing() -> None:
    for how in ("bilinear", "bicubic"):
        mine = Preprocess(size=30, resize=32, mean=(0, 0.5, 1), std=(1, 0.1, 3), interpolation=how)
        exact = ExactPreprocess.from_json(mine.to_json())
        assert (exact.size, exact.resize, exact.mean, exact.std) == (30, 32, mine.mean, mine.std)
        assert exact.interpolation == how
    assert ExactPreprocess.from_json('{"size": 9, "resize": 9}').mean == Preprocess(size=9, resize=9).mean
    assert ExactPreprocess.from_json('{"size": 9, "resize": 9}').std == Preprocess(size=9, resize=9).std


@pytest.mark.data
def test_what_embed_writes_goes_with_what_a_bundle_says(shared_data: Path, tmp_path: Path) -> None:
    """The fast pixels of `proxemics embed` and those of the runtime, on photographs and with real weights."""
    embedder = Embedder("auto", dim=64, size=160).eval()
    made = save_bundle(
        embedder, tmp_path / "made", more=lambda new: export_onnx(embedder, new / ONNX["float32"]) and None
    )
    table = pd.read_csv(shared_data / "index.csv")
    table = table[table["dataset"].isin(["cub200_2010", "grocery"])].sample(40, random_state=0)
    table.to_csv(tmp_path / "some.csv", index=False)
    embed_pictures(made, open_pictures(str(tmp_path / "some.csv"), root=str(shared_data)), tmp_path / "out.npy")
    fast = np.load(tmp_path / "out.npy")
    slow = runtime.load(made, threads=1).embed(shared_data / name for name in table["path"])
    cosines = (fast * slow).sum(1)
    assert 0.9999 < cosines.min() <= cosines.max() < 1.00001
