"""Changes of the user's source that make a suggestion real: constraints in its lines, and literals of its target."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import accumulate
from typing import Any, NamedTuple

from hloscope.base.errors import HloscopeError
from hloscope.compile.importing import format_path
from hloscope.compile.retracing import RewrittenLine
from hloscope.compile.target import TargetFacts
from hloscope.model.analysis import parse_argument_path
from hloscope.model.trial import SourceEdit, SuggestedSpec

_AXES = re.compile(r"@(?:\([^)]*\)|[^,\]]*)")
_DIMENSIONS = re.compile(r"\[(.*)\]")
_DIMENSION = re.compile(r"(?:\([^)]*\)|[^,(])+")


def apply_edits(text: str, edits: Sequence[SourceEdit]) -> str:
    """The text of a file with its edits.

    Raises:
        HloscopeError: The file has other lines than when the program was traced, two edits are at one place, or the
            result is not Python.
    """
    lines = StringIO(text).readlines()  # as Python counts them: a form feed ends none
    begins = [0, *accumulate(map(len, lines))]
    end = len(text)
    written = text
    for edit in sorted(edits, key=lambda each: (each.line, bool(each.before)), reverse=True):
        begin = begins[min(edit.line - 1, len(lines))]
        stop = begin + len(edit.before)
        if text[begin:stop] != edit.before or stop > end:
            what = "is not as it was when the program was traced" if stop <= end else "would be changed twice"
            raise HloscopeError(f"nothing was written: {format_path(edit.file)}:{edit.line} {what}")
        written, end = written[:begin] + edit.after + written[stop:], begin
    try:
        ast.parse(written)
    except SyntaxError as error:
        where = f"{format_path(edits[0].file)}:{error.lineno}"
        raise HloscopeError(f"nothing was written: {where} would not be Python", why=error.msg) from None
    return written


def list_line_edits(lines: Iterable[RewrittenLine]) -> tuple[list[SourceEdit], list[str]]:
    """The edits that write lines with constraints and the imports that they need, and the lines without a place."""
    edits, by_hand = dict[SourceEdit, None](), list[str]()
    for line in lines:
        if line.edit is None:
            by_hand.append(f"write {line.after} as the first line of {line.entered}, which is a function of one line")
            continue
        edits[line.edit] = None
        edits.update(dict.fromkeys(_write_import(line.edit.file, name) for name in line.imports))
    return list(edits), by_hand


def _write_import(file: str, statement: str) -> SourceEdit:
    """An import before the first one of a file, or before its first statement after docstring and `__future__`."""
    tree = ast.parse("".join(linecache.getlines(file)))
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    body = [node for node in body if getattr(node, "module", None) != "__future__"]
    place = next((node for node in body if isinstance(node, ast.Import | ast.ImportFrom)), body[0])
    line = min([place.lineno, *(each.lineno for each in getattr(place, "decorator_list", ()))])
    return SourceEdit(file=file, line=line, before="", after=f"{statement}\n")


class _NoLiteralError(Exception):
    """There is no literal that is one change's alone."""


class _Change(NamedTuple):
    """A literal, and the code in its place."""

    node: ast.expr
    text: str


def find_literal_edits(
    function: Callable[..., Any], facts: TargetFacts, specs: Iterable[SuggestedSpec], mesh: Mapping[str, int]
) -> tuple[list[SourceEdit], list[str]]:
    """The edits of literals in a target's decorator that change its arguments, results and mesh.

    Only literals are changed whose value is what the target was called with, and that serve nothing else.

    Args:
        function: The user's function.
        facts: How it was called.
        specs: The shardings to change.
        mesh: The sizes of the mesh axes to change.

    Returns:
        The edits, and the changes without such a literal, each with the reason.
    """
    changes, by_hand, target = list[_Change](), list[str](), _Decorated(function)
    if mesh:
        try:
            changes += target.change_mesh(facts.mesh, mesh)
        except _NoLiteralError as error:
            by_hand.append(f"mesh {', '.join(f'{axis}={size}' for axis, size in mesh.items())}: {error}")
    for spec in specs:
        try:
            changes += target.change_result(facts, spec) if spec.is_result else target.change_argument(facts, spec)
        except _NoLiteralError as error:
            by_hand.append(f"{spec.name}: {spec.before or 'left open'} -> {spec.after or 'left open'}: {error}")
    return list(target.write(changes)), by_hand


