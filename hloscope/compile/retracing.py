"""A program traced again with a sharding constraint that the user would write into the source.

A constraint in the lowered module holds where it is inserted. One in the source is differentiated, batched and repeated
with the operations around it: its transpose constrains the cotangent, and rematerialization repeats it.
"""

from __future__ import annotations

import ast
import builtins
import gc
import inspect
import linecache
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from textwrap import shorten
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from hloscope.base.environment import is_library
from hloscope.base.store import Store
from hloscope.compile import jax_private
from hloscope.compile.importing import format_path
from hloscope.compile.jax_targets import is_traced_already
from hloscope.compile.jaxprs import find_inner_jaxprs, find_jaxpr, open_jaxpr, walk_equations
from hloscope.compile.lowering import Function, Lowered, lower_changed
from hloscope.compile.sharding_change import DoesNotApplyError, Resharding, WrittenConstraint
from hloscope.compile.written_constraints import Constrainer, LineWriter, Turner
from hloscope.model.trial import SourceEdit

# ---- expressions of the source, wrapped in calls: in memory, in the functions that exist, for a while
#
# A file is parsed and compiled a second time with the calls, and the functions that were made from it get that code.
# Neither the file nor the module is touched, and the module is not executed again: its functions keep their globals,
# defaults and closures. A nested function that does not exist yet is made from the new code of the function around it.

_WRAPPERS = "_hloscope_wrap"
"""The name of the table of wrappers among Python's builtins, which every function sees."""

_OUT_SHARDING, _RESHARD = "out_sharding", "reshard"
"""The argument of JAX's functions that requests the sharding of a result, and a function that does nothing else."""

_MOST_CHARS = 60
"""The length up to which an expression is quoted."""

_Expression = ast.expr | ast.AugAssign
"""An expression, or an assignment such as `x += y`, which computes one."""

_Node = _Expression | ast.FunctionDef
"""An expression, or a function that begins with a new line for one of its arguments."""


Wrapper = Callable[[Any], Callable[[], Any]]


class _CodeSpan(NamedTuple):
    """The place of an expression in a file: lines count from 1, columns from 0 and in bytes."""

    line: int
    column: int
    end_line: int
    end_column: int


class _Wanted(NamedTuple):
    """A constraint with its number among those of the program, and its place.

    Attributes:
        number: The number.
        constraint: The constraint.
        spans: The places of its expression; empty for an argument.
        entered: The code of the function that has the argument.
        mapped: The names of the functions under a `shard_map` there.
    """

    number: int
    constraint: WrittenConstraint
    spans: frozenset[_CodeSpan]
    entered: CodeType | None = None
    mapped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _UserFile:
    """Expressions in a file, as the file was when its functions were made.

    Attributes:
        file: Path of the file.
        lines: The lines of the file.
        nodes: The expressions, by the number of the constraint.
        codes: The code of each function around them, outermost first, before and after they are wrapped.
        functions: The functions that have such code.
    """

    file: str
    lines: tuple[str, ...]
    nodes: Mapping[int, _Node]
    codes: tuple[tuple[CodeType, CodeType], ...]
    functions: tuple[FunctionType, ...]


class _Call(NamedTuple):
    """A call to be written around an expression: its text before and after; or a text in place of the expression."""

    node: _Expression
    opened: str
    closed: str
    is_instead: bool = False


def _write_calls(found: _UserFile, calls: Sequence[_Call]) -> SourceEdit:
    """Lines of a file as they are, and with calls around expressions in them.

    Raises:
        DoesNotApplyError: They are not Python then, as with quotes within those of an f-string before Python 3.12.
    """
    spans = [_find_span(call.node) for call in calls]
    first, last = min(span.line for span in spans), max(span.end_line for span in spans)
    lines = [line.encode() for line in found.lines[first - 1 : last]]
    begins = [0, *accumulate(map(len, lines))]
    text = b"".join(lines)
    for call, span in sorted(zip(calls, spans, strict=True), key=lambda pair: pair[1], reverse=True):
        begin, end = begins[span.line - first] + span.column, begins[span.end_line - first] + span.end_column
        if isinstance(call.node, ast.AugAssign):
            own = f"{ast.unparse(call.node.target)} = {call.opened}{ast.unparse(_spell_out(call.node))}{call.closed}"
            text = text[:begin] + own.encode() + text[end:]
        elif call.is_instead:
            text = text[:begin] + call.opened.encode() + text[end:]
        else:
            text = text[:begin] + call.opened.encode() + text[begin:end] + call.closed.encode() + text[end:]
    written = text.decode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("".join((*found.lines[: first - 1], written, *found.lines[last:])))
    except SyntaxError:
        place = f"{format_path(found.file)}:{first}"
        raise _make_no_line_error(f"the expression at {place} cannot be written as a call where it is") from None
    return SourceEdit(file=found.file, line=first, before="".join(found.lines[first - 1 : last]), after=written)


