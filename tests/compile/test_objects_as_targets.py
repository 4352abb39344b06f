"""Objects that can be called, and answer to every name that they are asked for."""

from __future__ import annotations

from unittest.mock import MagicMock, Mock

import pytest

import hloscope
from hloscope.base.errors import TargetError


class Proxy:
    """Whatever is asked of it is itself."""

    def __call__(self, x):
        return x * 2

    def __getattr__(self, name):
        return self


class Endless(Proxy):
    """Whatever is asked of it is another one."""

    def __getattr__(self, name):
        return Endless()


def around_itself():
    def one(x):
        return x

    def other(x):
        return x

    one.__wrapped__, other.__wrapped__ = other, one
    return one


MADE = {"a circle": around_itself, "a proxy": Proxy, "no end": Endless}


@pytest.mark.parametrize("made", MADE)
def test_what_wraps_itself_is_refused(says, made):
    with pytest.raises(TargetError) as caught:
        hloscope.analyze(MADE[made](), ("f32[8]",), slice="cpu:1")
    says(caught)


@pytest.mark.parametrize("made", [Mock, MagicMock])
@pytest.mark.parametrize("args", [None, ("f32[8]",)], ids=str)
def test_a_mock_is_no_jitted_function_and_no_file(says, made, args):
    with pytest.raises(TargetError, match="Mock has methods trace and lower") as caught:
        hloscope.analyze(made(), args, slice="cpu:1")
    if args is None:
        says(caught)
