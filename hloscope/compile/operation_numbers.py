"""A number for every operation, by which a compiled instruction leads back to the operations it was made from.

JAX names an operation by its scopes and its primitive, `jit(step)/layer/dot_general`, and many operations share a name.
Before a module is compiled, each operation's name gets a running number as a component of its own before the last:
`jit(step)/layer/#17/dot_general`. The compiler keeps names; for a call that it inlines, the call's own comes first:
`jit(step)/#3/closed_call/#17/dot_general`. Its output is the same apart from these names
(measured: `tests/compile/test_identity.py`); a suffix of the last component would change the instructions' names too.

The numbers are removed when a text leaves the compiler: users never see them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any

from hloscope.base.protobuf import change_at_path
from hloscope.model.capture import Identities, Identity

# ---- instructions that libtpu packs, with their names, into the configuration of others: protobuf in base64

_PACKED = re.compile(r'"original_(?P<what>instruction|to_apply)":"(?P<packed>[A-Za-z0-9+/]+=*)"')
_NAMES = {"instruction": (7, 2), "to_apply": (2, 7, 2)}
"""`HloInstructionProto.metadata`, `OpMetadata.op_name`, and the same in `HloComputationProto.instructions`.

Source: XLA's service/hlo.proto and xla_data.proto.
"""


def rename_packed(text: str, new_name: Callable[[str], str]) -> str:
    """HLO text with other names in its packed instructions; unreadable ones are kept."""

    def again(match: re.Match[str]) -> str:
        packed = _rename_one(match["packed"], _NAMES[match["what"]], new_name)
        return f'"original_{match["what"]}":"{packed}"'

    return _PACKED.sub(again, text)


def _rename_one(packed: str, path: tuple[int, ...], new_name: Callable[[str], str]) -> str:
    try:
        message = base64.b64decode(packed, validate=True)
        changed = change_at_path(message, path, lambda name: new_name(name.decode()).encode())
    except ValueError:  # of base64, of the message or of a name
        return packed
    return packed if changed == message else base64.b64encode(changed).decode()


_MARK = re.compile(r"#\d+/")
_CALL = re.compile(r"[^#]*(?:#(?!\d+/)[^#]*)*#\d+/[^/]*/(?=.*#\d+/)", re.DOTALL)
_NUMBER = re.compile(r"#(\d+)/")
_LIKE_A_MARK = re.compile(rb"#\d+[/\0]")
_LIKE_A_MARK_IN_TEXT = re.compile(r'#\d+[/"]')
_JOINED = re.compile(r"\(((?:[^():]*#\d+/[^():]*:)+[^():]*#\d+/[^():]*)\)")
_PARTS = ";"
"""The compiler's separator between the names of several operations that became one instruction."""
_FEW_ELEMENTS = 16
_KERNEL = "tpu_custom_call"
_SPREAD = "broadcast_in_dim"
"""An operation merged with the one that uses it: without scopes an instruction has both names."""
_NAME = re.compile(r'(?<=[ {]op_name=")[^"\\#]*(?:\\.[^"\\#]*)*#[^"\\]*(?:\\.[^"\\]*)*(?=")')
_NAMED = re.compile(
    r'^ *(?:ROOT )?%?(?P<instruction>[\w.\-]+) = .*?[ {]op_name="(?P<name>(?:[^"\\]|\\.)*?#\d+/(?:[^"\\]|\\.)*)"',
    re.MULTILINE,
)


def number_operations(module: Any) -> bool:
    """Numbers the named operations of a module, in the order of its text: the same module always gets the same numbers.

    Args:
        module: A `jaxlib.mlir.ir.Module`, which is modified.

    Returns:
        Whether that was done: not if something of the user's looks like a number, or a name looks like several names.
    """
    from jaxlib.mlir import ir

    named = _find_named_operations(module)
    if named is None:
        return False
    with module.context:
        for number, op in enumerate(named):
            if op.location.name_str != _SPREAD:
                name = _add_number(op.location.name_str, number, _is_kernel(op))
                op.location = ir.Location.name(name, op.location.child_loc)
    return True


def find_numbered_operations(module: Any) -> dict[int, Any]:
    """The operations of a module by the numbers of `number_operations`; empty if it gives none."""
    return dict(enumerate(_find_named_operations(module) or ()))


