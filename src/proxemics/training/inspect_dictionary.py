"""What the background dictionary of a run has learnt: the pictures and places of each atom, and what it costs.

The dictionary is shown with the weights of the same checkpoint: it was collected with them, and with the weights of
another epoch its directions would mean something else.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from proxemics.core.errors import DataError, EvaluationError
from proxemics.evaluation.assess import assess
from proxemics.methods.base import Method
from proxemics.methods.build import METHODS
from proxemics.methods.couce import ODBA, CouCE, coherence, soft_orthogonality, span_energy, span_split, top_rows
from proxemics.methods.couce.dictionary import random_atoms
from proxemics.methods.couce.odba import SEED_BATCHES
from proxemics.training.dictionary_view import AtomPicture, AtomView, DictionaryView, Part, SplitRecall
from proxemics.training.log import Reporter, Silent
from proxemics.training.look import Looker, Shown
from proxemics.training.picture_sample import spread_rows
from proxemics.training.run_folder import RunFolder
from proxemics.training.run_state import RunState, open_state
from proxemics.training.tables import dataset_name, rows_of

SAMPLE = 2000
"""Training pictures that are looked at, at most."""
RANDOM_DRAWS = 3
MOST_FREQUENT = 3


def inspect_dictionary(
    run: str | Path, *, atoms: int = 12, pictures: int = 8, sample: int = SAMPLE, reporter: Reporter | None = None
) -> DictionaryView:
    """Look at the background dictionary of a run.

    Args:
        run: a run folder whose method is odba or couce.
        atoms: how many atoms to show.
        pictures: how many pictures an atom.
        sample: training pictures to look at, spread over the classes by the seed of the run.
        reporter: hears of progress.

    Raises:
        DataError: it is no run folder, its methods have no dictionary, the dictionary has not started, or no picture
            can be read.
        TrainingError: the checkpoint is damaged.
    """
    reporter = reporter or Silent()
    check_methods(run)
    state = open_state(run)
    name, odba = find_dictionary(state.methods, run)
    rows = rows_of(state.table, "train")
    drawn = rows.iloc[spread_rows(rows, sample, state.config.seed)].reset_index(drop=True)
    looker = Looker(state, odba)
    seen, z, descriptors = looker.survey(drawn, reporter, "training pictures")
    if not len(seen):
        raise DataError(
            f"None of the {len(drawn)} training pictures of {run} can be read, such as {drawn['path'].iloc[0]}; "
            "put them back where split.parquet says they are."
        )
    dictionary = odba.dictionary.cpu()
    order = odba.prior.cpu().argsort(descending=True, stable=True)[:atoms]
    best, cosines = top_rows(descriptors, dictionary[order], pictures)
    shown = looker.show(seen, best, dictionary[order], reporter)
    chosen = (descriptors @ dictionary.t()).argmax(1).numpy()
    views = []
    for place, number in enumerate(order.tolist()):
        near = {int(row): float(value) for row, value in zip(best[place], cosines[place], strict=True)}
        views.append(_atom_view(number, float(odba.prior[number]), seen, chosen == number, shown[place], near))
    return DictionaryView(
        dataset=dataset_name(state.config),
        method=name,
        checkpoint=state.bundle_sentence,
        gate=odba.extract_gate,
        num_atoms=odba.num_atoms,
        dim=odba.dim,
        used=int((odba.prior > 0.1 / odba.num_atoms).sum()),
        coherence=float(coherence(dictionary)),
        orth=float(soft_orthogonality(z, dictionary)),
        orth_random=odba.num_atoms / odba.dim,
        energy=float(span_energy(z, dictionary).mean()),
        energy_background=float(span_energy(descriptors, dictionary).mean()),
        recall=_split_recall(state, looker, dictionary, reporter),
        num_pictures=len(seen),
        num_training=len(rows),
        num_unreadable=len(drawn) - len(seen),
        atoms=tuple(views),
    )


def methods_with_dictionary() -> list[str]:
    """Return the names of the methods that keep a dictionary of backgrounds.

    Example:
        >>> methods_with_dictionary()
        ['odba', 'couce']
    """
    return [name for name, kind in METHODS.items() if issubclass(kind, ODBA | CouCE)]


def check_methods(run: str | Path) -> None:
    """Refuse a run without a dictionary, from its configuration alone.

    Raises:
        DataError: with the methods that have one.
    """
    used = list(RunFolder(Path(run)).read_config().methods)
    known = methods_with_dictionary()
    if not set(used) & set(known):
        how = f"its methods ({', '.join(used)}) keep none" if used else "it was trained without a method"
        raise DataError(
            f"{run} has no background dictionary: {how}. Methods that keep one: {' and '.join(known)}; "
            "train with `--method couce`."
        )


def find_dictionary(methods: dict[str, Method], run: str | Path) -> tuple[str, ODBA]:
    """Return the first method that keeps a dictionary which has started, and its name.

    Raises:
        DataError: it has not started, with the reason.
    """
    found = {name: one.odba if isinstance(one, CouCE) else one for name, one in methods.items()}
    kept = [(name, one) for name, one in found.items() if isinstance(one, ODBA)]
    for name, odba in kept:
        if odba.seeded:
            return name, odba
    name, odba = kept[0]
    if not odba.active:
        raise DataError(f"The dictionary of {run} was never collected: lambda_b and lambda_o of {name} are both 0.")
    raise DataError(
        f"The dictionary of {run} has not started yet: it has seen {int(odba.filled[1])} batches and starts after "
        f"{SEED_BATCHES} batches and {odba.num_atoms} pictures; train on."
    )


def _atom_view(
    number: int,
    prior: float,
    rows: pd.DataFrame,
    chosen: NDArray[np.bool_],
    shown: Sequence[Shown],
    near: dict[int, float],
) -> AtomView:
    labels, domains = (rows[name].fillna("").astype(str) for name in ("label", "domain"))
    pictures = tuple(
        AtomPicture(
            str(rows["path"].iloc[one.row]),
            labels.iloc[one.row],
            domains.iloc[one.row],
            near[one.row],
            one.pixels,
            one.heat,
        )
        for one in shown
    )
    return AtomView(
        number=number,
        prior=prior,
        chosen=int(chosen.sum()),
        num_labels=int(labels[chosen].nunique()),
        labels=frequent_parts(labels, chosen),
        domains=frequent_parts(domains, chosen) if domains.nunique() > 1 else (),
        pictures=pictures,
    )


def frequent_parts(names: pd.Series[str], chosen: NDArray[np.bool_]) -> tuple[Part, ...]:
    """Return the most frequent names among the chosen rows, with their share there and in all rows.

    Args:
        names: (n,) of all rows.
        chosen: (n,) which rows count.

    Example:
        >>> frequent_parts(pd.Series(["sea", "sea", "sky", "sky"]), np.array([True, True, True, False]))[0]
        Part(name='sea', share=0.6666666666666666, whole=0.5)
    """
    own, total = Counter(names[chosen].tolist()), Counter(names.tolist())
    return tuple(
        Part(name, count / own.total(), total[name] / total.total())
        for name, count in sorted(own.items(), key=lambda item: (-item[1], item[0]))[:MOST_FREQUENT]
    )


def _split_recall(state: RunState, looker: Looker, dictionary: Tensor, reporter: Reporter) -> SplitRecall | None:
    """Recall@1 on the validation pictures: of the embeddings, and of their parts inside and outside of the span."""
    rows = state.table[state.table["split"] == "val"].reset_index(drop=True)
    rows, z, _ = looker.survey(rows, reporter, "validation pictures")
    evaluation = state.config.evaluation.model_copy(update={"recall_at": (1,)})
    full = len(dictionary) >= dictionary.shape[1]

    def recall(embeddings: Tensor) -> tuple[float, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts that have collapsed, which is what is being looked at
            found = assess(embeddings.numpy(), rows, evaluation, seed=state.config.seed, intervals=False).result
        return float(found["recall_at_1"]), found.num_queries

    try:
        whole, queries = recall(z)
        if full:
            return SplitRecall(whole, whole, None, None, None, queries)
        inside, outside = (recall(part)[0] for part in span_split(z, dictionary))
        draws = [random_atoms(len(dictionary), dictionary.shape[1], seed=number + 1) for number in range(RANDOM_DRAWS)]
        random = np.mean([[recall(part)[0] for part in span_split(z, atoms)] for atoms in draws], axis=0)
    except (EvaluationError, DataError):
        return None
    return SplitRecall(whole, inside, outside, float(random[0]), float(random[1]), queries)
