"""From a module back to text, in the long form that XLA prints.

What the model keeps as raw text (header values, attribute values, literals) is printed as it was read, so nothing that
hloscope does not interpret is lost. Comments, blanks and line numbers are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from hloscope.hlo.columns import FrameTables
from hloscope.hlo.ir import HloComputation, HloInstruction, HloModule
from hloscope.hlo.records import COMBINED, Layout, Shape

IMPLIED = "#"
"""What only the names of implied instructions and computations hold: those are printed where they are used."""

_BEFORE_TILES = ("D",)
_AFTER_TILES = ("L", "#", "*")
_AFTER_MEMORY_SPACE = ("SC", "P", "M")


_SHAPED_BY_XLA = ("send", "recv", "recv-done")
"""XLA gives these a shape of its own, whatever the text says, and then misses it in the signature."""


def print_module(module: HloModule) -> str:
    """HLO text that reads as the same module.

    A module whose text was cut off is printed up to the word `ENTRY`, so that who reads it learns of the cut too.
    """
    if module._columns.is_single:
        return f"{_single(module.entry.root)}\n"
    header = "".join(f", {key}={value}" for key, value in module.header.items())
    parts = [f"HloModule {module.name}{header}\n", *_tables(module._columns.tables)]
    parts += [_computation(item) for item in module.computations if IMPLIED not in item.name]
    if module.truncated:
        parts.append("ENTRY\n")
    return "\n".join(parts)


def _single(instruction: HloInstruction) -> str:
    """A lone instruction: its operands are parameters that only their shapes here describe."""
    operands = ", ".join(map(_described_operand, instruction.operands))
    inside = operands if instruction.argument is None else instruction.argument
    return f"%{instruction.name} = {_operation(instruction, inside)}{_attributes(instruction)}"


def _described_operand(operand: HloInstruction) -> str:
    if operand.opcode != "parameter" or operand.printed_shape is None:
        return _operand(operand)
    return f"{shape_text(operand.printed_shape)} %{operand.name}"


def _tables(tables: FrameTables) -> Iterator[str]:
    if tables == FrameTables():
        return
    yield _table("FileNames", [quote(name) for name in tables.file_names])
    yield _table("FunctionNames", [quote(name) for name in tables.function_names])
    locations = [
        f"{{file_name_id={file} function_name_id={function} line={line} end_line={end_line} "
        f"column={column} end_column={end_column}}}"
        for file, function, line, column, end_line, end_column in tables.file_locations
    ]
    yield _table("FileLocations", locations)
    frames = [
        f"{{file_location_id={location} parent_frame_id={parent + 1}}}" for location, parent in tables.stack_frames
    ]
    yield _table("StackFrames", frames)


def _table(title: str, rows: list[str]) -> str:
    return "".join([f"{title}\n", *(f"{number} {row}\n" for number, row in enumerate(rows, 1))])


def _computation(computation: HloComputation) -> str:
    entry = "ENTRY " if computation.is_entry else ""
    lines = [f"{entry}%{computation.name} {_signature(computation)}{{\n"]
    lines += [f"  {_instruction(item)}\n" for item in computation.instructions if IMPLIED not in item.name]
    thread = computation.execution_thread
    lines.append("}\n" if thread is None else f"}}, execution_thread={quote(thread)}\n")
    return "".join(lines)


def _signature(computation: HloComputation) -> str:
    """`(p: f32[2]) -> f32[2] `; empty where a shape is not known: no text must have a signature."""
    if computation.root.opcode in _SHAPED_BY_XLA:
        return ""
    parameters = ", ".join(f"{item.name}: {item.shape}" for item in computation.parameters)
    signature = f"({parameters}) -> {computation.root.shape} "
    return "" if "unknown[" in signature or IMPLIED in parameters else signature


def _instruction(instruction: HloInstruction) -> str:
    root = "ROOT " if instruction.is_root else ""
    argument = instruction.argument
    inside = ", ".join(map(_operand, instruction.operands)) if argument is None else argument
    return f"{root}%{instruction.name} = {_operation(instruction, inside)}{_attributes(instruction)}"


def _attributes(instruction: HloInstruction) -> str:
    return "".join(f", {key}={value}" for key, value in instruction.attributes.items())


def _operation(instruction: HloInstruction, inside: str) -> str:
    shape = instruction.printed_shape
    if shape is None and instruction.opcode == "parameter":
        shape = instruction.shape
    before = "" if shape is None else f"{shape_text(shape)} "
    return f"{before}{instruction.opcode}({inside})"


def _operand(operand: HloInstruction) -> str:
    """A name; the operation itself where that stands among the operands: `add(%a, negate(%b))`."""
    if IMPLIED not in operand.name or "index" in operand.attributes:
        return f"%{operand.name}"
    argument = operand.argument
    return _operation(operand, ", ".join(map(_operand, operand.operands)) if argument is None else argument)


def shape_text(shape: Shape) -> str:
    """A shape with its layouts: `(bf16[8,128]{1,0:T(8,128)(2,1)}, s32[])`."""
    if shape.is_tuple:
        return f"({', '.join(map(shape_text, shape.elements))})"
    if shape.element_type == "buffer":
        return f"b({shape_text(shape.elements[0])})"
    return str(shape) if shape.layout is None else f"{shape}{_layout(shape.layout)}"


def _layout(layout: Layout) -> str:
    """`{1,0:T(8,128)S(1)}`, its items in the one order that XLA reads."""
    items = [
        *_items(layout, _BEFORE_TILES),
        "T" * bool(layout.tiles) + "".join(map(_tile, layout.tiles)),
        *_items(layout, _AFTER_TILES),
        f"E({layout.element_size_in_bits})" if layout.element_size_in_bits else "",
        f"S({layout.memory_space})" if layout.memory_space else "",
        *_items(layout, _AFTER_MEMORY_SPACE),
    ]
    colon = ":" if any(items) else ""
    return f"{{{','.join(map(str, layout.minor_to_major))}{colon}{''.join(items)}}}"


def _items(layout: Layout, letters: tuple[str, ...]) -> list[str]:
    """The uninterpreted items that begin with one of the letters, in the letters' order."""
    return [item for letter in letters for item in layout.other_items if item.partition("(")[0].strip() == letter]


def _tile(tile: tuple[int, ...]) -> str:
    return f"({','.join('*' if size == COMBINED else str(size) for size in tile)})"


_PRINTED_ESCAPES = {ord("\\"): "\\\\", ord('"'): '\\"', ord("'"): "\\'", 10: "\\n", 13: "\\r", 9: "\\t"}


def quote(value: str) -> str:
    """A quoted string as XLA prints it: `unquote` gives the value back."""
    return '"' + "".join(map(_escaped, value.encode("utf-8", "surrogatepass"))) + '"'


def _escaped(byte: int) -> str:
    if byte in _PRINTED_ESCAPES:
        return _PRINTED_ESCAPES[byte]
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
