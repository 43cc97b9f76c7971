"""Files of every kind become upright RGB or an ImageError that names them (user-pains 66, 68, 74)."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from proxemics.core.errors import ImageError
from proxemics.data import jpeg
from proxemics.data.decode import decode_tensor, image_size, open_image, read_image
from proxemics.data.modes import deep_to_grey, to_rgb

STORED = {  # how a camera stores an upright picture under each Exif orientation
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def photo(width: int = 90, height: int = 70, seed: int = 0) -> Image.Image:
    """Smooth blobs with some noise: compresses like a photograph."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    return Image.fromarray((smooth + rng.integers(-6, 7, smooth.shape)).clip(0, 255).astype(np.uint8))


def mosaic() -> Image.Image:
    """Blocks of 16 x 16 constant pixels: JPEG without chroma subsampling keeps them under any turn."""
    blocks = np.random.default_rng(1).integers(0, 256, (3, 5, 3), dtype=np.uint8)
    return Image.fromarray(blocks.repeat(16, axis=0).repeat(16, axis=1))


def hwc(path: Path) -> np.ndarray:
    return decode_tensor(path).permute(1, 2, 0).numpy().astype(int)


def with_orientation(path: Path, upright: Image.Image, orientation: int, **options: object) -> None:
    turn = STORED[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    (upright if turn is None else upright.transpose(turn)).save(path, exif=exif, **options)


# ------------------------------------------------------------------------------------------------ modes


def palette(transparent: bool) -> Image.Image:
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    if transparent:
        image.info["transparency"] = 1
    return image


CASES = {
    "one.png": (Image.new("1", (4, 3), 1), (255, 255, 255)),
    "grey.png": (Image.new("L", (4, 3), 77), (77, 77, 77)),
    "grey_alpha.png": (Image.new("LA", (4, 3), (0, 128)), (127, 127, 127)),
    "palette.png": (palette(False), (10, 200, 30)),
    "palette_transparent.png": (palette(True), (255, 255, 255)),
    "palette.gif": (palette(False), (10, 200, 30)),
    "rgb.bmp": (Image.new("RGB", (4, 3), (1, 2, 3)), (1, 2, 3)),
    "rgba.png": (Image.new("RGBA", (4, 3), (0, 100, 200, 51)), (204, 224, 244)),
    "rgba_clear.webp": (Image.new("RGBA", (4, 3), (9, 9, 9, 0)), (255, 255, 255)),
    "cmyk.tif": (Image.new("CMYK", (4, 3), (0, 255, 0, 0)), (255, 0, 255)),
    "sixteen.png": (Image.new("I;16", (4, 3), 257 * 40), (40, 40, 40)),
    "sixteen.tif": (Image.new("I;16", (4, 3), 65535), (255, 255, 255)),
    "int_small.tif": (Image.new("I", (4, 3), 200), (200, 200, 200)),
    "int_deep.tif": (Image.new("I", (4, 3), 257 * 40), (40, 40, 40)),
    "float_unit.tif": (Image.new("F", (4, 3), 0.2), (51, 51, 51)),
    "float_grey.tif": (Image.new("F", (4, 3), 51.0), (51, 51, 51)),
    "lab.tif": (Image.new("LAB", (4, 3), (255, 128, 128)), (255, 255, 255)),
}


@pytest.mark.parametrize("name", CASES)
def test_modes(name: str, tmp_path: Path) -> None:
    """user-pains 74: alpha is composited on white wherever it comes from."""
    image, expected = CASES[name]
    options = {"lossless": True} if name.endswith("webp") else {}
    image.save(tmp_path / name, **options)
    read = read_image(tmp_path / name)
    assert read.mode == "RGB"
    assert read.size == (4, 3)
    assert np.abs(np.subtract(read.getpixel((2, 1)), expected)).max() <= 1
    assert (hwc(tmp_path / name) == np.asarray(read)).all()
    assert image_size(tmp_path / name) == (3, 4)


def test_rgb_with_a_transparent_colour(tmp_path: Path) -> None:
    Image.new("RGB", (4, 3), (5, 6, 7)).save(tmp_path / "a.png", transparency=(5, 6, 7))
    assert read_image(tmp_path / "a.png").getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_jpeg_takes_the_pillow_road(tmp_path: Path) -> None:
    path = tmp_path / "cmyk.jpg"
    photo().convert("CMYK").save(path, quality=95)
    assert jpeg.read_header(path.read_bytes()) is None
    assert (hwc(path) == np.asarray(read_image(path))).all()
    assert np.abs(hwc(path) - np.asarray(photo())).mean() < 8


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_animation_gives_its_first_frame(name: str, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue", "lime")]
    options = {"lossless": True} if name.endswith("webp") else {}
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **options)
    assert read_image(tmp_path / name).getpixel((3, 3)) == (255, 0, 0)


def test_deep_grey_rules() -> None:
    assert deep_to_grey(np.array([[0, 65535, 32768]], dtype=np.uint16), sixteen=True).tolist() == [[0, 255, 128]]
    assert deep_to_grey(np.array([[-1.0, 1.0]]), sixteen=False).tolist() == [[0, 255]]
    assert deep_to_grey(np.array([[0.0, 1e9]]), sixteen=False).tolist() == [[0, 255]]
    assert deep_to_grey(np.array([[np.nan, np.inf, 0.5]]), sixteen=False).tolist() == [[0, 255, 128]]
    assert deep_to_grey(np.full((1, 2), np.nan), sixteen=False).tolist() == [[0, 0]]


def test_sixteen_bit_big_endian_tiff(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 257 * 9]], dtype=">u2"))
    image.save(tmp_path / "a.tif")
    assert np.asarray(read_image(tmp_path / "a.tif"))[0, :, 0].tolist() == [0, 9]