def _find_named_operations(module: Any) -> list[Any] | None:
    """The operations that get numbers, in order; None if something of the user's could be mistaken for a number."""
    from jaxlib.mlir import ir

    if _has_like_a_mark(module):
        return None
    named: list[Any] = []

    def note(op: Any) -> Any:
        if isinstance(op.location, ir.NameLoc):
            named.append(op)
        return ir.WalkResult.ADVANCE

    for top in module.body.operations:
        top.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return None if any(_PARTS in op.location.name_str for op in named) else named


def _add_number(name: str, number: int, is_kernel: bool) -> str:
    """A name with its number; unchanged if the compiler would name an instruction after the number."""
    scopes, slash, last = name.rpartition("/")
    if not last:
        return name
    if not is_kernel:
        return f"{scopes}{slash}#{number}/{last}"
    outer, outer_slash, inner = scopes.rpartition("/")
    return f"{outer}{outer_slash}#{number}/{inner}/{last}" if inner else name


def _is_kernel(op: Any) -> bool:
    """Returns whether libtpu names the operation's instruction after the component of its name before the last."""
    return bool(op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == _KERNEL)


def _has_like_a_mark(module: Any) -> bool:
    """Returns whether a string of the module looks like a number: a name, a file, an attribute.

    All strings end with a zero in bytecode. A match there may still be the bytes of a constant.
    """
    written = BytesIO()
    module.operation.write_bytecode(written)
    if not _LIKE_A_MARK.search(written.getbuffer()):
        return False
    text = module.operation.get_asm(enable_debug_info=True, large_elements_limit=_FEW_ELEMENTS)
    return _LIKE_A_MARK_IN_TEXT.search(text) is not None


def read_identities(name: str) -> tuple[Identity, ...]:
    """The operations in a name: several, separated by `;`, if the compiler made one of them."""
    each = (tuple(map(int, _NUMBER.findall(part))) for part in _split_joined_name(name).split(_PARTS))
    return tuple(identity for identity in each if identity)


def _split_joined_name(name: str) -> str:
    """A name that XLA's combiner on CPU joined, such as `scope/(#3/psum:#4/psum)`, split with `;` instead."""
    joined = _JOINED.search(name)
    if joined is None:
        return name
    return _PARTS.join(f"{name[: joined.start()]}{each}{name[joined.end() :]}" for each in joined[1].split(":"))


def strip_numbers(name: str) -> str:
    """A name without numbers: the same for all operations that share it.

    Names that became one in a function got the name of its call afterwards, which then precedes the first of them
    only: `jit(f)/#3/call/#4/add;#5/add` is `jit(f)/call/add`.
    """
    if not _MARK.search(name):
        return name
    name = _split_joined_name(name)
    kept: list[str] = []
    known: set[str] = set()
    for part in name.split(_PARTS):
        names = _list_names_in_functions(part)
        if names[-1] not in known:
            kept.append(names[-1])
            known.update(names)
    return _PARTS.join(kept)


def _list_names_in_functions(part: str) -> list[str]:
    """The name of one operation without numbers, in the function that holds it, in its caller, …, in the program.

    A name that begins with the call's already does not get it once more. Source: XLA's call_inliner.cc.
    """
    calls = _CALL.findall(part)
    names = [_MARK.sub("", part[sum(map(len, calls)) :])]
    for call in reversed(calls):
        caller = _MARK.sub("", call).removesuffix("/")
        names.append(names[-1] if names[-1].startswith(caller) else f"{caller}/{names[-1]}")
    return names


def strip_text_numbers(text: str) -> str:
    """HLO text with the numbers removed from its names."""
    return rename_packed(_NAME.sub(lambda match: strip_numbers(match[0]), text), strip_numbers)


def make_message_filter(module: bytes | str) -> Callable[[str], str]:
    """Makes the function that removes numbers from messages about a module; none if they may be the user's."""
    found = isinstance(module, str) or _LIKE_A_MARK.search(module)
    return str if found else strip_message_numbers


def strip_message_numbers(text: str) -> str:
    """A compiler message without numbers, wherever it contains the name of an operation."""
    return _MARK.sub("", strip_text_numbers(text))


def read_text_identities(text: str) -> Identities:
    """The operations that each instruction of HLO text was made from."""
    found = ((match["instruction"], read_identities(match["name"])) for match in _NAMED.finditer(text))
    return {instruction: identities for instruction, identities in found if identities}
