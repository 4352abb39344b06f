"""The wrapper of public functions: messages in Python's notation, and short tracebacks.

Rooms below write options as the command line has them, `--mesh X=4`, and the command line prints them so; in Python
the same message says `mesh={"X": 4}`. An error ends a short traceback: hloscope's own frames, and the exceptions that
it was made from, are left out, unless `HLOSCOPE_TRACEBACK=full` is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from hloscope.calls import check_call
from hloscope.errors import FULL, HloscopeError
from hloscope.given import ADDRESS, seconds

P = ParamSpec("P")
T = TypeVar("T")

_PLACEHOLDER = r"[A-Z][A-Z_]+\b|N\b"


class _Word(NamedTuple):
    """What an option of the command line is in Python.

    Attributes:
        name: The keyword, or what else takes its place.
        value: What its value looks like, as a regular expression; empty where it is not said with one.
        made: From that to the value in Python.
    """

    name: str
    value: str = ""
    made: Callable[[str], str] = str


def _quoted(text: str) -> str:
    return '"' + text.strip("'\"") + '"'


def _named(text: str) -> str:
    return text if text.isdigit() else _quoted(text)


def _listed(text: str) -> str:
    return f"[{_quoted(text)}]"


def _table(text: str) -> str:
    pairs = (pair.partition("=")[::2] for pair in text.strip("'").split(","))
    return "{" + ", ".join(f'"{name}": {_value(value)}' for name, value in pairs) + "}"


def _value(text: str) -> str:
    low, colon, high = text.partition(":")
    return f"({low}, {high})" if colon else text


def _one(text: str) -> str:
    """A table of one name, whose value is everything after it."""
    name, _, value = text.partition("=")
    made = f"({', '.join(value.split(','))})" if "," in value else value
    return f'{{"{name}": {made}}}'


def _argument(text: str) -> str:
    return f'("{text[1:-1]}",)' if text.startswith("'") else f"({text[1:-1]},)"


def _seconds(text: str) -> str:
    return text if text.isupper() else f"{seconds('', text, example=''):g}"


_SIZES = r"\w+=\w+(?:,\w+=\w+)*"
_NAME = rf"[a-z][\w.-]*|{_PLACEHOLDER}"
_WORD = r"'[^']*'|[\w./-]+"
_COUNT = rf"\d+\b|{_PLACEHOLDER}"

_WORDS: dict[str, tuple[_Word, ...]] = {
    "mesh": (_Word("mesh", _SIZES, _table),),
    "slice": (_Word("slice", rf"(?=\S*[:\d])[\w*:-]*[\w]|{_PLACEHOLDER}", _quoted),),
    "arg": (
        _Word("kwargs", r"\w+='[^']*'", lambda text: _one(text.replace("'", '"'))),
        _Word("args", r"'[^']*'|\"[^\"]*\"", _argument),
    ),
    "out": (_Word("out"),),
    "static": (_Word("static", r"\w+=\w+", _table),),
    "donate": (
        _Word("donate", r"\d+(?:,\d+)*", lambda text: f"({', '.join(text.split(','))})" if "," in text else text),
    ),
    "dim": (_Word("dims", _SIZES, _table),),
    "axis-types": (_Word("axis_types", rf"(?:auto|explicit|manual)\b|{_SIZES}", _quoted),),
    "dcn": (_Word("dcn", _SIZES, _table),),
    "platform": (_Word("platform", r"(?:tpu|cpu)\b", _quoted),),
    "processes": (_Word("processes", _COUNT),),
    "compiler-option": (_Word("compiler_options", r"\w+=\w+", _table),),
    "chip-override": (_Word("chip_overrides", r"[\w.]+=[\w.+-]*\w", _listed),),
    "chip-file": (_Word("chip_overrides", _PLACEHOLDER, _listed),),
    "timeout": (_Word("timeout_s", rf"\d\w*|{_PLACEHOLDER}", _seconds),),
    "kernel-cost": (_Word("kernel_costs", r"[^\s=,]+=\w+,\w+", _one),),
    "source-root": (_Word("source_root", _PLACEHOLDER, _quoted),),
    "select": (_Word("select", _NAME, _listed),),
    "ignore": (_Word("ignore", _NAME, _listed),),
    "allow": (_Word("allow", r"'[^']*'", _listed),),
    "rule-option": (_Word("rule_options", r"[\w.-]+=\w+", _one),),
    "fail-on": (_Word("fail_on", r"(?:note|warning|error|increase|any)\b", _quoted),),
    "accept-in-ci": (_Word("in_ci=True"),),
    "beside": (_Word("beside=True"),),
    "at-least-ok": (_Word("at_least_ok=True"),),
    "group-by": (_Word("group_by", r"(?:module|axis|line|kind)\b", _quoted),),
    "all": (_Word("everything=True"),),
    "only": (_Word("only", _WORD, _quoted),),
    "memory": (_Word("memory", r"\d[\w.]*", _quoted),),
    "jobs": (_Word("jobs", _COUNT),),
    "save-hlo": (_Word("save_hlo", _PLACEHOLDER, _quoted),),
    "free": (_Word("free", r"(?!lets\b)(?:'[^']*'|[\w*]+)", _quoted),),
    "fix-mesh": (_Word("fix_mesh=True"),),
    "candidates": (_Word("candidates", _COUNT),),
    "budget": (_Word("budget_s", rf"\d+[smh]?\b|{_PLACEHOLDER}", _seconds),),
    "executor": (_Word("executor", r"\w+://[\w.:]+", _quoted),),
    "try": (_Word("try_s", rf"\d+[smh]?\b|{_PLACEHOLDER}", _seconds),),
    "no-try": (_Word("trials=False"),),
    "reference": (_Word("reference"),),
    "scale": (_Word("scale", _SIZES, _table),),
    "range": (_Word("ranges", r"\w+=-?[\w.]*\w:-?[\w.]*\w", _table),),
    "seed": (_Word("seed", _COUNT),),
    "grad": (_Word("grad=True"),),
    "against-single-device": (_Word("against_single_device=True"),),
    "on": (_Word("on", r"(?:auto|cpu|tpu|gpu)\b", _quoted),),
    "rtol": (_Word("rtol", r"\d[\w.-]*"),),
    "atol": (_Word("atol", r"\d[\w.-]*"),),
    "strict": (_Word("strict=True"),),
    "base": (_Word("base", _WORD, _quoted),),
    "equivalent": (_Word("equivalent=True"),),
    "config": (_Word("config", _PLACEHOLDER, _quoted),),
    "no-cache": (_Word("cached=False"),),
    "top": (_Word("top", _COUNT),),
    "run-below": (_Word("run_below_bytes", _PLACEHOLDER),),
    "run": (_Word("run=True"),),
    "stop-after": (_Word("stop_after", _COUNT),),
    "allow-writes": (_Word("allow_writes=True"),),
    "save": (_Word("save", _PLACEHOLDER, _quoted),),
    "format": (_Word("report", r"(?:text|json|markdown|github|sarif|junit|dot|graphml|svg)\b", _quoted),),
    "computation": (_Word("computation", _WORD, _quoted),),
    "around": (_Word("around", _WORD, _quoted),),
    "hops": (_Word("hops", _COUNT),),
    "write": (_Word("write"),),
    "profile": (_Word("profile"),),
    "keep": (_Word("keep"),),
    "runs": (_Word("runs", _COUNT),),
    "debug": (_Word(f"HLOSCOPE_TRACEBACK={FULL}"),),
    "test": (_Word("hloscope.rules.failed_cases()"),),
}
"""By the flag, without its dashes: the first of which the value is said that way; else the name alone."""

_COMMANDS = "analyze|record|price|timeline|explain|shardings|verify|check|diff|compare|measure|accept|doctor|rules"
_SENTENCES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"hloscope analyze --format json -o FILE", "json.dump(found.to_dict(), file)"),
    (r"hloscope analyze (\S+) --only (\S+)", r'hloscope.analyze("\1", only="\2")'),
    (r"hloscope analyze step\.hlo", 'hloscope.analyze("step.hlo")'),
    (r"hloscope check --jobs (\d+)", r"hloscope.check(jobs=\1)"),
    (
        r"hloscope explain TARGET (\S+?)(?=[,;.]?(?:\s|$))",
        lambda found: f"hloscope.explain(…, collective={_named(found[1])})",
    ),
    (r"write it after --: hloscope record -- train\.py --steps 100", 'write hloscope.record("train.py")'),
    (r"hloscope record --only (\S+) …", r'hloscope.record(…, only="\1")'),
    (
        r"name one of them, give its number in the list of hloscope analyze, or a selector, (\S+)",
        r'write collective="NAME" with one of them, its number in the report, or a selector: collective="\1"',
    ),
    (
        r"name a module as Python imports it, or a file: path/to/file\.py:fn",
        'pass the function itself, or name it as "module:fn" or "path/to/file.py:fn"',
    ),
    (r"hloscope rules --test", "hloscope.rules.failed_cases()"),
    (r"hloscope rules RULE", "hloscope.rules.page(RULE)"),
    (r"hloscope rules(?! [A-Z])", "hloscope.rules.pages()"),
    (
        r"hloscope accept (\S+) --only ('[^']*'|[^\s,;]+)",
        lambda found: f"hloscope.accept({_quoted(found[1])}, only=[{_quoted(found[2].strip(chr(39)))}])",
    ),
    (r"hloscope accept (\S+) --beside", r'hloscope.accept("\1", beside=True)'),
    (r"hloscope explain \S+ looks", "hloscope.explain looks"),
    (
        r"hloscope accept(?: (?!to |rewrites )([\w@:.*-]+))?",
        lambda found: f"hloscope.accept({_quoted(found[1]) if found[1] else ''})",
    ),
    (r"hloscope merge-reports", "hloscope.merge_reports"),
    (rf"hloscope ({_COMMANDS}) --debug", rf"hloscope.\1 with HLOSCOPE_TRACEBACK={FULL}"),
    (rf"hloscope ({_COMMANDS})\b", r"hloscope.\1"),
    (r"all of them with --format json", "all of them in to_dict()"),
    (r"alone, with --only(?! )", 'alone, with only="NAME"'),
    (r"--all analyses every one", "hloscope.analyze_all every one"),
)
"""Commands of the command line, and what is said otherwise in Python."""
_MARKS = ("--", "hloscope ", "name a module")
"""What a text has in which anything is to be said otherwise."""
_FLAG = re.compile(rf"(?<![\w-])--({'|'.join(sorted(_WORDS, key=len, reverse=True))})(?![\w-])")


def without_options(text: str) -> str:
    """A message with keywords in place of options of the command line."""
    if not any(mark in text for mark in _MARKS):
        return text
    for sentence, words in _SENTENCES:
        text = re.sub(rf"(?<![\w.-]){sentence}", words, text)
    found, end = [], 0
    for flag in _FLAG.finditer(text):
        if flag.start() < end:
            continue
        word, length = _said(_WORDS[flag[1]], text[flag.end() :])
        found += [text[end : flag.start()], word]
        end = flag.end() + length
    return "".join([*found, text[end:]])


def _said(words: tuple[_Word, ...], rest: str) -> tuple[str, int]:
    """An option with its value, as Python writes it, and the length of the value in the text behind its flag."""
    for word in words:
        said = re.match(rf"[ =](?P<value>{word.value})", rest) if word.value else None
        if said is not None:
            return f"{word.name}={word.made(said['value'])}", said.end()
    return words[-1].name, 0


# ---- what a call returns


_OF_FINDINGS = {"message", "why", "cost", "fix", "summary", "sections"}
_TEXTS = {*_OF_FINDINGS, "notes", "error", "problem", "found", "said", "not_tried", "became"}
"""Fields of results that hold hloscope's own words; in others the user's own may stand."""
_LEFT_AS_THEY_ARE = {"collectives", "arguments", "outputs", "intermediates", "command", "config"}
"""Fields in which none of them is, and which may be long."""


def in_python_words(result: T) -> T:
    """A result whose sentences say what to write in Python."""
    return _worded(result, is_text=False)  # type: ignore[no-any-return]


def _worded(value: Any, *, is_text: bool) -> Any:
    if isinstance(value, str):
        return without_options(value) if is_text and type(value) is str else value
    if isinstance(value, HloscopeError):
        return _in_words(value)
    if isinstance(value, tuple):
        made = [_worded(each, is_text=is_text) for each in value]
        same = all(new is old for new, old in zip(made, value, strict=True))
        return value if same else _like(value, made)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for each in fields(value):
        if each.init and each.name not in _LEFT_AS_THEY_ARE:
            old = getattr(value, each.name)
            new = _worded(old, is_text=each.name in _TEXTS)
            if new is not old:
                changed[each.name] = new
    return _changed(value, changed) if changed else value


def _changed(value: Any, changes: dict[str, Any]) -> Any:
    """With some fields changed, and what it was made of still known, where it remembers that."""
    made = replace(value, **changes)
    return value._remembered_by(made) if hasattr(value, "_remembered_by") else made


def _like(value: tuple[Any, ...], members: list[Any]) -> Any:
    """A tuple of the same type, with the attributes that such a type has beside its members."""
    made = tuple.__new__(type(value), members)
    vars(made).update(vars(value)) if hasattr(value, "__dict__") else None
    return made


# ---- how a call fails


def front_door(call: Callable[P, T]) -> Callable[P, T]:
    """Has a public function speak Python: its errors, and the sentences of what it returns.

    A call that does not fit its signature is refused before it begins.
    """

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            check_call(call, args, kwargs)
            return in_python_words(call(*args, **kwargs))
        except (HloscopeError, KeyboardInterrupt) as error:
            failed = _in_words(error)
            if os.environ.get("HLOSCOPE_TRACEBACK") == FULL:
                raise
        raise _short(failed) from None

    return called


def awaited(call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The same of a coroutine that awaits a public function."""

    @wraps(call)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return await call(*args, **kwargs)
        except HloscopeError as error:
            failed = error
            if os.environ.get("HLOSCOPE_TRACEBACK") == FULL:
                raise
        raise _short(failed) from None

    return called


def _short(error: BaseException) -> BaseException:
    """An error without the frames that it passed, what it was made from, and JAX's word on frames that it left out."""
    error.__context__ = None
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if "JAX has removed its internal frames" not in note]
    return error.with_traceback(None)


def _in_words(error: Any) -> Any:
    if isinstance(error, HloscopeError):
        error.heading = ""
        for name in ("what", "why", "fix"):
            said = getattr(error, name)
            setattr(error, name, said and ADDRESS.sub("", without_options(said)))
        error.args = (str(error), *error.args[1:])
    return error
