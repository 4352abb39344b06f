"""Shared by the tests of verification: jobs on the programs of `user_code`."""

from __future__ import annotations

import re
from pathlib import Path

from hloscope.verification.job import Settings, VerificationJob
from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import run_verification

USER_CODE = Path(__file__).parent / "user_code"


def job(file, target, reference, devices=8, memory_bytes=None, **settings):
    names = {role: f"{USER_CODE / file}.py:{name}" for role, name in (("target", target), ("reference", reference))}
    return VerificationJob(**names, devices=devices, memory_bytes=memory_bytes, settings=Settings(**settings))


def findings(file, target, reference, **options):
    return list(judge_numerics(run_verification(job(file, target, reference, **options))))


def unmeasured(text):
    """A sentence without its measured figures, which differ a little from machine to machine."""
    return re.sub(r"-?\d+(?:\.\d+)?e[-+]?\d+|-?\d+\.\d+", "MEASURED", text)


def clauses_with(found, rule, *shown):
    """What findings of a rule say in which all of `shown` stand in that order, without their measured figures.

    How many elements are wrong differs too, so of a message the first part is taken; what is said of the worst element
    is left out.
    """
    pattern = ".*".join(map(re.escape, shown))
    said = [
        clause
        for one in found
        if one.rule == rule
        for clause in (one.message.partition(" in ")[0], *(one.why or "").split("; "))
    ]
    return sorted(
        {unmeasured(each) for each in said if re.search(pattern, each) and not each.startswith("largest error at")}
    )
