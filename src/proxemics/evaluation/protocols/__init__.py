"""Who is a query and who is in the gallery, and how several models or domains become one number.

Each protocol is a pure function with a page under ``docs/protocols`` and a value of ``evaluation.protocol``.
"""

from proxemics.evaluation.protocols.four_folds import Fold, Musgrave, concatenate, musgrave, musgrave_folds
from proxemics.evaluation.protocols.one_source import SingleDomain, single_domain
from proxemics.evaluation.protocols.retrieval import (
    all_domain_pairs,
    cross_domain,
    leave_one_domain_out,
    query_gallery,
    zero_shot,
)
from proxemics.evaluation.protocols.roth_metrics import roth
from proxemics.evaluation.protocols.rows import Selection, Table, rows_of

__all__ = [
    "Fold",
    "Musgrave",
    "Selection",
    "SingleDomain",
    "Table",
    "all_domain_pairs",
    "concatenate",
    "cross_domain",
    "leave_one_domain_out",
    "musgrave",
    "musgrave_folds",
    "query_gallery",
    "roth",
    "rows_of",
    "single_domain",
    "zero_shot",
]
