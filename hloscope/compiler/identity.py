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
from collections.abc import Iterator
from typing import Any

from hloscope.compiler.shardy_model import Identities, Identity

_MARK = re.compile(r"#(\d+)/")
_LIKE_A_MARK = re.compile(r"#\d+(?:/|$)")
_NAME = re.compile(r'(?<=op_name=")[^"#]*#(?:[^"\\]|\\.)*(?=")')
_NAMED = re.compile(r'^ *(?:ROOT )?%?(?P<instruction>[\w.\-]+) = .*?[ {]op_name="(?P<name>[^"#]*#[^"]*)"', re.MULTILINE)


def mark(module: Any) -> bool:
    """Numbers the named operations of a module, in the order of its text: the same module always in the same way.

    Args:
        module: A `jaxlib.mlir.ir.Module`, which is changed.

    Returns:
        Whether that was done: it is not where a name of the user's looks like a number.
    """
    from jaxlib.mlir import ir

    operations = list(_operations(module.operation))
    named = [op for op in operations if isinstance(op.location, ir.NameLoc)]
    arguments = (argument.location for op in operations for block in _blocks(op) for argument in block.arguments)
    names = (place.name_str for place in (*(op.location for op in named), *arguments) if isinstance(place, ir.NameLoc))
    if any(_LIKE_A_MARK.search(name) for name in names):
        return False
    with module.context:
        for number, op in enumerate(named):
            scopes, slash, last = op.location.name_str.rpartition("/")
            op.location = ir.Location.name(f"{scopes}{slash}#{number}/{last}", op.location.child_loc)
    return True


def numbered_operations(module: Any) -> dict[int, Any]:
    """The operations of a module by the numbers that `mark` gives them; none where it gives none."""
    from jaxlib.mlir import ir

    operations = list(_operations(module.operation))
    named = [op for op in operations if isinstance(op.location, ir.NameLoc)]
    if any(_LIKE_A_MARK.search(op.location.name_str) for op in named):
        return {}
    return dict(enumerate(named))


def _operations(op: Any) -> Iterator[Any]:
    for block in _blocks(op):
        for child in block.operations:
            yield child.operation
            yield from _operations(child.operation)


def _blocks(op: Any) -> Iterator[Any]:
    return (block for region in op.regions for block in region.blocks)


def identities_in(name: str) -> tuple[Identity, ...]:
    """The operations that a name is of: several where the compiler made one of them, whose names `;` parts."""
    each = (tuple(map(int, _MARK.findall(part))) for part in name.split(";"))
    return tuple(identity for identity in each if identity)


def unmarked(name: str) -> str:
    """A name as it would be without numbers: one for all operations that share it."""
    return ";".join(dict.fromkeys(_MARK.sub("", name).split(";")))


def text_unmarked(text: str) -> str:
    """HLO text, or a compiler's message, with names as they would be without numbers."""
    return _NAME.sub(lambda match: unmarked(match[0]), text)


def identities_of(text: str) -> Identities:
    """What each instruction of HLO text was made from."""
    found = ((match["instruction"], identities_in(match["name"])) for match in _NAMED.finditer(text))
    return {instruction: identities for instruction, identities in found if identities}