def _write_first_line(found: _UserFile, node: ast.FunctionDef, text: str) -> SourceEdit | None:
    """A new line before the first one of a function; None if that is the line of its `def`."""
    place = node.body[_find_entry(node)]
    first = min((each.lineno for each in getattr(place, "decorator_list", ())), default=place.lineno)
    line = found.lines[first - 1]
    if line[: place.col_offset].strip(" \t"):
        return None
    return SourceEdit(file=found.file, line=first, before="", after=f"{line[: place.col_offset]}{text}\n")


def _open_file(file: str, wanted: Sequence[_Wanted]) -> _UserFile:
    """Finds the expressions that Python was evaluating at some places of a file, and the functions that hold them.

    Raises:
        DoesNotApplyError: The file has no such expression or several, or no function was made from it as it is now.
    """
    linecache.checkcache(file)
    lines = tuple(linecache.getlines(file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warned of the file when it was imported
        nodes, codes = _compile_twice(file, lines, wanted)
    seeing = _list_functions(vars(builtins))  # where the table of wrappers is
    made = [function for function in seeing if function.__code__.co_filename == file]
    functions = tuple(function for function in made if any(_is_same(function.__code__, code) for code, _ in codes))
    if not functions:
        line = min(node.lineno for node in nodes.values())
        frozen = "gc.freeze() was called, which hides functions that exist, " if gc.get_freeze_count() else ""
        raise _make_no_line_error(
            f"no function has the code of {format_path(file)}:{line} as it reads now: {frozen}the file was edited "
            "since it was imported, a decorator rewrites the function, or the line runs only on import"
        )
    return _UserFile(file=file, lines=lines, nodes=nodes, codes=codes, functions=functions)


def _compile_twice(
    file: str, lines: tuple[str, ...], wanted: Sequence[_Wanted]
) -> tuple[Mapping[int, _Node], tuple[tuple[CodeType, CodeType], ...]]:
    """The expressions, and the code around them, before and after they are wrapped."""
    name = format_path(file)
    if not lines:
        raise _make_no_line_error(f"{name} cannot be read")
    try:
        tree = ast.parse("".join(lines))
        old = compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise _make_no_line_error(f"{name} is not valid Python any more: {error}") from error
    nodes: dict[int, _Node] = {each.number: _choose_node(tree, each, name) for each in wanted}
    if len(set(map(id, nodes.values()))) < len(nodes):
        raise _make_no_line_error(f"two constraints are at one place of {name}")
    arguments = {each.number: each.constraint.argument for each in wanted}
    new = compile(_CallInserter(nodes, arguments).visit(tree), file, "exec", dont_inherit=True)
    return nodes, tuple((a, b) for a, b in zip(_list_codes(old), _list_codes(new), strict=True) if a != b)


def _make_no_line_error(why: str) -> DoesNotApplyError:
    """The error for a place without an expression that can be wrapped."""
    return DoesNotApplyError("no line was found for the constraint", why=why)


@contextmanager
def _wrap_expressions(files: Sequence[_UserFile], wrappers: Sequence[Wrapper]) -> Iterator[None]:
    """Wraps expressions within the block, in every function that has them; the caller holds the lock of `isolate_call`.

    Args:
        files: The files with the expressions.
        wrappers: By the numbers of the expressions: each takes a value, and returns the function that makes the new
            one. That function is called by the user's code, so that its operations have the user's line.
    """
    before = [(found, function, function.__code__) for found in files for function in found.functions]
    setattr(builtins, _WRAPPERS, wrappers)
    hides = not gc.get_freeze_count()  # otherwise objects that the caller froze would thaw
    try:
        if hides:
            gc.freeze()  # so that functions made meanwhile are found among few objects
        for found, function, code in before:
            function.__code__ = next(new for old, new in found.codes if _is_same(code, old))
        yield
    finally:
        for _, function, code in before:
            function.__code__ = code
        codes = [pair for found in files for pair in found.codes]
        for function in _list_functions(*(new for _, new in codes)):  # made meanwhile; the user's caches may hold them
            function.__code__ = next((old for old, new in codes if new is function.__code__), function.__code__)
        if hides:
            gc.unfreeze()
        # for a frame of another thread, or a generator, that still has the new code
        setattr(builtins, _WRAPPERS, KEEPERS)


def _keep(value: Any) -> Callable[[], Any]:
    """The wrapper that changes nothing."""
    return lambda: value


class _Keepers:
    """Wrappers that change nothing, for any number."""

    def __getitem__(self, number: int) -> Wrapper:
        return _keep


KEEPERS = _Keepers()
"""The table of wrappers while nothing is wrapped."""


def _choose_node(tree: ast.Module, wanted: _Wanted, name: str) -> _Node:
    """The expression at one of the places, or the function with the argument."""
    if wanted.entered is not None:
        return _find_function(tree, wanted.entered, name)
    spans = wanted.spans
    places = {
        span: node
        for node in ast.walk(tree)
        if isinstance(node, ast.expr | ast.AugAssign) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
        for span in (_find_span(node), _find_method_span(node))
        if span in spans
    }
    chosen = list({id(node): node for node in places.values()}.values())
    if not chosen:
        raise _make_no_line_error(f"{name} has no expression where the operation was traced")
    if len(chosen) > 1:
        listed = " and ".join(shorten(text, _MOST_CHARS) for text in sorted(map(ast.unparse, chosen), key=len))
        raise _make_no_line_error(f"several expressions begin at {name}:{chosen[0].lineno}: {listed}")
    (node,) = chosen
    if wanted.constraint.keyword is not None:
        return _find_spec(tree, node, wanted, name)
    if wanted.constraint.requested is not None:
        return _find_requested(node, name)
    if wanted.constraint.operand is not None:
        operands = [each for each in _list_operands(node) if each.id == wanted.constraint.operand]
        if len(operands) != 1:
            raise _make_no_line_error(f"{name}:{node.lineno} has not one argument {wanted.constraint.operand}")
        return operands[0]
    if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
        raise _make_no_line_error(f"{name}:{node.lineno} changes a value in place: {ast.unparse(node)}")
    return node


def _list_operands(node: _Node) -> list[ast.Name]:
    """The variables among the arguments of a call."""
    return [each for each in node.args if isinstance(each, ast.Name)] if isinstance(node, ast.Call) else []


def _find_requested(node: _Expression, name: str) -> ast.expr:
    """The sharding that a call requests: its `out_sharding`, or the second argument of a `reshard`."""
    if isinstance(node, ast.Call):
        found = [keyword.value for keyword in node.keywords if keyword.arg == _OUT_SHARDING]
        if ast.unparse(node.func).rpartition(".")[2] == _RESHARD:
            found += node.args[1:2]
        if found:
            return found[0]
    raise _make_no_line_error(f"{name}:{node.lineno} requests no sharding")


def _find_spec(tree: ast.Module, node: _Expression, wanted: _Wanted, name: str) -> ast.expr:
    """The spec of an argument or result of a `shard_map` that is called there; one for all belongs to the last.

    It may be made elsewhere in the file, as in a function that returns it: by the one `shard_map` of its function.
    """
    constraint, function = wanted.constraint, node.func if isinstance(node, ast.Call) else node
    holders = _find_definition(tree, function.id, node.lineno) if isinstance(function, ast.Name) else [function]
    found = _list_keywords(holders, constraint.keyword) or _list_keywords(
        [call for call in ast.walk(tree) if isinstance(call, ast.Call) and _maps(call, wanted.mapped)],
        constraint.keyword,
    )
    specs = list(_list_specs(found[0])) if len(found) == 1 else []
    if not -len(specs) <= constraint.leaf < len(specs):
        of = f"{constraint.keyword} for one of its arrays"
        raise _make_no_line_error(f"{name}:{node.lineno} calls no shard_map with a literal of its own in {of}")
    return specs[constraint.leaf]


def _list_keywords(holders: Iterable[ast.AST], keyword: str | None) -> list[ast.expr]:
    """The values of a keyword in all calls within some expressions, each once."""
    calls = (call for holder in holders for call in ast.walk(holder) if isinstance(call, ast.Call))
    values = (each.value for call in calls for each in call.keywords if each.arg == keyword)
    return list({id(value): value for value in values}.values())


def _maps(call: ast.Call, names: Set[str]) -> bool:
    """Returns whether a call is a `shard_map` of one of some functions."""
    is_map = ast.unparse(call.func).rpartition(".")[2] == "shard_map"
    mapped = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "f")]
    return is_map and any(_is_named(each, names) for value in mapped for each in ast.walk(value))