class _Decorated:
    """A function with a decorator that says how it is called, in its source."""

    def __init__(self, function: Callable[..., Any]) -> None:
        itself = inspect.unwrap(function)
        code = getattr(itself, "__code__", None)
        self._file = "" if code is None else code.co_filename
        self._lines = tuple(linecache.getlines(self._file))
        try:
            tree = ast.parse("".join(self._lines))
        except SyntaxError:  # the file was edited meanwhile
            tree = ast.Module([], [])
        self._loads = Counter(
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        )
        stored = Counter(
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        )
        self._values = {
            node.targets[0].id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1
            if stored[node.targets[0].id] == 1
        }
        self._said: dict[str, ast.expr | None] = {}
        """The decorator's keywords; None for those from a dictionary that other targets share."""
        self._parameters = [] if code is None else list(inspect.signature(itself).parameters)
        for node in ast.walk(tree):
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            first = min((each.lineno for each in decorators), default=None)
            if code is not None and first == code.co_firstlineno:
                self._said = dict(self._list_keywords(decorators))

    def _list_keywords(self, decorators: Iterable[ast.expr]) -> Iterator[tuple[str, ast.expr | None]]:
        for call in decorators:
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg is not None:
                    yield keyword.arg, keyword.value
                elif isinstance(found := self._values.get(getattr(keyword.value, "id", "")), ast.Dict):
                    is_own = self._loads[ast.unparse(keyword.value)] == 1
                    for key, value in zip(found.keys, found.values, strict=True):
                        if isinstance(key, ast.Constant):
                            yield str(key.value), value if is_own else None

    def _resolve(self, name: str) -> ast.expr:
        if name not in self._said:
            raise _NoLiteralError(f"no decorator in the source says {name}=")
        node = self._said[name]
        if node is None:
            raise _NoLiteralError(f"{name} is in a dictionary that other targets share")
        return self._open(node)

    def _open(self, node: ast.expr) -> ast.expr:
        """The value of a name that is used once."""
        if not isinstance(node, ast.Name):
            return node
        if node.id not in self._values or self._loads[node.id] != 1:
            raise _NoLiteralError(f"{node.id} is used elsewhere too, or computed")
        return self._open(self._values[node.id])

    def _find(self, node: ast.expr, value: Any, steps: Sequence[str]) -> Iterator[tuple[ast.expr, Any]]:
        """The nodes of a value's parts at a path, in which `*` is any step, with their values."""
        node = self._open(node)
        if not steps:
            yield node, value
            return
        if isinstance(node, ast.Dict) and isinstance(value, Mapping):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            pairs = [(str(key), part, value.get(key)) for key, part in zip(keys, node.values, strict=True)]
        elif (
            isinstance(node, ast.Tuple | ast.List) and isinstance(value, tuple | list) and len(node.elts) == len(value)
        ):
            pairs = [(str(at), part, of) for at, (part, of) in enumerate(zip(node.elts, value, strict=True))]
        else:
            raise _NoLiteralError("its type is not spelled out in the decorator")
        chosen = [(part, of) for key, part, of in pairs if steps[0] in (key, "*")]
        if not chosen:
            raise _NoLiteralError("its type is not spelled out in the decorator")
        for part, of in chosen:
            yield from self._find(part, of, steps[1:])

    def change_argument(self, facts: TargetFacts, spec: SuggestedSpec) -> Iterator[_Change]:
        """The types of an argument, with other axes."""
        root, *steps = parse_argument_path(spec.name)
        if spec.notation is None or root not in self._parameters:
            raise _NoLiteralError("it is not an argument of the function itself")
        at = self._parameters.index(root)
        if isinstance(facts.args, tuple | list) and at < len(facts.args):
            found = self._find(self._resolve("args"), facts.args, (str(at), *steps))
        else:
            found = self._find(self._resolve("kwargs"), facts.kwargs, (root, *steps))
        for node, value in found:
            old = self._read_text(node, value)
            yield _Change(node, f'"{retype(old, spec.notation)}"')

    def change_result(self, facts: TargetFacts, spec: SuggestedSpec) -> Iterator[_Change]:
        """The sharding of a result."""
        root, *steps = parse_argument_path(spec.name)
        node = self._resolve("out")
        if root != "result" or (not steps) == isinstance(node, ast.Tuple | ast.List):
            raise _NoLiteralError("its sharding is not spelled out in the decorator")
        for part, value in self._find(node, facts.out if steps else _first(facts.out), steps):
            if value is not None or not isinstance(part, ast.Constant) or part.value is not None:
                self._read_text(part, value)
            yield _Change(part, "None" if spec.after is None else f'"{spec.after}"')

    def change_mesh(self, given: Any, sizes: Mapping[str, int]) -> Iterator[_Change]:
        """The sizes of a mesh."""
        for axis, size in sizes.items():
            for node, value in self._find(self._resolve("mesh"), given, (axis,)):
                if not isinstance(node, ast.Constant) or node.value != value:
                    raise _NoLiteralError("its sizes are not spelled out in the decorator")
                yield _Change(node, str(size))

    def _read_text(self, node: ast.expr, value: Any) -> str:
        held = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(held, str) or not isinstance(value, str) or held != value:
            raise _NoLiteralError("the decorator has another text than the target was called with")
        return held

    def write(self, changes: Iterable[_Change]) -> Iterator[SourceEdit]:
        """The edits of the lines that have the literals."""
        groups: list[list[_Change]] = []
        for change in sorted({each.node: each for each in changes}.values(), key=lambda each: each.node.lineno):
            if groups and change.node.lineno <= max(each.node.end_lineno or 0 for each in groups[-1]):
                groups[-1].append(change)
            else:
                groups.append([change])
        for group in groups:
            first, last = group[0].node.lineno, max(each.node.end_lineno or 0 for each in group)
            before = "".join(self._lines[first - 1 : last])
            after = [line.encode() for line in self._lines[first - 1 : last]]
            for node, text in sorted(group, key=lambda each: each.node.col_offset, reverse=True):
                line, begin, end = node.lineno - first, node.col_offset, node.end_col_offset
                after[line] = after[line][:begin] + text.encode() + after[line][end:]
            yield SourceEdit(file=self._file, line=first, before=before, after=b"".join(after).decode())


def _first(given: Any) -> Any:
    return given[0] if isinstance(given, tuple | list) and len(given) == 1 else given


def retype(old: str, notation: str) -> str:
    """An argument's type with the axes of another notation: `bf16[B@X,D]` and `bf16[8,4@Y]` make `bf16[B,D@Y]`."""
    sizes = _split(_AXES.sub("", old))
    axes = [dimension.partition("@")[2] for dimension in _split(notation)]
    if len(sizes) != len(axes):
        raise _NoLiteralError(f"{old} has another number of dimensions")
    written = ",".join(f"{size}@{cut}" if cut else size for size, cut in zip(sizes, axes, strict=True))
    return _DIMENSIONS.sub(f"[{written}]", old)


def _split(notation: str) -> list[str]:
    found = _DIMENSIONS.search(notation)
    return [] if found is None else [each.strip() for each in _DIMENSION.findall(found[1])]
