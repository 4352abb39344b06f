"""Shared by the tests of verification: jobs on the programs of `user_code`."""

from __future__ import annotations

from pathlib import Path

from hloscope.verification.job import Job, Settings
from hloscope.verification.judging import judge_numerics
from hloscope.verification.running import run_job

USER_CODE = Path(__file__).parent / "user_code"


def job(file, target, reference, devices=8, memory_bytes=None, **settings):
    names = {role: f"{USER_CODE / file}.py:{name}" for role, name in (("target", target), ("reference", reference))}
    return Job(**names, devices=devices, memory_bytes=memory_bytes, settings=Settings(**settings))


def findings(file, target, reference, **options):
    return list(judge_numerics(run_job(job(file, target, reference, **options))))