def _is_named(node: ast.AST, names: Set[str]) -> bool:
    if isinstance(node, ast.Lambda):
        return "<lambda>" in names
    return getattr(node, "id", getattr(node, "attr", None)) in names


def _find_definition(tree: ast.Module, name: str, line: int) -> list[ast.expr]:
    """The expressions that make a function of a name, last before a line: decorators, or the value assigned to it."""
    found: dict[int, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            found[node.lineno] = node.decorator_list
        elif isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            found[node.lineno] = [node.value]
    return found.get(max((each for each in found if each <= line), default=0), [])


def _list_specs(node: ast.expr) -> Iterator[ast.expr]:
    """The specs in a tuple of them, or in `(spec,) * 3`."""
    if isinstance(node, ast.Tuple | ast.List):
        for each in node.elts:
            yield from _list_specs(each)
    elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Tuple):
        yield from _list_specs(node.left)
    else:
        yield node


def _find_function(tree: ast.Module, code: CodeType, name: str) -> ast.FunctionDef:
    """The function that has some code, whose first line is that of its first decorator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min((each.lineno for each in node.decorator_list), default=node.lineno)
            if first == code.co_firstlineno:
                return node
    raise _make_no_line_error(f"{name} has no function {code.co_name} where it was defined")


def _find_span(node: _Expression) -> _CodeSpan:
    return _CodeSpan(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0)


def _find_method_span(node: _Expression) -> _CodeSpan | None:
    """The place that Python gives to the call of a method on a line of its own: from the method's name on."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    name = _find_span(node.func)
    return _find_span(node)._replace(line=name.end_line, column=name.end_column - len(node.func.attr))


