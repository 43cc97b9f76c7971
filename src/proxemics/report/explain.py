"""What each number says, in one line, and which direction is better."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """How to read one number.

    Attributes:
        title: name for people.
        text: one sentence.
        better: ``up``, ``down`` or empty when neither direction is better as such.
        share: the number is a share in [0, 1] and is shown in per cent.
    """

    title: str
    text: str
    better: str = "up"
    share: bool = True


_EXPLANATIONS: dict[str, Explanation] = {
    "map_at_r": Explanation(
        "MAP@R", "How well all pictures of the class are ranked first; 100 % means every one of them before any other."
    ),
    "r_precision": Explanation(
        "R-Precision", "Share of the query's class among its R nearest pictures, R being how many others its class has."
    ),
    "map_c_roth": Explanation(
        "MAP@C", "MAP@R as in Roth et al.: cut at the class size with the query; a perfect ranking stays below 100 %."
    ),
    "rho_spectrum": Explanation(
        "Spectral decay", "How unevenly the embedding uses its directions; 0 means all alike.", "", share=False
    ),
    "nmi": Explanation(
        "NMI", "Agreement of k-means clusters with the classes; rises with the number of clusters, so prefer AMI."
    ),
    "f1": Explanation("F1", "How well pairs of one k-means cluster are pairs of one class, and the other way round."),
    "ami": Explanation("AMI", "Agreement of k-means clusters with the classes, corrected for chance; 0 is chance."),
}
_RECALL = re.compile(r"recall_at_(\d+)")
_PRECISION = re.compile(r"precision_at_(\d+)")
_HORIZON = re.compile(r"map_at_(\d+)")
_ROTH = re.compile(r"map_(\d+)_roth")


def explain(name: str) -> Explanation:
    """Return how to read a metric; unknown names get their own name and no direction.

    Args:
        name: as in ``result.json``.

    Example:
        >>> explain("recall_at_1").title, explain("recall_at_1").better
        ('Recall@1', 'up')
        >>> explain("my_own_number")
        Explanation(title='my own number', text='No explanation is known for this number.', better='', share=False)
    """
    known = _EXPLANATIONS.get(name)
    if known is not None:
        return known
    if match := _RECALL.fullmatch(name):
        return _recall(int(match[1]))
    if match := _PRECISION.fullmatch(name):
        return Explanation(
            f"Precision@{match[1]}", f"Share of the query's class among its {match[1]} nearest pictures."
        )
    if match := _HORIZON.fullmatch(name):
        return Explanation(f"MAP@{match[1]}", f"Average precision over the {match[1]} nearest pictures only.")
    if match := _ROTH.fullmatch(name):
        return Explanation(
            f"MAP@{match[1]} (Roth)",
            "Average precision as in Roth et al.: its divisor counts the query, so even the best is below 100 %.",
        )
    return Explanation(name.replace("_", " "), "No explanation is known for this number.", "", False)


def _recall(k: int) -> Explanation:
    if k == 1:
        return Explanation("Recall@1", "Share of queries whose nearest other picture shows the same class.")
    return Explanation(
        f"Recall@{k}", f"Share of queries with at least one picture of their class among the {k} nearest."
    )
