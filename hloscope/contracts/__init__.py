"""Contracts: what a program may move, in Python or as text, and checks of programs against them.

Both notations give the same `Contract`, and so does a list of clauses, as in a TOML targets file:

    only(all_reduce("Y", max_bytes="32 KiB", count=2)) & hbm(max="14 GiB")

    all-reduce@Y <= 32KiB x2; nothing else; hbm <= 14GiB

    contract = ["all-reduce@Y <= 32KiB x2", "nothing else", "hbm <= 14GiB"]

An *expectation* (`all-reduce@Y`) means exactly these axes, each as a whole unless it names a part (`Y:(1)2`), and that
there is such a collective. A *ban* (`no all-gather@X`) and a *limit* (`wire@X <= 6MB/step`) cover everything that runs
over X, alone or with other axes. What cannot be decided fails: unknown is never zero.
"""

from hloscope.judge.building import (
    all_gather,
    all_reduce,
    all_to_all,
    at_most,
    collective,
    collective_broadcast,
    collective_permute,
    exposed,
    hbm,
    no,
    none,
    only,
    ragged_all_to_all,
    reduce_scatter,
    repeated,
    time,
    trips,
)
from hloscope.judge.model import Contract

__all__ = [
    "Contract",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "at_most",
    "collective",
    "collective_broadcast",
    "collective_permute",
    "exposed",
    "hbm",
    "no",
    "none",
    "only",
    "ragged_all_to_all",
    "reduce_scatter",
    "repeated",
    "time",
    "trips",
]
