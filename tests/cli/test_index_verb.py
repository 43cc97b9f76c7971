"""`proxemics index`: from pictures to answers, in one process and with its exit codes."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxemics.cli.main import main
from proxemics.data import decode
from proxemics.models.bundle import save_bundle
from proxemics.models.embedder import Embedder
from proxemics.search import Index, Items, ModelKey

AWAY = "postgresql://me@127.0.0.1:1/x?index=a"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The entry point itself; returns exit code, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["proxemics", "index", *arguments])
        code: object = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code or 0
        told = capfd.readouterr()
        return (code if isinstance(code, int) else 1), told.out, " ".join(told.err.split())

    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of six pictures."""
    root = tmp_path_factory.mktemp("index") / "photos"
    random = np.random.default_rng(0)
    for number, name in enumerate(("cat é", "dog")):
        (root / name).mkdir(parents=True)
        for picture in range(6):
            pixels = random.normal(90 + 70 * number, 30, (48, 64, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{picture}.png")
    return root


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the same trunk trained again."""
    root = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("old", "new")):
        embedder = Embedder("test_resnet", dim=8, weights="none", size=32)
        with np.errstate(all="ignore"):
            for parameter in embedder.parameters():
                parameter.data += 0.01 * seed
        save_bundle(embedder, root / name)
    return root / "old", root / "new"


@pytest.fixture(scope="module")
def built(photos: Path, bundles: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the pictures, made once."""
    place = tmp_path_factory.mktemp("built") / "i"
    options = ["--model", str(bundles[0]), "--to", str(place), "--kind", "hnsw", "--thumbnails", "--quiet"]
    with pytest.MonkeyPatch.context() as patch, suppress(SystemExit):
        patch.setattr(sys, "argv", ["proxemics", "index", "build", str(photos), *options])
        main()
    return place


@pytest.fixture
def place(built: Path, tmp_path: Path) -> str:
    """A copy that a test may change."""
    shutil.copytree(built, tmp_path / "i")
    return "i"


def test_build_from_pictures_then_search(
    run: Run, place: str, photos: Path, bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    code, out, err = run(
        "search", place, str(photos / "dog" / "3.png"), "--model", str(bundles[0]), "-k", "3", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["missing"] == 0
    first = found["hits"][0]
    assert (first["id"], first["meta"]["label"]) == ("dog/3.png", "dog")
    assert first["score"] == pytest.approx(1, abs=1e-4)
    assert len(found["hits"]) == 3
    with Image.open(first["thumbnail"]) as small:
        assert small.size == (64, 48)
    code, out, err = run(
        "search", place, str(photos / "dog" / "3.png"), "--model", str(bundles[0]), "--where", "label=cat é"
    )
    assert code == 0
    assert len(out.splitlines()) == 6
    assert all(" cat é " in line for line in out.splitlines())
    assert "4 fewer than asked for: no more rows meet the conditions" in err


def test_info_and_verify(run: Run, place: str, bundles: tuple[Path, Path]) -> None:
    code, out, _ = run("info", place, "--json")
    facts = json.loads(out)
    assert (code, facts["rows"], facts["kind"], facts["key"]["dim"], facts["rows_in_graph"]) == (0, 12, "hnsw", 8, 12)
    code, out, _ = run("info", place)
    assert code == 0
    assert facts["key"]["model"] in out
    code, out, err = run("verify", place)
    assert (code, err) == (0, "")
    assert "12 rows." in out
    assert "Recall@10: 1.000 of the exact answer, and 100.0% find themselves first (12 rows searched for)" in out
    next(Path(place).glob("graph-*")).unlink()
    code, out, err = run("verify", place, "--json")
    assert code == 1
    assert "is absent" in json.loads(out)["problems"][0]


def test_embeddings_are_taken_with_their_model(
    run: Run, place: str, photos: Path, bundles: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, bundle in enumerate(bundles):
        argv = ["proxemics", "embed", str(bundle), str(photos), "--out", f"{number}.parquet", "--quiet"]
        monkeypatch.setattr(sys, "argv", argv)
        main_code = 0
        try:
            main()
        except SystemExit as stopped:
            main_code = int(stopped.code or 0)
        assert main_code == 0
    code, out, err = run("build", "0.parquet", "--to", "second", "--title", "zoo", "--dtype", "int8")
    assert code == 0, err
    assert "Index: second (12 rows of 8 numbers, exact, int8)" in out
    assert "Recall@10: 1.000" in out
    code, _, err = run("build", "0.parquet", "--model", str(bundles[1]), "--to", "third")
    assert code == 2
    assert "index holds vectors of model" in err
    assert not Path("third").exists()
    code, _, err = run("add", place, "1.parquet")
    assert code == 2
    assert "and the query comes from" in err
    code, _, err = run("add", place, "0.parquet")
    assert (code, "more are in the index already; nothing was added" in err) == (2, True)
    code, out, err = run("add", place, "0.parquet", "--replace")
    assert (code, out) == (0, "0 rows added, 12 replaced, 12 in i.\n")


def test_what_cannot_work_is_refused_before_pictures_are_embedded(
    run: Run, place: str, photos: Path, bundles: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def embedded(*_: object, **__: object) -> None:
        raise AssertionError("pictures were embedded in vain")

    monkeypatch.setattr("proxemics.export.jobs.run.embed_pictures", embedded)
    server = "milvus:zoo.db?index=zoo"
    with Index.create("milvus:taken.db?index=zoo", ModelKey(model="m", dim=2)):
        pass
    for arguments, told in (
        (("build", str(photos), "--model", str(bundles[0]), "--to", place), "i exists already; choose another place"),
        (("build", str(photos), "--model", str(bundles[0]), "--to", "milvus:taken.db?index=zoo"), "already; choose"),
        (("build", str(photos), "--model", str(bundles[0]), "--to", server, "--thumbnails"), "embedded indexes only"),
        (("add", place, str(photos), "--model", str(bundles[1])), "The index holds vectors of model"),
        (("build", str(photos), "--model", str(bundles[0]), "--to", AWAY), "does not answer"),
        (("add", server, str(photos), "--model", str(bundles[0]), "--thumbnails"), "embedded indexes only"),
        (("compact", server, "--thumbnails"), "embedded indexes only"),
    ):
        code, _, err = run(*arguments)
        assert (code, told in err) == (2, True), err
    assert not Path("zoo.db").exists()


def test_remove_and_compact(run: Run, place: str) -> None:
    code, out, _ = run("remove", place, "dog/3.png", "not there")
    assert (code, out) == (0, "1 rows removed, 11 left in i.\n")
    code, out, err = run("compact", place)
    assert (code, err) == (0, "")
    assert "11 rows." in out
    assert json.loads(run("info", place, "--json")[1])["removed_rows"] == 0


def test_migrate_compares(run: Run, place: str) -> None:
    code, out, err = run("migrate", place, "copy", "--kind", "exact", "--dtype", "int8")
    assert code == 0, err
    assert out.startswith("12 of 12 rows are in copy; ids, metadata, vectors were compared, and 100.0% of the ten")
    with Index.open("copy", read_only=True) as copy, Index.open(place, read_only=True) as old:
        assert copy.manifest.key == old.manifest.key
        assert (copy.manifest.kind, copy.manifest.dtype) == ("exact", "int8")
    code, _, err = run("migrate", place, "copy")
    assert (code, "copy exists already" in err) == (2, True)
    code, _, err = run("migrate", place, "other", "--kind", "ivf")
    assert (code, err) == (2, "Error: --kind ivf: give exact or hnsw.")


def test_a_stopped_migrate_goes_on(run: Run, place: str) -> None:
    with Index.open(place, read_only=True) as old, Index.create("copy", old.manifest.key, kind="exact") as begun:
        begun.add(next(iter(old.scan(5))))
    code, _, err = run("migrate", place, "copy", "--kind", "exact", "--dtype", "int8", "--resume")
    assert (code, "copy is exact with float32, and the copy was to be exact with int8; give" in err) == (2, True)
    code, out, err = run("migrate", place, "copy", "--kind", "exact", "--resume")
    assert code == 0, err
    assert out.startswith("12 of 12 rows are in copy; ids, metadata, vectors were compared, and 100.0% of the ten")
    code, out, err = run("migrate", place, "fresh", "--resume")
    assert (code, out.startswith("12 of 12 rows")) == (0, True), err
    with Index.open("copy") as copy:
        copy.add(Items.make(["stranger"], np.ones((1, 8))))
        name = next(iter(copy.scan(1))).ids[0]
        copy.upsert(Items.make([name], np.ones((1, 8)), [{"price": 9}]))
    code, _, err = run("migrate", place, "copy", "--kind", "exact", "--resume")
    assert (code, "copy holds 'stranger', which i does not, so it is no copy that was begun" in err) == (2, True)
    with Index.open("copy", read_only=True) as copy:
        assert copy.get([name]).meta == [{"price": 9}]  # nothing was changed


def test_a_stopped_reindex_embeds_only_what_is_missing(
    run: Run, place: str, bundles: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("reindex", place, "--model", str(bundles[1]), "--to", "j", "--yes")[0] == 0
    with Index.open("j") as index:
        gone = list(next(iter(index.scan(3))).ids)
        index.remove(gone)
    read: list[str] = []
    real = decode.decode_tensor
    monkeypatch.setattr(decode, "decode_tensor", lambda path: read.append(str(path)) or real(path))
    code, out, err = run("reindex", place, "--model", str(bundles[1]), "--to", "j", "--yes", "--resume")
    assert (code, "Index: j (12 rows" in out) == (0, True), err
    assert [any(path.endswith(name) for name in gone) for path in read] == [True] * 3


def test_user_pain_89_a_retrained_model_is_refused_and_reindex_shows_the_plan(
    run: Run, place: str, photos: Path, bundles: tuple[Path, Path]
) -> None:
    picture = str(photos / "dog" / "3.png")
    with Index.open(place) as index:
        index.add(Items.make(["lost"], np.ones((1, 8)), [{"label": "dog", "path": "nowhere.png"}]))
        old = index.manifest.key.model[:12]
    code, _, err = run("search", place, picture, "--model", str(bundles[1]))
    assert code == 2
    assert f"The index holds vectors of model {old} and the query comes from " in err
    code, out, _ = run("reindex", place, "--model", str(bundles[1]), "--to", "j")
    assert code == 0
    assert f"From model {old} (8 numbers) to " in out
    assert "12 of 13 rows have a picture that is there and would be embedded again." in out
    assert "1 rows have none and would be left out: lost" in out
    assert "Nothing was done. Add --yes to make j." in out
    assert not Path("j").exists()
    code, out, err = run("reindex", place, "--model", str(bundles[1]), "--to", "j", "--yes")
    assert code == 0, err
    assert "Index: j (12 rows of 8 numbers)" in out
    code, out, err = run("search", "j", picture, "--model", str(bundles[1]), "--json")
    assert code == 0, err
    first = json.loads(out)["hits"][0]
    assert (first["id"], first["meta"]["label"]) == ("dog/3.png", "dog")
    assert first["score"] == pytest.approx(1, abs=1e-4)


def test_user_pain_91_index_thumbnails_and_labels_move_together(
    run: Run, place: str, photos: Path, bundles: tuple[Path, Path]
) -> None:
    query = Path("query.png")
    shutil.copy(photos / "dog" / "3.png", query)
    Path("elsewhere").mkdir()
    shutil.move(place, "elsewhere/zoo")
    code, out, err = run("search", "elsewhere/zoo", str(query), "--model", str(bundles[0]), "--json")
    assert code == 0, err
    for hit in json.loads(out)["hits"]:
        assert hit["meta"]["label"] in ("cat é", "dog")
        assert Path(hit["thumbnail"]).is_relative_to("elsewhere/zoo/thumbnails")
        with Image.open(hit["thumbnail"]) as small:
            small.load()


def test_reindex_finds_moved_pictures_below_a_root(
    run: Run, photos: Path, bundles: tuple[Path, Path], tmp_path: Path
) -> None:
    with Index.create("old", ModelKey(model="from elsewhere", dim=3)) as index:
        index.add(Items.make(["dog/1.png", "cat é/2.png"], np.eye(2, 3), [{"path": "/gone/1.png"}, {}]))
    code, out, _ = run("reindex", "old", "--model", str(bundles[0]), "--to", "new")
    assert (code, "0 of 2 rows have a picture" in out) == (0, True)
    code, _, err = run("reindex", "old", "--model", str(bundles[0]), "--to", "new", "--yes")
    assert (code, "name their folder with --root" in err) == (2, True)
    assert not Path("new").exists()
    code, out, err = run("reindex", "old", "--model", str(bundles[0]), "--to", "new", "--root", str(photos), "--yes")
    assert code == 0, err
    assert "Index: new (2 rows of 8 numbers)" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("info", "nowhere"), "nowhere does not exist; make one with: proxemics index build"),
        (("info", "redis://here/1"), "starts with redis:, which names no back-end"),
        (("build", "nowhere.csv", "--to", "x"), "holds no embeddings; name the model"),
        (("remove", "i"), "ID"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, _, err = run(*arguments)
    assert (code, told in err) == (2, True), err
