"""Which branch the numbers are of, where a program chooses by the platform."""

from __future__ import annotations

from pathlib import Path

import pytest

import hloscope
from hloscope.verification.model import ANOTHER_BRANCH

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.usefixtures("cached")]
CODE = f"{Path(__file__).parent / 'user_code' / 'branching.py'}"


def verified(name, **options):
    return hloscope.verify(f"{CODE}:{name}", f"{CODE}:twice", **options)


@pytest.mark.parametrize("name", ["by_device", "everywhere_alike"])
def test_numbers_of_the_branch_that_was_compiled_need_no_word(name):
    found = verified(name)
    assert found.numerics.agree
    assert found.exceptions == ()


def test_with_devices_that_say_that_they_are_cpus_both_take_that_branch():
    found = verified("by_device", platform="cpu")
    assert "wrong-result" in {finding.rule for finding in found.findings}
    assert not found.passed


def test_a_program_for_cpu_devices_has_no_other_branch():
    assert verified("by_lowering", slice="cpu:8").exceptions == ()


@pytest.mark.parametrize(
    ("name", "shown"), [("by_lowering", "platform_dependent"), ("by_kernel", "cannot run the branch")]
)
def test_numbers_of_another_branch_are_called_that(says, name, shown):
    found = verified(name)
    assert found.numerics.agree
    assert found.passed
    assert found.exceptions == ("numbers of another branch",)
    [finding] = [one for one in found.findings if one.rule == ANOTHER_BRANCH]
    assert shown in finding.message
    says(finding.message.partition(" ran: ")[0].replace(f"{Path(CODE).parent}/", ""))