class _CallInserter(ast.NodeTransformer):
    """Replaces expressions by `wrap[number](expression)()`, at the same place.

    Args:
        nodes: The expressions, by number.
        arguments: The arguments that a function is to begin with, by number.
    """

    def __init__(self, nodes: Mapping[int, _Node], arguments: Mapping[int, str | None]) -> None:
        self._numbers = {id(node): number for number, node in nodes.items()}
        self._arguments = arguments

    def visit(self, node: ast.AST) -> Any:
        number = self._numbers.get(id(node))
        if number is None:
            return self.generic_visit(node)
        if isinstance(node, ast.FunctionDef):
            self._enter(node, number)
            return self.generic_visit(node)
        if isinstance(node, ast.AugAssign):
            self.generic_visit(node)
            value = self._wrap(ast.copy_location(_spell_out(node), node), number)
            return ast.copy_location(ast.Assign(targets=[node.target], value=value), node)
        return self._wrap(self.generic_visit(node), number)

    def _enter(self, node: ast.FunctionDef, number: int) -> None:
        """Puts `x = wrap[number](x)()` before the first line of a function that is not its docstring."""
        at = _find_entry(node)
        place, name = node.body[at], self._arguments[number]
        assert name is not None
        value = self._wrap(ast.copy_location(ast.Name(name, ast.Load()), place), number)
        target = ast.copy_location(ast.Name(name, ast.Store()), place)
        node.body.insert(at, ast.copy_location(ast.Assign(targets=[target], value=value), place))

    @staticmethod
    def _wrap(value: Any, number: int) -> Any:
        made: Any = ast.parse(f"{_WRAPPERS}[{number}]()()", mode="eval").body
        for node in ast.walk(made):
            ast.copy_location(node, value)
        made.func.args.append(value)
        return made


