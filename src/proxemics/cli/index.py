"""`proxemics index …`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from proxemics.cli.options import JsonOption, QuietOption

if TYPE_CHECKING:
    from proxemics.export.jobs.output import StoredEmbeddings
    from proxemics.search import Hits, Index, ModelKey, Verified
    from proxemics.search.migrate import Encode

app = typer.Typer(help="Build, search, check and move a vector index.", no_args_is_help=True)

AddressArgument = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="A folder, postgresql://user@host/database?index=NAME, milvus:FILE.db?index=NAME or "
        "milvus+http://host:19530?index=NAME.",
    ),
]
ModelOption = Annotated[Path | None, typer.Option("--model", help="A run folder or a bundle folder.")]
KindOption = Annotated[
    Literal["exact", "hnsw"], typer.Option("--kind", help="exact scans every row; hnsw searches a graph.")
]
DtypeOption = Annotated[
    Literal["float32", "int8"],
    typer.Option("--dtype", help="int8 searches in 8 bits and scores what it found in float32."),
]
TitleOption = Annotated[str, typer.Option("--title", help="Free text that the index remembers.")]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Go on where the same command was stopped, if the new index is there.")
]
ThumbnailOption = Annotated[
    bool, typer.Option("--thumbnails", help="Keep small pictures in the folder of the index, so that it can be moved.")
]
ConditionOption = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="CONDITION", help="label=cat, 'label=cat|dog', 'price<10'; may be repeated."),
]
RowsArgument = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Embeddings from `proxemics embed`, or pictures, with --model.")
]


@app.callback()
def _root() -> None:
    """Build, search, check and move a vector index."""


@app.command()
def build(
    source: RowsArgument,
    to: Annotated[str, typer.Option("--to", metavar="ADDRESS", help="Where to; see `proxemics index add --help`.")],
    model: ModelOption = None,
    kind: KindOption = "exact",
    dtype: DtypeOption = "float32",
    title: TitleOption = "",
    thumbnails: ThumbnailOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make an index from embeddings or pictures, and measure how well it finds."""
    from proxemics.search import Index
    from proxemics.search.build import batches, check_thumbnails, fill, finish
    from proxemics.search.open import check_free

    check_free(to)
    if thumbnails:
        check_thumbnails(to)
    stored = _read(source, model, quiet=quiet)
    index = Index.create(to, _key(stored), kind=kind, dtype=dtype, title=title)
    with index:
        with _progress("rows", len(stored.ids), quiet=quiet) as step:
            fill(index, batches(stored.ids, stored.vectors, stored.meta), progress=step)
        found = finish(index)
        if thumbnails:
            _thumbnails(index, quiet=quiet)
        typer.echo(f"Index: {index.address} ({found.count} rows of {index.manifest.key.dim} numbers, {kind}, {dtype})")
        _tell(found)


@app.command()
def add(
    address: AddressArgument,
    source: RowsArgument,
    model: ModelOption = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace rows whose ids are taken.")] = False,
    thumbnails: ThumbnailOption = False,
    quiet: QuietOption = False,
) -> None:
    """Add rows to an index; the graph of an hnsw index takes them in at the next `compact`."""
    from proxemics.search import Index
    from proxemics.search.build import batches, check_thumbnails, fill

    if thumbnails:
        check_thumbnails(address)
    with Index.open(address) as index:
        stored = _read(source, model, quiet=quiet, index=index)
        index.manifest.check(_key(stored))
        with _progress("rows", len(stored.ids), quiet=quiet) as step:
            done = fill(index, batches(stored.ids, stored.vectors, stored.meta), replace=replace, progress=step)
        if thumbnails:
            _thumbnails(index, quiet=quiet)
        typer.echo(f"{done.added} rows added, {done.replaced} replaced, {index.count()} in {index.address}.")


@app.command()
def remove(
    address: AddressArgument, ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Rows to remove.")]
) -> None:
    """Remove rows by id."""
    from proxemics.search import Index

    with Index.open(address) as index:
        count = index.remove(ids)
        typer.echo(f"{count} rows removed, {index.count()} left in {index.address}.")