# ------------------------------------------------------------------------------------------------ orientation


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_gives_equal_pixels(orientation: int, suffix: str, tmp_path: Path) -> None:
    """user-pains 68: the same photo under orientation 1..8 is the same picture, on both roads."""
    path = tmp_path / f"a{suffix}"
    options = {".jpg": {"quality": 100, "subsampling": 0}, ".webp": {"lossless": True}}.get(suffix, {})
    with_orientation(path, mosaic(), 1, **options)
    upright = np.asarray(read_image(path))
    assert np.abs(upright.astype(int) - np.asarray(mosaic())).max() <= 2
    with_orientation(path, mosaic(), orientation, **options)
    if suffix == ".jpg":
        header = jpeg.read_header(path.read_bytes())
        assert header is not None
        assert header.orientation == orientation
    assert (np.asarray(read_image(path)) == upright).all()
    assert (hwc(path) == upright).all()
    assert (np.asarray(to_rgb(read_image(path))) == upright).all(), "a second pass must not turn it again"


def test_orientation_of_a_deep_and_of_a_transparent_picture(tmp_path: Path) -> None:
    deep = Image.fromarray((np.arange(6, dtype=np.uint16) * 257).reshape(2, 3))
    with_orientation(tmp_path / "a.png", deep, 6)
    assert np.asarray(read_image(tmp_path / "a.png"))[..., 0].tolist() == [[0, 1, 2], [3, 4, 5]]
    with_orientation(tmp_path / "b.png", mosaic().convert("RGBA"), 8)
    assert (np.asarray(read_image(tmp_path / "b.png")) == np.asarray(mosaic())).all()


def test_orientation_in_xmp_only(tmp_path: Path) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    segment = b"http://ns.adobe.com/xap/1.0/\0" + xmp
    file = io.BytesIO()
    mosaic().transpose(STORED[6]).save(file, "JPEG", quality=100, subsampling=0)
    data = file.getvalue()
    path = tmp_path / "a.jpg"
    path.write_bytes(data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:])
    assert read_image(path).size == mosaic().size
    assert (hwc(path) == np.asarray(read_image(path))).all()


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0nonsense", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_is_no_reason_to_refuse(exif: bytes, tmp_path: Path) -> None:
    photo().save(tmp_path / "a.jpg", exif=exif)
    assert (hwc(tmp_path / "a.jpg") == np.asarray(read_image(tmp_path / "a.jpg"))).all()


@pytest.mark.parametrize("value", [0, 9, 255])
def test_orientation_out_of_range_is_upright(value: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    photo().save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").size == (90, 70)
    assert hwc(tmp_path / "a.jpg").shape == (70, 90, 3)


# ------------------------------------------------------------------------------------------------ the two roads


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 90, "subsampling": "4:2:0"},
        {"quality": 75, "subsampling": "4:2:2"},
        {"quality": 95, "subsampling": "4:4:4"},
        {"quality": 60, "progressive": True},
        {"quality": 90, "restart_marker_rows": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(90, 70), (33, 47), (1, 1), (257, 8)])
def test_fast_road_gives_the_pixels_of_pillow(
    options: dict[str, object], size: tuple[int, int], tmp_path: Path
) -> None:
    path = tmp_path / "a.JPG"
    photo(*size).save(path, "JPEG", **options)
    data = path.read_bytes()
    header = jpeg.read_header(data)
    assert header is not None
    assert (header.width, header.height) == size
    assert jpeg.decode(data, header) is not None, "the fast road must be the one under test"
    assert np.abs(hwc(path) - np.asarray(read_image(path), dtype=int)).max() <= 1


def test_grey_jpeg(tmp_path: Path) -> None:
    photo().convert("L").save(tmp_path / "a.jpg")
    assert (hwc(tmp_path / "a.jpg") == np.asarray(read_image(tmp_path / "a.jpg"))).all()


def test_rgb_coded_jpeg_takes_the_pillow_road(tmp_path: Path) -> None:
    photo().save(tmp_path / "a.jpg", keep_rgb=True, quality=95)
    assert jpeg.read_header((tmp_path / "a.jpg").read_bytes()) is None
    assert np.abs(hwc(tmp_path / "a.jpg") - np.asarray(photo())).mean() < 8


def test_without_simplejpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_orientation(tmp_path / "a.jpg", photo(), 6)
    fast = hwc(tmp_path / "a.jpg")
    monkeypatch.setitem(sys.modules, "simplejpeg", None)  # import raises ImportError
    jpeg._simplejpeg.cache_clear()
    try:
        slow = hwc(tmp_path / "a.jpg")
        assert jpeg._simplejpeg() is None
    finally:
        jpeg._simplejpeg.cache_clear()
    assert np.abs(fast - slow).max() <= 1


