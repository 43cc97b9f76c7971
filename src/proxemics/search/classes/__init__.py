"""Classes that are added from a few pictures without training, looked up with an answer "unknown", and forgotten."""

from proxemics.search.classes.book import UNKNOWN, ClassBook, ClassEntry, Enrolled
from proxemics.search.classes.decide import Decision, decide
from proxemics.search.classes.store import changing_book, load_book, save_book

__all__ = [
    "UNKNOWN",
    "ClassBook",
    "ClassEntry",
    "Decision",
    "Enrolled",
    "changing_book",
    "decide",
    "load_book",
    "save_book",
]