@app.command()
def search(
    address: AddressArgument,
    picture: Annotated[Path, typer.Argument(help="What to search for.")],
    model: Annotated[Path, typer.Option("--model", help="The run or bundle that the index was built with.")],
    k: Annotated[int, typer.Option("-k", help="How many rows.")] = 10,
    where: ConditionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the rows nearest to a picture."""
    from proxemics.search import Index, parse_where

    with Index.open(address, read_only=True) as index:
        conditions = parse_where(where or [])
        key, encode = _encoder(model, 1)
        index.manifest.check(key)
        (hits,) = index.search(encode([picture]), k, where=conditions, key=key)
        _print_hits(index, hits, as_json=as_json)


@app.command()
def info(address: AddressArgument, as_json: JsonOption = False) -> None:
    """Say what an index holds."""
    from proxemics.search import Index

    with Index.open(address, read_only=True) as index:
        facts: dict[str, Any] = {
            "address": index.address,
            "rows": index.count(),
            **index.manifest.model_dump(),
            **_local_facts(index),
        }
    if as_json:
        typer.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    key = facts.pop("key")
    for name, value in {**facts, "model": key["model"], "preprocess": key["preprocess"], "dim": key["dim"]}.items():
        typer.echo(f"{name:14} {value}")


@app.command()
def verify(
    address: AddressArgument,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Rows that are searched for.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """Search for rows of the index itself, and look for damage; ends with code 1 where something is wrong."""
    from dataclasses import asdict

    from proxemics.search import Index

    with Index.open(address, read_only=True) as index:
        found = index.verify(sample)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        typer.echo(f"{found.count} rows.")
        _tell(found)
    if found.problems:
        raise typer.Exit(1)


@app.command()
def compact(address: AddressArgument, thumbnails: ThumbnailOption = False, quiet: QuietOption = False) -> None:
    """Give back the room of removed rows, and build the graph of an hnsw index over all rows."""
    from proxemics.search import Index
    from proxemics.search.build import check_thumbnails, finish

    if thumbnails:
        check_thumbnails(address)
    with Index.open(address) as index:
        found = finish(index)
        if thumbnails:
            _thumbnails(index, quiet=quiet)
        typer.echo(f"{found.count} rows.")
        _tell(found)


@app.command()
def migrate(
    source: Annotated[str, typer.Argument(metavar="FROM", help="Address of an index.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Address of the new one.")],
    kind: Annotated[str | None, typer.Option("--kind", help="exact or hnsw; default: as it is.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 or int8; default: as it is.")] = None,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Rows whose neighbours are compared.")] = 100,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Copy an index to another back-end or kind, and compare the two; ends with code 1 where they differ."""
    from proxemics.search import Index
    from proxemics.search.migrate import compare_indexes, copy_rows, refuse_strangers
    from proxemics.search.open import begun_or_new

    with Index.open(source, read_only=True) as old:
        about = old.manifest
        new_kind, new_dtype = _choice("--kind", kind, about.kind), _choice("--dtype", dtype, about.dtype)
        make = begun_or_new if resume else Index.create
        with make(target, about.key, kind=new_kind, dtype=new_dtype, title=about.title) as new:
            if resume:
                refuse_strangers(old, new)
            with _progress("rows", old.count(), quiet=quiet) as step:
                copy_rows(old, new, progress=step)
            parity = compare_indexes(old, new, sample=sample)
            typer.echo(
                f"{parity.copied} of {parity.count} rows are in {new.address}; ids, metadata, vectors were compared, "
                f"and {parity.agreement:.1%} of the ten nearest rows of {parity.sampled} queries agree."
            )
    for problem in parity.problems:
        typer.echo(f"Problem: {problem}", err=True)
    if parity.problems:
        raise typer.Exit(1)


@app.command()
def reindex(
    address: AddressArgument,
    model: Annotated[Path, typer.Option("--model", help="The new run or bundle.")],
    to: Annotated[str, typer.Option("--to", metavar="ADDRESS", help="Where the new index goes.")],
    root: Annotated[Path | None, typer.Option("--root", help="Folder that holds the pictures now, by id.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only the plan is shown.")] = False,
    resume: ResumeOption = False,
    quiet: QuietOption = False,
) -> None:
    """Embed the pictures of an index with another model, into a new index; ids and metadata stay."""
    from proxemics.core.errors import SearchError
    from proxemics.search import Index
    from proxemics.search.migrate import plan_reindex, refuse_strangers
    from proxemics.search.migrate import reindex as embed_again
    from proxemics.search.open import begun_or_new

    with Index.open(address, read_only=True) as old:
        key, encode = _encoder(model, old.count())
        plan = plan_reindex(old, key, root=root)
        for sentence in plan.sentences():
            typer.echo(sentence)
        if not yes:
            typer.echo(f"Nothing was done. Add --yes to make {to}.")
            return
        if not plan.found:
            raise SearchError(f"No row of {old.address} has a picture that is there; name their folder with --root.")
        about = old.manifest
        make = begun_or_new if resume else Index.create
        with make(to, key, kind=about.kind, dtype=about.dtype, title=about.title) as new:
            if resume:
                refuse_strangers(old, new)
            with _progress("pictures", plan.count, quiet=quiet) as step:
                embed_again(old, new, encode, root=root, progress=step)
            found = new.verify()
            typer.echo(f"Index: {new.address} ({found.count} rows of {key.dim} numbers)")
            _tell(found)


def _choice(option: str, given: str | None, current: str) -> Any:
    from proxemics.core.errors import SearchError

    allowed = {"--kind": ("exact", "hnsw"), "--dtype": ("float32", "int8")}[option]
    if given is not None and given not in allowed:
        raise SearchError(f"{option} {given}: give {' or '.join(allowed)}.")
    return given or current


def _read(source: str, model: Path | None, *, quiet: bool, index: Index | None = None) -> StoredEmbeddings:
    """Read embeddings, or make them from pictures, once the model is that of the index."""
    from rich.console import Console

    from proxemics.cli.progress import TerminalReporter
    from proxemics.core.errors import SearchError
    from proxemics.export.jobs.output import read_embeddings
    from proxemics.export.jobs.pictures import open_pictures
    from proxemics.export.jobs.run import embed_pictures
    from proxemics.search import Manifest

    if _holds_embeddings(Path(source)):
        stored = read_embeddings(source)
        if model is not None:
            Manifest(key=_key_of_model(model)).check(_key(stored))
        return stored
    if model is None:
        raise SearchError(
            f"{source} holds no embeddings; name the model that makes them from pictures with --model, or give a file "
            "written by `proxemics embed`."
        )
    if index is not None:
        index.manifest.check(_key_of_model(model))
    with tempfile.TemporaryDirectory(prefix="proxemics-index-") as folder:
        out = Path(folder) / "embeddings.parquet"
        embed_pictures(model, open_pictures(source), out, reporter=TerminalReporter(Console(stderr=True), quiet=quiet))
        return read_embeddings(out)


def _holds_embeddings(path: Path) -> bool:
    if path.suffix == ".npy":
        return True
    if path.suffix != ".parquet" or not path.is_file():
        return False
    import pyarrow.parquet as pq

    return "embedding" in pq.read_schema(path).names


def _key(stored: StoredEmbeddings) -> ModelKey:
    from proxemics.search import ModelKey

    return ModelKey.model_validate(stored.key)


def _key_of_model(model: Path) -> ModelKey:
    from proxemics.search import ModelKey
    from proxemics.training.evaluate_run import open_model

    embedder = open_model(model)
    return ModelKey(model=embedder.fingerprint(), preprocess=embedder.preprocess.fingerprint(), dim=embedder.dim)


def _encoder(model: Path, pictures: int) -> tuple[ModelKey, Encode]:
    """Open a model: what it is, and how it embeds pictures."""
    from proxemics.data.decode import decode_tensor
    from proxemics.export.engines.open import open_engine
    from proxemics.search import ModelKey

    engine = open_engine(model, pictures=pictures, notify=lambda text: typer.echo(text, err=True))
    key = ModelKey(model=engine.facts.fingerprint, preprocess=engine.preprocess.fingerprint(), dim=engine.facts.dim)

    def encode(paths: Any) -> Any:
        return engine.encode(engine.preprocess.batch([decode_tensor(path) for path in paths]).numpy())[0]

    return key, encode


def _thumbnails(index: Index, *, quiet: bool) -> None:
    from proxemics.search.build import write_thumbnails

    with _progress("thumbnails", index.count(), quiet=quiet) as step:
        written, missing = write_thumbnails(index, progress=step)
    typer.echo(f"Thumbnails: {written}" + (f"; {missing} rows have no picture that can be read" if missing else ""))


def _tell(found: Verified) -> None:
    if found.sampled:
        typer.echo(
            f"Recall@10: {found.recall_at_10:.3f} of the exact answer, and {found.self_recall:.1%} find themselves "
            f"first ({found.sampled} rows searched for)."
        )
    for problem in found.problems:
        typer.echo(f"Problem: {problem}", err=True)


def _print_hits(index: Index, hits: Hits, *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "id": name,
            "score": round(float(score), 6),
            **({"thumbnail": small} if (small := _small(index, name)) else {}),
        }
        | {"meta": meta}
        for name, score, meta in zip(hits.ids, hits.scores, hits.meta, strict=True)
    ]
    if as_json:
        typer.echo(json.dumps({"hits": rows, "missing": hits.missing}, indent=2, ensure_ascii=False))
        return
    for row in rows:
        typer.echo(f"{row['score']:.4f}  {row['meta'].get('label') or '-':20}  {row['id']}")
    if hits.missing:
        typer.echo(f"{hits.missing} fewer than asked for: no more rows meet the conditions.", err=True)


def _small(index: Index, name: str) -> str | None:
    from proxemics.search.local.layout import thumbnail_file
    from proxemics.search.open import backend_of

    if backend_of(index.address) != "local":
        return None
    path = thumbnail_file(Path(index.address), name)
    return str(path) if path.exists() else None


def _local_facts(index: Index) -> dict[str, Any]:
    from proxemics.search.local.index import LocalIndex

    return index.facts() if isinstance(index, LocalIndex) else {}


@contextmanager
def _progress(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