def test_open_image_reads_bytes_and_files() -> None:
    file = io.BytesIO()
    photo().save(file, "PNG")
    file.seek(0)
    assert (np.asarray(open_image(file)) == np.asarray(photo())).all()
    assert (np.asarray(open_image(file.getvalue())) == np.asarray(photo())).all()


# ------------------------------------------------------------------------------------------------ refusals


def refused(path: Path) -> str:
    """Both readers and both words: one line, the path, the same reason."""
    with pytest.raises(ImageError) as slow:
        read_image(path)
    with pytest.raises(ImageError) as fast:
        decode_tensor(path)
    assert str(slow.value) == str(fast.value)
    assert str(slow.value).startswith(f"{path} cannot be read: ")
    assert "\n" not in str(slow.value)
    return str(slow.value)


def test_files_that_are_no_pictures(tmp_path: Path) -> None:
    """user-pains 66: zero bytes, text under a picture's name, a missing file, a folder."""
    (tmp_path / "zero.jpg").touch()
    (tmp_path / "text.png").write_text("I am not a picture")
    (tmp_path / "vector.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert "the file is empty (0 bytes)" in refused(tmp_path / "zero.jpg")
    assert "not a picture in a known format" in refused(tmp_path / "text.png")
    assert "not a picture in a known format" in refused(tmp_path / "vector.jpg")
    assert "there is no such file" in refused(tmp_path / "Zoë.jpg")
    assert "directory" in refused(tmp_path).lower()


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif", "a.bmp"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_truncated_files(name: str, kept: float, tmp_path: Path) -> None:
    """user-pains 66: half a file is an error with its path, never half a picture."""
    path = tmp_path / name
    photo(200, 150).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data))])
    assert "Replace the file or take it out of the table (`proxemics doctor` lists all such files)." in refused(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "a.bin"
    outcomes = {"read": 0, "refused": 0}
    for name in ("a.jpg", "a.png", "a.webp", "a.tif", "a.gif"):
        photo(40, 30).save(tmp_path / name)
        data = np.frombuffer((tmp_path / name).read_bytes(), dtype=np.uint8)
        for _ in range(40):
            broken = data.copy()
            where = rng.integers(0, min(len(data), 700), 5)
            broken[where] = rng.integers(0, 256, 5)
            path.write_bytes(broken.tobytes())
            try:
                decode_tensor(path)
                outcomes["read"] += 1
            except ImageError:
                outcomes["refused"] += 1
    assert outcomes["read"] > 0
    assert outcomes["refused"] > 0


def bomb_png(side: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def test_decompression_bombs_are_refused_by_their_header(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb_png(100_000))
    assert "PIL.Image.MAX_IMAGE_PIXELS refuses it (Image size (10000000000 pixels) exceeds limit" in refused(path)
    with pytest.raises(ImageError, match="MAX_IMAGE_PIXELS"):
        image_size(path)
    path.write_bytes(bomb_png(9_000))
    with pytest.raises(ImageError, match="9000 x 9000 = 81000000 pixels is over the limit of 80000000"):
        read_image(path, max_pixels=80_000_000)
    photo(64, 64).save(tmp_path / "a.jpg")
    data = bytearray((tmp_path / "a.jpg").read_bytes())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 60_000, 60_000)
    (tmp_path / "a.jpg").write_bytes(data)
    with pytest.raises(ImageError, match="60000 x 60000 = 3600000000 pixels is over the limit"):
        decode_tensor(tmp_path / "a.jpg")
    with pytest.raises(ImageError, match=r"a\.jpg cannot be read: PIL\.Image\.MAX_IMAGE_PIXELS"):
        read_image(tmp_path / "a.jpg")


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_max_pixels(name: str, tmp_path: Path) -> None:
    photo(90, 70).save(tmp_path / name)
    assert read_image(tmp_path / name, max_pixels=6300).size == (90, 70)
    for reader in (read_image, decode_tensor, image_size):
        with pytest.raises(ImageError, match=r"90 x 70 = 6300 pixels is over the limit of 6299. Shrink it, or raise"):
            reader(tmp_path / name, max_pixels=6299)


def test_pillow_is_not_told_anything_global(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS, TiffImagePlugin.READ_LIBTIFF
    photo().save(tmp_path / "a.tif")
    read_image(tmp_path / "a.tif", max_pixels=10**12)
    assert before == (Image.MAX_IMAGE_PIXELS, TiffImagePlugin.READ_LIBTIFF)


@pytest.mark.data
def test_real_pictures_read_alike(shared_data: Path) -> None:
    paths = sorted(shared_data.glob("*/*/*"))[::400] + sorted(shared_data.glob("emoji/*/*/*.webp"))[::800]
    paths = [path for path in paths if path.is_file()]
    assert len(paths) > 20
    for path in paths:
        assert np.abs(hwc(path) - np.asarray(read_image(path), dtype=int)).max() <= 1, path