def _find_entry(node: ast.FunctionDef) -> int:
    """The position of a function's first statement that is not its docstring."""
    return 1 if ast.get_docstring(node) is not None and len(node.body) > 1 else 0


def _spell_out(node: ast.AugAssign) -> ast.BinOp:
    """The sum of `x += y`."""
    assert isinstance(node.target, ast.Name)
    left = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
    return ast.BinOp(left=left, op=node.op, right=node.value)


def _list_codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a file and of all functions in it, in order."""
    yield code
    for held in code.co_consts:
        if isinstance(held, CodeType):
            yield from _list_codes(held)


def _list_functions(*held: object) -> list[FunctionType]:
    """All functions that refer to one of these objects, such as their code; the collector lists no others."""
    return [function for function in gc.get_referrers(*held) if type(function) is FunctionType]


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Returns whether two pieces of code do the same at the same place."""
    return (
        code == other
        and code.co_qualname == other.co_qualname
        and list(code.co_positions()) == list(other.co_positions())
    )


def _strip(lines: str) -> str:
    """Lines without the indentation of the first, and without the end of the last."""
    indentation = len(lines) - len(lines.lstrip())
    return "\n".join(line.removeprefix(lines[:indentation]) for line in lines.rstrip().splitlines())


# ---- the constraint: its operation in the program, its effect while JAX traces, and its text


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenLine:
    """A line of the source with a constraint.

    Attributes:
        before: The line as it is in the file; several if the expression has several.
        after: The line as the user would write it.
        entered: The function whose first line it would be; None if it replaces the line before.
        edit: The change of the file; None if the new line has no place of its own, in a function of one line.
        imports: The imports that the line needs and the file lacks.
        needs_mesh: Whether the line works only where a mesh is current, as under `jax.set_mesh`, and the program itself
            does not see to that.
        shapes: The shapes of the constrained values, as they are in the line, each once. A line that is used in several
            places constrains them all.
    """

    before: str
    after: str
    entered: str | None
    edit: SourceEdit | None
    imports: tuple[str, ...]
    needs_mesh: bool
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenProgram:
    """A program with constraints in lines of its source.

    Attributes:
        lowered: The program, to be compiled like any other.
        lines: The lines, in the order of the constraints.
    """

    lowered: Lowered
    lines: tuple[RewrittenLine, ...]


def lower_with_constraints(
    function: Function,
    original: Lowered,
    constraints: Sequence[WrittenConstraint],
    change: Resharding | None = None,
    *,
    store: Store | None = None,
) -> RewrittenProgram:
    """Traces and lowers a program as if the user had written constraints around expressions of the source.

    The program is traced as for `lower`, in the surroundings of the first trace. For that long, the functions with
    these lines have other code; files are not changed, and no module is executed. With explicit axes such a line is a
    `jax.sharding.reshard`.

    The caller holds the lock of `isolate_call`, as within `with_function`.

    Args:
        function: The user's function, as for `lower`.
        original: Its original lowering.
        constraints: The constraints.
        change: A change of its arguments, results and constraints besides.
        store: As for `lower`.

    Raises:
        DoesNotApplyError: There is no one line for a constraint, or it cannot be written there.
        TraceError: JAX refuses the program with the constraints, in JAX's words with the user's line.
        HloscopeError: The program cannot be traced again.
    """
    if is_traced_already(function):
        raise _make_no_line_error("JAX traced the program before hloscope saw it, so that its source is not run again")
    files = _open_files(function, original, constraints)
    wrappers = [
        (Constrainer if constraint.requested is None else Turner)(constraint, original) for constraint in constraints
    ]
    with _wrap_expressions(files, wrappers):
        lowered = lower_changed(function, original, change, store=store)
    for wrapper in wrappers:
        if wrapper.problem is not None:  # the user's code may have caught it
            raise wrapper.problem
    lines: dict[int, RewrittenLine] = {}
    for found in files:
        for numbers in _group_by_line(found):
            lines.update(_write_lines(found, {number: wrappers[number] for number in numbers}))
    return RewrittenProgram(lowered=lowered, lines=tuple(lines[number] for number in range(len(constraints))))


