"""A number for every operation, so that a compiled instruction leads back to the operations that it was made from.

JAX names an operation by its scopes and its primitive, `jit(step)/layer/dot_general`, and many operations share a name.
Before a module is compiled, each operation's name gets a running number as a component of its own before the last:
`jit(step)/layer/#17/dot_general`. The compiler hands names on; of a call that it inlines, the call's own comes first:
`jit(step)/#3/closed_call/#17/dot_general`. What it makes of the program is the same but for these names
(measured: `tests/compiler/test_identity.py`); a suffix of the last component would change the instructions' names too.

The numbers are taken out where a text leaves the compiler: nothing that users see holds one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from hloscope.compiler.packed import renamed
from hloscope.compiler.shardy_model import Identities, Identity

_MARK = re.compile(r"#\d+/")
_CALL = re.compile(r"[^#]*(?:#(?!\d+/)[^#]*)*#\d+/[^/]*/(?=.*#\d+/)", re.DOTALL)
_NUMBER = re.compile(r"#(\d+)/")
_LIKE_A_MARK = re.compile(rb"#\d+[/\0]")
_LIKE_A_MARK_IN_TEXT = re.compile(r'#\d+[/"]')
_JOINED = re.compile(r"\(((?:[^():]*#\d+/[^():]*:)+[^():]*#\d+/[^():]*)\)")
_PARTS = ";"
"""What the compiler writes between the names of several operations that it made one instruction from."""
_FEW_ELEMENTS = 16
_KERNEL = "tpu_custom_call"
_SPREAD = "broadcast_in_dim"
"""What is merged with the operation that uses it: without scopes an instruction goes by both names."""
_NAME = re.compile(r'(?<=[ {]op_name=")[^"\\#]*(?:\\.[^"\\#]*)*#[^"\\]*(?:\\.[^"\\]*)*(?=")')
_NAMED = re.compile(
    r'^ *(?:ROOT )?%?(?P<instruction>[\w.\-]+) = .*?[ {]op_name="(?P<name>(?:[^"\\]|\\.)*?#\d+/(?:[^"\\]|\\.)*)"',
    re.MULTILINE,
)


def mark(module: Any) -> bool:
    """Numbers the named operations of a module, in the order of its text: the same module always in the same way.

    Args:
        module: A `jaxlib.mlir.ir.Module`, which is changed.

    Returns:
        Whether that was done: not where something of the user's looks like a number, or a name like several names.
    """
    from jaxlib.mlir import ir

    named = _named(module)
    if named is None:
        return False
    with module.context:
        for number, op in enumerate(named):
            if op.location.name_str != _SPREAD:
                name = _marked(op.location.name_str, number, _is_kernel(op))
                op.location = ir.Location.name(name, op.location.child_loc)
    return True


def numbered_operations(module: Any) -> dict[int, Any]:
    """The operations of a module by the numbers that `mark` gives them; none where it gives none."""
    return dict(enumerate(_named(module) or ()))


def _named(module: Any) -> list[Any] | None:
    """The operations that get numbers, in order; None where something of the user's would be mistaken for one."""
    from jaxlib.mlir import ir

    if _has_like_a_mark(module):
        return None
    named = [op for op in _operations(module.operation) if isinstance(op.location, ir.NameLoc)]
    return None if any(_PARTS in op.location.name_str for op in named) else named


def _marked(name: str, number: int, is_kernel: bool) -> str:
    """A name with its number; without one where that would be what the compiler names an instruction after."""
    scopes, slash, last = name.rpartition("/")
    if not last:
        return name
    if not is_kernel:
        return f"{scopes}{slash}#{number}/{last}"
    outer, outer_slash, inner = scopes.rpartition("/")
    return f"{outer}{outer_slash}#{number}/{inner}/{last}" if inner else name


def _is_kernel(op: Any) -> bool:
    """Whether libtpu names the instruction that it makes of it after the component of its name before the last."""
    return bool(op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == _KERNEL)


def _has_like_a_mark(module: Any) -> bool:
    """Whether a string of the module looks like a number: a name, a file, an attribute.

    All strings end with a zero in bytecode. What looks like one there may still be the bytes of a constant.
    """
    written = BytesIO()
    module.operation.write_bytecode(written)
    if not _LIKE_A_MARK.search(written.getbuffer()):
        return False
    text = module.operation.get_asm(enable_debug_info=True, large_elements_limit=_FEW_ELEMENTS)
    return _LIKE_A_MARK_IN_TEXT.search(text) is not None


def _operations(op: Any) -> Iterator[Any]:
    for block in _blocks(op):
        for child in block.operations:
            yield child.operation
            yield from _operations(child.operation)


def _blocks(op: Any) -> Iterator[Any]:
    return (block for region in op.regions for block in region.blocks)


def identities_in(name: str) -> tuple[Identity, ...]:
    """The operations that a name is of: several where the compiler made one of them, whose names `;` parts."""
    each = (tuple(map(int, _NUMBER.findall(part))) for part in _joined_apart(name).split(_PARTS))
    return tuple(identity for identity in each if identity)


def _joined_apart(name: str) -> str:
    """A name of several, which XLA's combiner on CPU joins as `scope/(#3/psum:#4/psum)`, parted by `;` instead."""
    joined = _JOINED.search(name)
    if joined is None:
        return name
    return _PARTS.join(f"{name[: joined.start()]}{each}{name[joined.end() :]}" for each in joined[1].split(":"))


def unmarked(name: str) -> str:
    """A name as it would be without numbers: one for all operations that share it.

    Names that became one in a function got the name of its call afterwards, which then stands before the first of them
    only: `jit(f)/#3/call/#4/add;#5/add` is `jit(f)/call/add`.
    """
    if not _MARK.search(name):
        return name
    name = _joined_apart(name)
    kept: list[str] = []
    known: set[str] = set()
    for part in name.split(_PARTS):
        names = _names_in_functions(part)
        if names[-1] not in known:
            kept.append(names[-1])
            known.update(names)
    return _PARTS.join(kept)


def _names_in_functions(part: str) -> list[str]:
    """The name of one operation without numbers, in the function that holds it, in its caller, …, in the program.

    A name that begins with the call's already does not get it once more. Source: XLA's call_inliner.cc.
    """
    calls = _CALL.findall(part)
    names = [_MARK.sub("", part[sum(map(len, calls)) :])]
    for call in reversed(calls):
        caller = _MARK.sub("", call).removesuffix("/")
        names.append(names[-1] if names[-1].startswith(caller) else f"{caller}/{names[-1]}")
    return names


def text_unmarked(text: str) -> str:
    """HLO text with names as they would be without numbers."""
    return renamed(_NAME.sub(lambda match: unmarked(match[0]), text), unmarked)


def shown_where(module: bytes | str) -> Callable[[str], str]:
    """What takes numbers out of messages about a module in bytecode: nothing where they may be the user's."""
    found = isinstance(module, str) or _LIKE_A_MARK.search(module)
    return str if found else message_unmarked


def message_unmarked(text: str) -> str:
    """What a compiler says, without numbers, wherever in it the name of an operation stands."""
    return _MARK.sub("", text_unmarked(text))


def identities_of(text: str) -> Identities:
    """What each instruction of HLO text was made from."""
    found = ((match["instruction"], identities_in(match["name"])) for match in _NAMED.finditer(text))
    return {instruction: identities for instruction, identities in found if identities}
