"""Whole jobs: the vectors of evaluation, unreadable pictures, kills, changes, and the files that are left."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from warm_processes import Warm

from proxemics.__about__ import __version__
from proxemics.core.errors import ConfigError, DataError, ImageError, ModelError
from proxemics.evaluation.extract import extract_with_certainty
from proxemics.export.jobs import output
from proxemics.export.jobs.batches import Batch, BatchResult, cut_batches, part_bounds
from proxemics.export.jobs.journal import Journal
from proxemics.export.jobs.output import read_embeddings
from proxemics.export.jobs.pictures import open_pictures
from proxemics.export.jobs.places import Place
from proxemics.export.jobs.run import JobOptions, JobReport, embed_pictures
from proxemics.models.bundle import load_bundle, save_bundle
from proxemics.models.embedder import Embedder
from proxemics.search.manifest import ModelKey

SMALL = JobOptions(engine="torch", threads=2, device="cpu", batch=3, part_rows=8)


class Heard:
    """A reporter that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.done = 0
        self.total = 0

    def start(self, task: str, total: int, done: int = 0) -> None:
        self.total, self.done = total, done

    def advance(self, task: str, by: int = 1, note: str = "") -> None:
        self.done += by

    def finish(self, task: str) -> None:
        pass

    def say(self, text: str) -> None:
        self.lines.append(text)


def run(bundle: Path, source: Path, out: Path, reporter: Heard | None = None, **changes: object) -> JobReport:
    options = replace(SMALL, **changes)  # type: ignore[arg-type]
    pictures = open_pictures(source, on_error=options.on_error)
    return embed_pictures(bundle, pictures, out, options, reporter=reporter)


def test_the_vectors_are_those_of_evaluation(bundle: Path, photos: Path, tmp_path: Path) -> None:
    heard = Heard()
    report = run(bundle, photos, tmp_path / "a.parquet", heard, kappa=True)
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert table.columns.to_list() == ["id", "path", "label", "domain", "kappa", "embedding"]
    units, kappa = extract_with_certainty(load_bundle(bundle), table["path"].to_list(), batch_size=3)
    np.testing.assert_allclose(np.stack(table["embedding"]), units, atol=1e-6)
    np.testing.assert_allclose(table["kappa"], kappa, rtol=1e-5)
    assert (report.count, report.embedded, report.taken_over, report.skipped, report.dim) == (21, 21, 0, 0, 8)
    assert (heard.total, heard.done) == (21, 21)
    assert heard.lines == ["Engine: torch float32, 2 threads (asked for)"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "photos"]


def test_threads_batches_and_parts_change_nothing_but_rounding(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "a.parquet")
    run(bundle, photos, tmp_path / "b.parquet", threads=1)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    run(bundle, photos, tmp_path / "c.parquet", batch=7, part_rows=512)
    one, other = read_embeddings(tmp_path / "a.parquet"), read_embeddings(tmp_path / "c.parquet")
    np.testing.assert_allclose(one.vectors, other.vectors, atol=1e-6)
    assert (one.ids, one.meta) == (other.ids, other.meta)


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_an_archive_gives_what_its_folder_gives(
    bundle: Path, photos: Path, tmp_path: Path, pack: Callable[..., Path], kind: str
) -> None:
    run(bundle, photos, tmp_path / "a.parquet")
    run(bundle, pack(photos, kind), tmp_path / "b.parquet")
    one, other = read_embeddings(tmp_path / "a.parquet"), read_embeddings(tmp_path / "b.parquet")
    np.testing.assert_array_equal(one.vectors, other.vectors)
    assert one.ids == other.ids


def test_npy_with_its_two_companions(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "a.npy", kappa=True)
    run(bundle, photos, tmp_path / "a.parquet", kappa=True)
    array, table = read_embeddings(tmp_path / "a.npy"), read_embeddings(tmp_path / "a.parquet")
    np.testing.assert_array_equal(array.vectors, np.load(tmp_path / "a.npy", allow_pickle=False))
    np.testing.assert_array_equal(array.vectors, table.vectors)
    assert (array.ids, array.key, array.made_by) == (table.ids, table.key, table.made_by)
    assert array.meta[0].keys() == table.meta[0].keys() == {"path", "label", "domain", "kappa"}
    assert array.meta[3]["kappa"] == pytest.approx(table.meta[3]["kappa"])