def list_written_requests(original: Lowered, constraints: Sequence[WrittenConstraint]) -> list[WrittenConstraint]:
    """The first constraint for each request that is written as `out_sharding=`, as a `reshard` or as a spec."""
    found = dict[int, WrittenConstraint]()
    for constraint, node in _choose_nodes(original, constraints):
        found.setdefault(id(node), constraint)  # operations of the gradient have the place of the operation itself
    return list(found.values())


def list_used_variables(original: Lowered, constraint: WrittenConstraint) -> list[str]:
    """The variables among the arguments of the call at a constraint's place, each once."""
    nodes = (node for _, node in _choose_nodes(original, [constraint]))
    return list(dict.fromkeys(each.id for node in nodes for each in _list_operands(node)))


def _choose_nodes(
    original: Lowered, constraints: Sequence[WrittenConstraint]
) -> Iterator[tuple[WrittenConstraint, _Node]]:
    """The expressions of the constraints that have one."""
    trees = dict[str, ast.Module]()
    for number, constraint in enumerate(constraints):
        file = constraint.file
        try:
            wanted = _want(original, number, constraint)
            if file not in trees:
                trees[file] = ast.parse("".join(linecache.getlines(file)))
            yield constraint, _choose_node(trees[file], wanted, format_path(file))
        except (DoesNotApplyError, SyntaxError, ValueError):
            continue


def _open_files(function: Function, original: Lowered, constraints: Sequence[WrittenConstraint]) -> list[_UserFile]:
    """The files with the expressions of constraints."""
    wanted: dict[str, list[_Wanted]] = {}
    for number, constraint in enumerate(constraints):
        if constraint.argument is None:
            wanted.setdefault(constraint.file, []).append(_want(original, number, constraint))
            continue
        code = _find_entered_code(function, constraint.argument)
        wanted.setdefault(code.co_filename, []).append(_Wanted(number, constraint, frozenset(), code))
    return [_open_file(file, of_file) for file, of_file in wanted.items()]


def _find_entered_code(function: Function, argument: str) -> CodeType:
    """The code of the function that has an argument of a name."""
    itself = inspect.unwrap(function)
    while isinstance(itself, partial):
        itself = inspect.unwrap(itself.func)
    code: CodeType | None = getattr(itself, "__code__", None)
    if code is None or is_library(code.co_filename):
        raise _make_no_line_error("the program is not a function of a file of the user's")
    if argument not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        raise _make_no_line_error(f"{code.co_name} has no argument {argument}")
    return code


def _group_by_line(found: _UserFile) -> Iterator[list[int]]:
    """The numbers of the expressions of a file, those in one line together.

    Raises:
        DoesNotApplyError: Two that share a line are within each other.
    """
    spans = sorted((_find_span(node), number) for number, node in found.nodes.items() if isinstance(node, _Expression))
    group: list[int] = []
    for at, (span, number) in enumerate(spans):
        before = spans[at - 1][0] if at else None
        if before is not None and span.line <= before.end_line:
            if span[:2] < before[2:]:
                raise _make_no_line_error(
                    f"a constraint is within another one at {format_path(found.file)}:{span.line}"
                )
        elif group:
            yield group
            group = []
        group.append(number)
    yield from ([group] if group else [])
    yield from ([number] for number, node in found.nodes.items() if isinstance(node, ast.FunctionDef))


