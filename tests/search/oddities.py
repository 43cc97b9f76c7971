"""Rows, values and conditions that are hard on a back-end."""

from __future__ import annotations

import random

import numpy as np

from proxemics.search.items import Items
from proxemics.search.where import Condition

VALUES = [
    *("", "cat", "Cat", "it's", 'a "b"', "a\\b", "%", "日本", "🐦", "null", "None", "none", "TRUE", "true", "False"),
    *("9", "9.0", " 9 ", "\u00a09\n", "1_0", "1__0", "_1", "1e1", "1E+1", ".5", "5.", ".", "+3", "--3", "- 3", "0x10"),
    *("inf", "-Infinity", "nan", "1e400", "1e-400", "5e-324", "0.1", "0.10000000000000000001", "9007199254740993"),
    *("1e99999", "9" * 600, "3 OR 1=1", "2" + "0" * 30, "-0", "0", "1e16", "10"),
    *(0, 1, 3, 9, 10, -3, 0.0, -0.0, 0.1, 0.5, 9.0, 9.5, 1e16, 1e300, 5e-324, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1),
    *(2.0**63, -(2**63), 2**62 + 1, 3.0000000000000004, True, False, None),
]
FIELDS = ["label", "a.b", "it's", 'say "x"', "$", "", "id", "é"]
NEVER = [float("nan"), float("inf"), -float("inf"), 10**30, "\0", "a\0", "\ud800"]


def random_meta(generator: random.Random) -> dict:
    return {field: generator.choice(VALUES) for field in FIELDS if generator.random() < 0.8}


def random_condition(generator: random.Random) -> Condition:
    field = generator.choice([*FIELDS, "absent", "x' OR '1'='1", "a\0"])
    operator = generator.choice(["eq", "eq", "in", "lt", "le", "gt", "ge"])
    pool = VALUES + (NEVER[:1] + NEVER[3:] if operator in ("eq", "in") else NEVER)  # infinity equals no row here
    value = tuple(generator.choices(pool, k=generator.randrange(4))) if operator == "in" else generator.choice(pool)
    return Condition(field, operator, value)


ATTACKS = [
    "'; DROP TABLE proxemics_indexes; --",
    '"; DROP TABLE proxemics_indexes; --',
    "x' OR '1'='1",
    "%(w0)s",
    "%s",
    "{0}",
    "\\'; SELECT pg_sleep(60); --",
    "$1",
    "') OR TRUE OR ('",
]


def clustered(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    """Rows around a few centres, of any length."""
    centres = np.random.default_rng(99).standard_normal((20, dim))
    generator = np.random.default_rng(seed)
    vectors = centres[generator.integers(20, size=rows)] + 0.5 * generator.standard_normal((rows, dim))
    return vectors * generator.uniform(0.1, 30, (rows, 1))


def items_of(rows: int, dim: int = 32, seed: int = 0) -> Items:
    meta = [{"label": f"class {n % 7}", "rank": n, "rare": n % 100 == 3} for n in range(rows)]
    return Items.make([f"{n:06d}" for n in range(rows)], clustered(rows, dim, seed), meta)