def test_the_file_says_which_model_made_it(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "a.parquet")
    embedder = load_bundle(bundle)
    stored = read_embeddings(tmp_path / "a.parquet")
    assert ModelKey(**stored.key) == ModelKey(
        model=embedder.fingerprint(), preprocess=embedder.preprocess.fingerprint(), dim=8
    )
    assert stored.made_by == {"engine": "torch", "precision": "float32", "version": __version__}
    noted = pq.read_schema(tmp_path / "a.parquet").metadata
    assert noted[b"proxemics.model"].decode() == embedder.fingerprint()
    np.testing.assert_allclose(np.linalg.norm(stored.vectors, axis=1), 1, atol=1e-6)


def test_columns_are_carried_along(bundle: Path, photos: Path, tmp_path: Path) -> None:
    rows = pd.DataFrame({"path": ["ant/0.png", "cat/1.jpg"], "year": [1999, 2001], "site": ["north", None]})
    rows.to_parquet(photos / "t.parquet")
    pictures = open_pictures(photos / "t.parquet", keep=["year", "site"])
    embed_pictures(bundle, pictures, tmp_path / "a.parquet", SMALL)
    meta = read_embeddings(tmp_path / "a.parquet").meta
    assert [(one["year"], one["site"]) for one in meta] == [(1999, "north"), (2001, "")]


# --- unreadable pictures ----------------------------------------------------------------------------------------------


