"""Shared by the tests of verification: jobs on the programs of `user_code`."""

from __future__ import annotations

from pathlib import Path

from hloscope.program.target import TargetFacts
from hloscope.verification.job import Job, Side
from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import run_job

USER_CODE = Path(__file__).parent / "user_code"


def side(file, name, **facts):
    return Side(target=f"{USER_CODE / file}.py:{name}", facts=TargetFacts(**facts))


def job(file, target, reference, devices=8, **options):
    return Job(target=side(file, target), reference=side(file, reference), devices=devices, **options)


def findings(file, target, reference, **options):
    return list(judge_numerics(run_job(job(file, target, reference, **options))))
