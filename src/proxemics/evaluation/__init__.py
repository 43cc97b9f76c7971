"""Exact retrieval evaluation: metrics, neighbours, intervals and protocols. Needs torch and NumPy only."""

from proxemics.evaluation.certainty import RiskCoverage, certainty_auroc, risk_coverage
from proxemics.evaluation.clustering import clustering_scores, rho_spectrum
from proxemics.evaluation.evaluate import evaluate_embeddings
from proxemics.evaluation.intervals import class_intervals
from proxemics.evaluation.knn import Neighbours, nearest_neighbours
from proxemics.evaluation.protocols import (
    Selection,
    all_domain_pairs,
    cross_domain,
    leave_one_domain_out,
    musgrave,
    musgrave_folds,
    query_gallery,
    roth,
    single_domain,
    zero_shot,
)
from proxemics.evaluation.result import EvaluationResult

__all__ = [
    "EvaluationResult",
    "Neighbours",
    "RiskCoverage",
    "Selection",
    "all_domain_pairs",
    "certainty_auroc",
    "class_intervals",
    "clustering_scores",
    "cross_domain",
    "evaluate_embeddings",
    "leave_one_domain_out",
    "musgrave",
    "musgrave_folds",
    "nearest_neighbours",
    "query_gallery",
    "rho_spectrum",
    "risk_coverage",
    "roth",
    "single_domain",
    "zero_shot",
]