def test_stop_names_the_picture_and_keeps_what_is_done(bundle: Path, photos: Path, tmp_path: Path) -> None:
    broken = photos / "cat" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(ImageError, match=r"cat/3\.jpg cannot be read: .*--on-error skip"):
        run(bundle, photos, tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()
    Image.new("RGB", (30, 30), "red").save(broken)
    heard = Heard()
    report = run(bundle, photos, tmp_path / "a.parquet", heard)
    assert (report.taken_over, report.count) == (16, 21)
    assert "Going on: 16 of 21 pictures are done." in heard.lines
    assert not (tmp_path / "a.parquet.part").exists()


def test_skip_leaves_them_out_and_lists_them(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "whole.parquet")
    (photos / "ant" / "1.jpg").write_bytes(b"")
    (photos / "cat" / "0.png").write_text("text")
    report = run(bundle, photos, tmp_path / "a.parquet", on_error="skip")
    assert (report.count, report.skipped, report.unreadable) == (19, 2, tmp_path / "a.unreadable.csv")
    listed = pd.read_csv(tmp_path / "a.unreadable.csv")
    assert listed["id"].to_list() == ["ant/1.jpg", "cat/0.png"]
    assert "the file is empty" in listed["reason"].iloc[0]
    whole, found = read_embeddings(tmp_path / "whole.parquet"), read_embeddings(tmp_path / "a.parquet")
    kept = [row for row, name in enumerate(whole.ids) if name not in ("ant/1.jpg", "cat/0.png")]
    assert found.ids == [whole.ids[row] for row in kept]
    np.testing.assert_allclose(found.vectors, whole.vectors[kept], atol=1e-6)
    for name in ("ant/1.jpg", "cat/0.png"):
        Image.new("RGB", (30, 30)).save(photos / name)
    assert run(bundle, photos, tmp_path / "a.parquet", on_error="skip").unreadable is None
    assert not (tmp_path / "a.unreadable.csv").exists()


def test_nothing_readable_leaves_an_empty_file(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "1.jpg").write_bytes(b"x")
    report = run(bundle, tmp_path / "few", tmp_path / "a.parquet", on_error="skip")
    assert (report.count, report.skipped) == (0, 1)
    assert read_embeddings(tmp_path / "a.parquet").vectors.shape == (0, 8)


def test_a_part_without_a_readable_picture_costs_nothing_else(bundle: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "aaa").mkdir()
    for number in range(8):  # as many as a part has
        (photos / "aaa" / f"{number}.jpg").write_bytes(b"x")
    for name in ("a.npy", "a.parquet"):
        assert run(bundle, photos, tmp_path / name, on_error="skip").skipped == 8
    array, table = read_embeddings(tmp_path / "a.npy"), read_embeddings(tmp_path / "a.parquet")
    assert array.ids == table.ids
    np.testing.assert_array_equal(array.vectors, table.vectors)


def test_what_is_embedded_is_never_written_over(bundle: Path, photos: Path, tmp_path: Path) -> None:
    table = photos / "all.csv"
    table.write_text("path,label\nant/0.png,mine\n")
    for out in ("all.npy", "../photos/all.npy"):
        with pytest.raises(ConfigError, match=r"all\.npy would write over .*all\.csv, which is to be embedded"):
            run(bundle, table, photos / out)
    shutil.copy(table, photos / "all.unreadable.csv")
    with pytest.raises(ConfigError, match="which is to be embedded"):
        run(bundle, photos / "all.unreadable.csv", photos / "all.parquet")
    assert table.read_text() == (photos / "all.unreadable.csv").read_text() == "path,label\nant/0.png,mine\n"
    run(bundle, table, photos / "all.parquet")  # beside it is fine


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_foreign_companions_of_an_array_stay(bundle: Path, photos: Path, tmp_path: Path, suffix: str) -> None:
    mine = (tmp_path / "a.npy").with_suffix(suffix)
    mine.write_text("[1]")
    with pytest.raises(ConfigError, match=f"would write over .*{suffix}, which `proxemics embed` did not write"):
        run(bundle, photos, tmp_path / "a.npy")
    assert mine.read_text() == "[1]"
    mine.unlink()
    run(bundle, photos, tmp_path / "a.npy")
    run(bundle, photos, tmp_path / "a.npy")  # its own are replaced


def test_a_kill_between_the_companions_is_no_hindrance(
    bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def stop_at_the_second(write: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if written:
                raise KeyboardInterrupt
            written.append(write)
            return write(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(pd.DataFrame, "to_csv", stop_at_the_second(pd.DataFrame.to_csv))
        patched.setattr(output, "write_json", stop_at_the_second(output.write_json))
        with pytest.raises(KeyboardInterrupt):
            run(bundle, photos, tmp_path / "a.npy")
    run(bundle, photos, tmp_path / "a.npy")
    assert len(read_embeddings(tmp_path / "a.npy").ids) == 21


def test_a_picture_too_large_is_unreadable(bundle: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="over the limit of 2200"):
        run(bundle, photos, tmp_path / "a.parquet", max_pixels=2200)


# --- killed and given again -------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from proxemics.export.jobs.pictures import open_pictures
from proxemics.export.jobs.run import JobOptions, embed_pictures
from proxemics.training.log import Silent

class Deadly(Silent):
    left = int(sys.argv[4])
    def advance(self, task, by=1, note=""):
        self.left -= by
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

options = JobOptions(engine="torch", threads=2, device="cpu", batch=3, part_rows=8, kappa=sys.argv[3].endswith("npy"))
embed_pictures(Path(sys.argv[1]), open_pictures(sys.argv[2]), sys.argv[3], options, reporter=Deadly())
"""


@pytest.mark.parametrize(
    ("suffix", "after", "done"), [("parquet", 9, 8), pytest.param("npy", 21, 21, marks=pytest.mark.slow)]
)
def test_killed_it_goes_on_and_leaves_the_same_bytes(
    warm: Warm, bundle: Path, photos: Path, tmp_path: Path, suffix: str, after: int, done: int
) -> None:
    out, reference = tmp_path / f"a.{suffix}", tmp_path / "whole" / f"a.{suffix}"
    run(bundle, photos, reference, kappa=suffix == "npy")
    (tmp_path / "killed.py").write_text(KILLED)
    command = [str(tmp_path / "killed.py"), str(bundle), str(photos), str(out), str(after)]
    assert warm.run(command).returncode == -signal.SIGKILL
    assert not out.exists()
    report = run(bundle, photos, out, kappa=suffix == "npy")
    assert (report.taken_over, report.embedded) == (done, 21 - done)
    for file in reference.parent.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()
    assert not out.with_name(f"{out.name}.part").exists()


def half_done(bundle: Path, photos: Path, out: Path) -> Path:
    """Leave a job with two of three parts done."""
    broken = photos / "cat" / "6.png"
    content = broken.read_bytes()
    times = broken.stat().st_mtime_ns
    broken.write_bytes(b"x")
    with pytest.raises(ImageError):
        run(bundle, photos, out)
    broken.write_bytes(content)
    os.utime(broken, ns=(times, times))
    return out.with_name(f"{out.name}.part")


def test_torn_lines_and_damaged_parts_are_done_again(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "whole.parquet")
    part = half_done(bundle, photos, tmp_path / "a.parquet")
    journal = part / "journal.jsonl"
    lines = journal.read_text().splitlines()
    assert len(lines) == 2
    journal.write_text(lines[0] + "\n" + lines[1][: len(lines[1]) // 2])
    assert run(bundle, photos, tmp_path / "a.parquet").taken_over == 8
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    part = half_done(bundle, photos, tmp_path / "b.parquet")
    (part / "part-0000000.parquet").write_bytes(b"short")
    (part / "part-0000001.parquet").unlink()
    assert run(bundle, photos, tmp_path / "b.parquet").taken_over == 0
    assert (tmp_path / "b.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_changed_picture_is_embedded_again(bundle: Path, photos: Path, tmp_path: Path) -> None:
    half_done(bundle, photos, tmp_path / "a.parquet")
    Image.new("RGB", (60, 30), "blue").save(photos / "ant" / "0.png")
    assert run(bundle, photos, tmp_path / "a.parquet").taken_over == 8
    run(bundle, photos, tmp_path / "whole.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_pictures_that_went_away_go_from_the_file(bundle: Path, photos: Path, tmp_path: Path) -> None:
    half_done(bundle, photos, tmp_path / "a.parquet")
    for number in range(7):
        (photos / "cat" / f"{number}.{'jpg' if number % 2 else 'png'}").unlink()
    assert run(bundle, photos, tmp_path / "a.parquet").count == 14


def test_another_model_or_option_is_refused_until_restart(bundle: Path, photos: Path, tmp_path: Path) -> None:
    part = half_done(bundle, photos, tmp_path / "a.parquet")
    other = save_bundle(Embedder("test_resnet", dim=8, weights="none", size=32, seed=1), tmp_path / "other")
    with pytest.raises(DataError, match=r"holds an unfinished job that differs in the model \(.*--restart") as caught:
        run(other, photos, tmp_path / "a.parquet")
    assert "the engine" not in str(caught.value)
    with pytest.raises(DataError, match=r"differs in the precision \(float32, now bf16\)"):
        run(bundle, photos, tmp_path / "a.parquet", precision="bf16")
    job = part / "job.json"
    here = job.read_text()
    job.write_text(here.replace('"cpu"', '"cuda"'))  # as a machine with a GPU leaves it
    with pytest.raises(DataError, match=r"differs in the ONNX file or the device \(cuda, now cpu\)"):
        run(bundle, photos, tmp_path / "a.parquet")
    job.write_text(here)
    assert len(list(part.glob("part-*"))) == 2  # refusing has thrown nothing away
    assert run(other, photos, tmp_path / "a.parquet", restart=True).taken_over == 0
    assert read_embeddings(tmp_path / "a.parquet").key["model"] == load_bundle(other).fingerprint()


def test_auto_keeps_the_engine_of_the_unfinished_job(bundle: Path, photos: Path, tmp_path: Path) -> None:
    part = half_done(bundle, photos, tmp_path / "a.parquet")
    assert json.loads((part / "job.json").read_text())["engine"] == "torch"
    heard = Heard()
    assert run(bundle, photos, tmp_path / "a.parquet", heard, engine="auto").taken_over == 16
    assert heard.lines[0].startswith("Engine: torch float32")


class Interrupting(Heard):
    """Presses Ctrl-C after so many pictures."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def advance(self, task: str, by: int = 1, note: str = "") -> None:
        super().advance(task, by)
        if self.done >= self.after:
            raise KeyboardInterrupt


def test_what_skip_left_out_stop_does_not_accept(bundle: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "ant" / "1.jpg").write_bytes(b"")
    with pytest.raises(KeyboardInterrupt):
        run(bundle, photos, tmp_path / "a.parquet", Interrupting(16), on_error="skip")
    with pytest.raises(ImageError, match=r"ant/1\.jpg"):
        run(bundle, photos, tmp_path / "a.parquet")
    report = run(bundle, photos, tmp_path / "a.parquet", on_error="skip")
    assert (report.taken_over, report.skipped, report.count) == (16, 1, 20)


def test_two_at_once_are_refused(bundle: Path, photos: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.parquet.part")
    with pytest.raises(DataError, match="Another process is writing"):
        run(bundle, photos, tmp_path / "a.parquet")
    journal.remove()
    run(bundle, photos, tmp_path / "a.parquet")


def test_a_folder_in_the_way_is_left_alone(bundle: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "a.parquet.part").mkdir()
    (tmp_path / "a.parquet.part" / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="is in the way"):
        run(bundle, photos, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet.part" / "mine.txt").read_text() == "keep"


def test_wrong_names_and_models(bundle: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must end in \.parquet or \.npy"):
        run(bundle, photos, tmp_path / "a.csv")
    with pytest.raises((DataError, ModelError), match="holds no model"):
        run(tmp_path, photos, tmp_path / "a.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_the_old_file_stays_until_the_new_one_is_whole(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "a.parquet")
    before = (tmp_path / "a.parquet").read_bytes()
    half_done(bundle, photos, tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == before


# --- reading back -----------------------------------------------------------------------------------------------------


def test_foreign_files_are_told(tmp_path: Path) -> None:
    pd.DataFrame({"id": ["a"], "embedding": [np.ones(2, np.float32)]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="does not say which model made its vectors"):
        read_embeddings(tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"x")
    with pytest.raises(DataError, match=r"b\.parquet cannot be read as embeddings"):
        read_embeddings(tmp_path / "b.parquet")
    np.save(tmp_path / "c.npy", np.ones((2, 2), np.float32))
    with pytest.raises(DataError, match=r"c\.npy cannot be read as embeddings"):
        read_embeddings(tmp_path / "c.npy")
    (tmp_path / "c.csv").write_text("id\na\nb\n")
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(DataError, match=r"c\.json holds no key-values"):
        read_embeddings(tmp_path / "c.npy")
    pd.DataFrame({"id": ["a"], "embedding": ["text"]}).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d\.parquet cannot be read as embeddings"):
        read_embeddings(tmp_path / "d.parquet")
    with pytest.raises(DataError, match="is no file of embeddings"):
        read_embeddings(tmp_path / "none.parquet")


def test_companions_that_do_not_belong_together(bundle: Path, photos: Path, tmp_path: Path) -> None:
    run(bundle, photos, tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.ones((3, 8), np.float32))
    with pytest.raises(DataError, match="3 vectors and 21 rows do not belong together"):
        read_embeddings(tmp_path / "a.npy")


def test_batches_never_cross_parts() -> None:
    places = [Place("file", str(number)) for number in range(23)]
    batches: list[Batch] = list(cut_batches(places, [0, 2], part_rows=10, batch=4))
    assert [(one.part, one.start, len(one.places)) for one in batches] == [(0, 0, 4), (0, 4, 4), (0, 8, 2), (2, 20, 3)]
    assert part_bounds(23, 10) == [(0, 10), (10, 20), (20, 23)]
    assert BatchResult(0, 1, np.arange(1), np.zeros((1, 2), np.float32), np.zeros(1, np.float32)).failures == []
