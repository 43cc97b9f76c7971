"""Public benchmark sets: their official layouts, counts and splits, and how to get or rebuild them."""

from proxemics.data.benchmarks.catalogue import BENCHMARKS, find_benchmark

__all__ = ["BENCHMARKS", "find_benchmark"]