def _write_lines(found: _UserFile, wrappers: Mapping[int, Constrainer]) -> Iterator[tuple[int, RewrittenLine]]:
    """The line of each of some constraints, which is one for all expressions in it."""
    writer, calls = LineWriter((code for code, _ in found.codes), found.functions[0].__globals__), []
    before, after, entered, edit = "", "", None, None
    for number, wrapper in wrappers.items():
        node = found.nodes[number]
        if not wrapper.shapes:
            place = f"{format_path(found.file)}:{node.lineno}"
            raise _make_no_line_error(f"{place} was not reached when the program was traced again")
        opened, closed = writer.write(wrapper.constraint, is_explicit=wrapper.is_explicit)
        is_instead = wrapper.constraint.requested is not None
        if isinstance(node, ast.FunctionDef):
            name = wrapper.constraint.argument
            after, entered = f"{name} = {opened}{name}{closed}", node.name
            edit = _write_first_line(found, node, after)
        else:
            opened = writer.write_spec(wrapper.constraint) if is_instead else opened
            calls.append(_Call(node, opened, closed, is_instead))
    if calls:
        edit = _write_calls(found, calls)
        before, after = _strip(edit.before), _strip(edit.after)
    for number, wrapper in wrappers.items():
        yield (
            number,
            RewrittenLine(
                before=before,
                after=after,
                entered=entered,
                edit=edit,
                imports=tuple(writer.imports),
                needs_mesh=wrapper.needs_mesh,
                shapes=tuple(dict.fromkeys(wrapper.shapes)),
            ),
        )


def _want(original: Lowered, number: int, constraint: WrittenConstraint) -> _Wanted:
    """A constraint with the places of its expression."""
    spans, mapped = _list_spans(original, constraint), frozenset[str]()
    if constraint.keyword is not None:
        maps = [
            eqn for eqn in walk_equations(open_jaxpr(find_jaxpr(original.traced))) if _is_operation(eqn, constraint)
        ]
        here = (eqn for eqn in maps if spans.intersection(jax_private.find_code_positions(eqn, constraint.file)))
        mapped = frozenset(map(jax_private.find_mapped_name, here))
    return _Wanted(number, constraint, spans, mapped=mapped)


def _list_spans(original: Lowered, constraint: WrittenConstraint) -> frozenset[_CodeSpan]:
    """The places of the expression of a constraint."""
    if is_library(constraint.file):
        raise _make_no_line_error(f"{format_path(constraint.file)} is not the user's own, but a library's")
    jaxpr = find_jaxpr(original.traced)
    if jaxpr is None:
        raise _make_no_line_error("the operations of the program's trace are unknown")
    spans = set(_find_spans(open_jaxpr(jaxpr), constraint))
    if not spans and constraint.shape is not None:  # lowering gives some operations another name, or makes them
        spans = set(_find_spans(open_jaxpr(jaxpr), replace(constraint, primitive=None)))
    if not spans:
        place = f"{format_path(constraint.file)}:{constraint.line}"
        raise _make_no_line_error(f"no such operation of the program was traced at {place}")
    return frozenset(spans)


def _find_spans(
    jaxpr: Any, constraint: WrittenConstraint, around: frozenset[_CodeSpan] = frozenset()
) -> Iterator[_CodeSpan]:
    """The expressions at the place of a constraint that make its operation.

    Args:
        jaxpr: The program.
        constraint: The constraint.
        around: The expressions there that make the operation around the program: JAX traces a jitted function once for
            several calls, and records the first of them.
    """
    for eqn in jaxpr.eqns:
        found = map(_CodeSpan._make, jax_private.find_code_positions(eqn, constraint.file))
        spans = around.union(span for span in found if _is_at_place(span, constraint))
        if _is_operation(eqn, constraint):
            yield from spans
        for inner in find_inner_jaxprs(eqn):
            yield from _find_spans(inner, constraint, spans)


def _is_at_place(span: _CodeSpan, constraint: WrittenConstraint) -> bool:
    begins = span.line == constraint.line and constraint.column in (None, span.column)
    return begins and constraint.end in (None, (span.end_line, span.end_column))


_REQUESTS = (_OUT_SHARDING, "dst_sharding")
"""The parameters of operations that hold what their calls request."""


def _is_operation(eqn: Any, constraint: WrittenConstraint) -> bool:
    shapes = [getattr(result.aval, "shape", None) for result in eqn.outvars]
    names = _REQUESTS if constraint.keyword is None else (constraint.keyword,)
    if constraint.requested is not None and not any(eqn.params.get(name) is not None for name in names):
        return False
    return constraint.primitive in (None, eqn.primitive.name) and (
        constraint.shape is None or constraint.shape in shapes
    )
