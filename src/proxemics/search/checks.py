"""What an index promises, as a suite that anyone can run on their own back-end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxemics.core.errors import SearchError
from proxemics.search.index import Index
from proxemics.search.items import Hits, Items, Meta
from proxemics.search.manifest import ModelKey
from proxemics.search.where import Condition

Make = Callable[[ModelKey], Index]
"""``make(key) -> index``: a new, empty index at a place of its own, open for writing."""

DIM = 16
KEY = ModelKey(model="a" * 64, preprocess="1234567890abcdef", dim=DIM)
ROWS = 300
_ODD = ("it's", 'say "hi"', "50%_off", "a\\b", "naïve é", "x; DROP TABLE rows", "$.label", "日本")


def check_index(
    make: Make,
    *,
    reopen: Callable[..., Index] = Index.open,
    recall: float = 1.0,
    tolerance: float = 1e-5,
    ties: bool = True,
) -> tuple[str, ...]:
    """Run the index contract on a back-end; takes a few seconds on an embedded one.

    The contract: a vector scores 1 against itself and -1 against its opposite, whatever its length was; results equal
    those of a plain scan; conditions mean what :meth:`Condition.holds` says and ``k`` rows come back while so many meet
    them; what a call returned from is there in a second process's place, after closing and opening again; bad input is
    refused with a :class:`SearchError` and changes nothing.

    Args:
        make: makes a new, empty index; called once a check.
        reopen: ``reopen(address, read_only=...)``, where the address alone does not hold the password.
        recall: least share of the exact neighbours, over all queries, that an approximate back-end must find.
        tolerance: largest error of a score.
        ties: whether the back-end orders rows of equal score by id.

    Returns:
        The names of the checks that ran.

    Raises:
        SearchError: the first promise that does not hold, in one sentence.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> root = Path(tempfile.mkdtemp())
        >>> names = iter(range(100))
        >>> len(check_index(lambda key: Index.create(str(root / str(next(names))), key)))
        13
    """
    setting = _Setting(make, reopen, recall, tolerance, ties)
    for name in CHECKS:
        _run(name, setting)
    return tuple(CHECKS)


def _run(name: str, setting: _Setting) -> None:
    try:
        with setting.make(KEY) as index:
            CHECKS[name](index, setting)
    except _BrokenError as broken:
        raise SearchError(f"Contract '{name}': {broken}.") from None
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise SearchError(f"Contract '{name}': raised {type(error).__name__}: {reason}") from error


class _BrokenError(Exception):
    """A sentence without its full stop."""


@dataclass(frozen=True)
class _Setting:
    make: Make
    reopen: Callable[..., Index]
    recall: float
    tolerance: float
    ties: bool


def sample_items(rows: int = ROWS, dim: int = DIM, *, seed: int = 0) -> Items:
    """Rows with metadata of every kind: text, whole numbers, fractions, yes and no, nothing, and odd characters.

    Example:
        >>> items = sample_items(3)
        >>> items.vectors.shape, sorted(items.meta[0])
        ((3, 16), ['even', 'label', 'note', 'odd', 'price', 'rank'])
    """
    random = np.random.default_rng(seed)
    meta: list[Meta] = []
    for row in range(rows):
        one: Meta = {
            "label": f"class {row % 7}",
            "rank": row,
            "price": row / 4,
            "even": row % 2 == 0,
            "odd": _ODD[row % len(_ODD)],
        }
        if row % 3 == 0:
            one["note"] = None
        if row % 100 == 7:
            one["rare"] = "yes"
        meta.append(one)
    names = [f"{row:05d} é" if row % 5 == 0 else f"{row:05d}" for row in range(rows)]
    return Items.make(names, random.standard_normal((rows, dim)) * random.uniform(0.1, 50, (rows, 1)), meta)


def scan_exactly(
    items: Items, queries: NDArray[np.float32], k: int, where: Sequence[Condition] = ()
) -> list[tuple[list[str], NDArray[np.float32]]]:
    """Return ids and scores of each query by a plain scan in float64; rows of equal score in the order of their ids.

    Args:
        items: all rows.
        queries: (Q, D) of unit length.
        k: rows a query.
        where: conditions.
    """
    kept = [n for n in range(len(items)) if all(c.holds({**items.meta[n], "id": items.ids[n]}) for c in where)]
    scores = queries.astype(np.float64) @ items.vectors[kept].astype(np.float64).T
    answers = []
    for one in scores.astype(np.float32):
        order = sorted(range(len(kept)), key=lambda place: (-one[place], items.ids[kept[place]]))[:k]
        answers.append(([items.ids[kept[place]] for place in order], one[order]))
    return answers


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _BrokenError(message)


def _refuses(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except SearchError:
        return
    raise _BrokenError(f"{what} was accepted; raise a SearchError")


def _queries(count: int = 20, *, seed: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32) * 7


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    rows = vectors.astype(np.float64)
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _agrees(found: Sequence[Hits], wanted: Sequence[tuple[list[str], NDArray[np.float32]]], setting: _Setting) -> None:
    """Compare with the exact answer; rows whose exact scores are equal to the tolerance may stand in any order."""
    shared = total = 0
    for hits, (ids, scores) in zip(found, wanted, strict=True):
        _require(len(hits) == len(ids), f"{len(hits)} rows came back where {len(ids)} meet the question")
        _require(len(set(hits.ids)) == len(hits.ids), "a row came back twice for one query")
        _require(bool(np.all(np.diff(hits.scores) <= 0)), "scores do not fall")
        _require(len(hits.meta) == len(hits.ids), "metadata do not match ids in number")
        last = scores[-1] if len(scores) else np.float32(0)
        exact = dict(zip(ids, scores, strict=True))
        for name, score in zip(hits.ids, hits.scores, strict=True):
            near = name in exact and abs(float(score) - float(exact[name])) <= setting.tolerance
            shared += near or (name not in exact and abs(float(score) - float(last)) <= setting.tolerance)
        total += len(ids)
    share = shared / total if total else 1.0
    _require(share >= setting.recall, f"the share {share:.3f} of the exact answer was found, {setting.recall} is asked")


def _empty(index: Index, setting: _Setting) -> None:
    _require(index.count() == 0, "a new index is not empty")
    _require(index.manifest.key == KEY, "the manifest does not hold the key it was made with")
    (hits,) = index.search(_queries(1), 3)
    _require(len(hits) == 0 and hits.missing == 3, "an empty index must answer with no rows and missing = k")
    _require(index.search(np.empty((0, DIM), np.float32)) == [], "no queries must give no results")
    _require(len(index.get(["a"])) == 0 and not list(index.scan()), "an empty index returns rows")
    _require(index.remove(["a"]) == 0, "remove counts rows that are not there")
    _require(index.add(Items.make([], np.empty((0, DIM)))) == 0, "adding no rows must return 0")
    _require(not index.verify().problems, "verify finds problems in an empty index")
    index.compact()


def _scores(index: Index, setting: _Setting) -> None:
    items = sample_items()
    index.add(items)
    index.add(Items.make(["opposite"], -3 * items.vectors[:1]))
    for factor in (1.0, 40.0, 1e-3):
        for row, hits in enumerate(index.search(items.vectors[:10] * np.float32(factor), 1)):
            _require(hits.ids == [items.ids[row]], "a vector does not find itself first")
            _require(abs(float(hits.scores[0]) - 1) <= setting.tolerance, f"score(x, x) is {hits.scores[0]}, not 1")
    (hits,) = index.search(items.vectors[:1], len(items) + 1)
    _require(abs(float(hits.scores[-1]) + 1) <= setting.tolerance, "the opposite vector does not score -1, and last")
    _require(hits.ids[-1] == "opposite", "the opposite vector is not the last")


def _nearest(index: Index, setting: _Setting) -> None:
    items, queries = sample_items(), _queries()
    index.add(items)
    for _ in range(2):
        for k in (1, 10, ROWS):
            _agrees(index.search(queries, k), scan_exactly(items, _unit(queries), k), setting)
        (hits,) = index.search(queries[:1], ROWS + 5)
        _require(hits.missing == 5, f"missing is {hits.missing} where 5 rows more were asked for than there are")
        index.compact()


def _equal_scores(index: Index, setting: _Setting) -> None:
    items = sample_items(60)
    vectors = items.vectors.copy()
    vectors[20:] = vectors[20]
    order = np.random.default_rng(1).permutation(60)
    index.add(Items.make([items.ids[n] for n in order], vectors[order]))
    for k in (1, 7, 40):
        (hits,) = index.search(vectors[20:21], k)
        _require(len(set(hits.ids)) == k, f"{len(set(hits.ids))} of {k} equal rows came back")
        _require(bool(np.all(np.abs(hits.scores - 1) <= setting.tolerance)), "equal rows have other scores")
        if setting.ties:
            _require(hits.ids == sorted(items.ids[20:])[:k], "rows of equal score are not in the order of their ids")


def _adding(index: Index, setting: _Setting) -> None:
    items = sample_items(20)
    _require(index.add(items) == 20, "add does not return how many rows it added")
    more = Items.make(["new", items.ids[3]], items.vectors[:2])
    _refuses(lambda: index.add(more), "an id that is taken")
    _require(index.count() == 20 and len(index.get(["new"])) == 0, "a refused add left rows behind")
    longer = Items.make(["long"], np.ones((1, DIM + 1)))
    _refuses(lambda: index.add(longer), "a vector of another length")
    _refuses(lambda: index.upsert(longer), "a vector of another length")
    _require(index.count() == 20, "a refused add left rows behind")


def _replacing(index: Index, setting: _Setting) -> None:
    items = sample_items(30)
    index.add(items)
    changed = Items.make([items.ids[4], "new"], -items.vectors[4:6], [{"label": "other"}, {"label": "new"}])
    _require(index.upsert(changed) == (1, 1), "upsert does not return (added, replaced)")
    _require(index.count() == 31, "upsert changed the number of rows wrongly")
    back = index.get([items.ids[4]])
    _require(back.meta == [{"label": "other"}], "upsert did not replace the metadata")
    _require(bool(np.allclose(back.vectors, changed.vectors[:1], atol=1e-6)), "upsert did not replace the vector")
    (hits,) = index.search(items.vectors[4:5], 31)
    _require(hits.ids.count(items.ids[4]) == 1 and hits.ids[-1] == items.ids[4], "the old vector is still searched")


def _removing(index: Index, setting: _Setting) -> None:
    items = sample_items(40)
    index.add(items)
    gone = [items.ids[n] for n in range(0, 40, 2)]
    _require(index.remove([*gone, "never there"]) == 20, "remove does not return how many rows it removed")
    _require(index.remove(gone) == 0 and index.count() == 20, "removed rows are counted")
    kept = Items(items.ids[1::2], items.vectors[1::2], items.meta[1::2])
    for _ in range(2):
        _agrees(index.search(items.vectors, 20), scan_exactly(kept, items.vectors, 20), setting)
        index.compact()
    _require(index.add(Items.make(gone[:1], items.vectors[:1])) == 1, "a removed id cannot be added again")


def _reading(index: Index, setting: _Setting) -> None:
    items = sample_items()
    index.add(items)
    asked = [items.ids[9], "not there", items.ids[2], items.ids[0]]
    back = index.get(asked)
    _require(back.ids == [items.ids[9], items.ids[2], items.ids[0]], "get does not keep the order asked for")
    _require(back.meta == [items.meta[n] for n in (9, 2, 0)], "metadata come back changed")
    _require(
        {k: type(v) for k, v in back.meta[0].items()} == {k: type(v) for k, v in items.meta[9].items()},
        "metadata values come back as another type",
    )
    _require(bool(np.allclose(back.vectors, items.vectors[[9, 2, 0]], atol=1e-6)), "vectors come back changed")
    parts = list(index.scan(batch=64))
    _require(max(len(part) for part in parts) <= 64, "scan returns more rows than a batch holds")
    _require([name for part in parts for name in part.ids] == sorted(items.ids), "scan does not go by id, each once")
    some = [name for part in index.scan(where=[Condition("rank", "lt", 5)]) for name in part.ids]
    _require(some == sorted(items.ids[:5]), "scan does not keep the conditions")


CONDITIONS: tuple[tuple[Condition, ...], ...] = (
    (Condition("label", "eq", "class 3"),),
    (Condition("label", "in", ("class 1", "class 5", "nothing")),),
    (Condition("label", "eq", "class 3"), Condition("rank", "ge", 100)),
    (Condition("rank", "lt", 30),),
    (Condition("rank", "le", 30),),
    (Condition("price", "gt", 70.25),),
    (Condition("price", "ge", 70.25),),
    (Condition("rank", "eq", "12"),),
    (Condition("rank", "eq", 12.0),),
    (Condition("price", "in", ("2.5", 3)),),
    (Condition("even", "eq", True),),
    (Condition("even", "eq", "False"),),
    (Condition("even", "eq", 1),),
    (Condition("even", "lt", 1),),
    (Condition("note", "eq", None),),
    (Condition("label", "lt", 4),),
    (Condition("label", "eq", None),),
    (Condition("absent", "eq", "x"),),
    (Condition("absent", "eq", None),),
    (Condition("id", "in", ("00001", "00005 é", "none")),),
    (Condition("rare", "eq", "yes"),),
    *((Condition("odd", "eq", value),) for value in _ODD),
    (Condition("odd' OR 1=1 --", "eq", "x"),),
    (Condition('o"d.d[0]', "eq", "x"),),
)


def _filters(index: Index, setting: _Setting) -> None:
    items, queries = sample_items(), _queries(6)
    index.add(items)
    for _ in range(2):
        for where in CONDITIONS:
            kept = sum(
                all(c.holds({**m, "id": name}) for c in where) for name, m in zip(items.ids, items.meta, strict=True)
            )
            told = ", ".join(f"{c.field} {c.operator} {c.value!r}" for c in where)
            counted = index.count(where)
            _require(counted == kept, f"{counted} rows meet {told}, a plain scan finds {kept}")
            found = index.search(queries, 10, where=where)
            _require(all(len(hits) == min(10, kept) for hits in found), f"fewer rows came back than meet {told}")
            exact = _Setting(setting.make, setting.reopen, min(setting.recall, 0.9), setting.tolerance, setting.ties)
            _agrees(found, scan_exactly(items, _unit(queries), 10, where), exact)
        index.compact()


def _odd_fields(index: Index, setting: _Setting) -> None:
    names = ["a.b", 'say "x"', "it's", "a\\b", "$", "[0]", "", "é", "id"]
    items = sample_items(20)
    meta: list[Meta] = [dict.fromkeys(names, row) for row in range(20)]
    index.add(Items.make(items.ids, items.vectors, meta))
    for name in names[:-1]:
        _require(index.count([Condition(name, "lt", 5)]) == 5, f"a condition on the field {name!r} is not understood")
    _require(index.count([Condition("id", "eq", items.ids[3])]) == 1, "the field id is not the id of the row")
    _require(index.get(items.ids[:1]).meta == meta[:1], "metadata with odd names come back changed")


def _refusals(index: Index, setting: _Setting) -> None:
    index.add(sample_items(5))
    one = _queries(1)
    for key, what in (
        (ModelKey(model="b" * 64, preprocess=KEY.preprocess, dim=DIM), "a query of another model"),
        (ModelKey(model=KEY.model, preprocess="other", dim=DIM), "a query of another preprocessing"),
    ):
        _refuses(lambda key=key: index.search(one, 1, key=key), what)  # type: ignore[misc]  # a default binds the loop
    _require(len(index.search(one, 1, key=KEY)[0]) == 1, "a query of the same model is refused")
    for k in (0, -1, 10_001):
        _refuses(lambda k=k: index.search(one, k), f"k = {k}")  # type: ignore[misc]  # a default binds the loop
    _refuses(lambda: index.search(np.zeros((1, DIM), np.float32)), "a query of zeros")
    _refuses(lambda: index.search(np.full((1, DIM), np.nan, np.float32)), "a query that is not finite")
    _refuses(lambda: index.search(np.ones((1, DIM + 1), np.float32)), "a query of another length")
    _refuses(lambda: index.search(np.ones(DIM, np.float32)), "a query that is not (Q, D)")


def _closing(index: Index, setting: _Setting) -> None:
    items = sample_items(50)
    index.add(items)
    index.remove(items.ids[:10])
    manifest, address = index.manifest, index.address
    index.close()
    index.close()
    again = setting.reopen(address)
    try:
        _require(again.manifest == manifest, "the manifest changed by closing and opening")
        _require(again.count() == 40 and len(again.get(items.ids)) == 40, "rows are lost by closing and opening")
        _require(again.add(Items.make(["late"], items.vectors[:1])) == 1, "an index opened again cannot be written")
    finally:
        again.close()
    reader = setting.reopen(address, read_only=True)
    try:
        (hits,) = reader.search(items.vectors[:1], 1)
        _require(hits.ids == ["late"], "an index opened read-only does not find its rows")
        _refuses(lambda: reader.remove(["late"]), "a change of an index opened read-only")
        _refuses(lambda: reader.upsert(items), "a change of an index opened read-only")
    finally:
        reader.close()


def _verifying(index: Index, setting: _Setting) -> None:
    index.add(sample_items())
    index.compact()
    found = index.verify(50)
    _require(
        found.count == ROWS and found.sampled == 50, "verify does not say how many rows there are and it looked at"
    )
    _require(found.self_recall == 1.0, f"only {found.self_recall:.1%} of the rows find themselves")
    _require(found.recall_at_10 >= setting.recall, f"recall@10 is {found.recall_at_10}, {setting.recall} is asked")
    _require(not found.problems, f"verify finds problems in a sound index: {'; '.join(found.problems)}")


CHECKS: dict[str, Callable[[Index, _Setting], None]] = {
    "empty": _empty,
    "score": _scores,
    "nearest": _nearest,
    "equal scores": _equal_scores,
    "add": _adding,
    "upsert": _replacing,
    "remove": _removing,
    "get and scan": _reading,
    "filter": _filters,
    "odd fields": _odd_fields,
    "refusals": _refusals,
    "close and open": _closing,
    "verify": _verifying,
}
