"""The pages of the Python API: what is public, in groups. Sphinx reads signatures and docstrings from the objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import hloscope
from hloscope import aio, contracts, rules

Names = Mapping[str, object]


def public_names(module: ModuleType) -> Names:
    """The objects that a module offers, by name."""
    return {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}


def pages() -> Iterator[tuple[str, str]]:
    """The name and the text of each page."""
    names = public_names(hloscope)
    yield "index", _index()
    yield "functions", _page("Functions", "hloscope", _those(names, inspect.isroutine))
    yield "results", _page("Results", "hloscope", _those(names, _is_result))
    yield "errors", _page("Errors", "hloscope", _those(names, _is_error))
    yield "contracts", _page("hloscope.contracts", "hloscope.contracts", public_names(contracts), of=contracts)
    yield "rules", _page("hloscope.rules", "hloscope.rules", public_names(rules), of=rules)
    yield "aio", _page("hloscope.aio", "hloscope.aio", public_names(aio), of=aio)


def _is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _is_result(value: object) -> bool:
    return inspect.isclass(value) and not _is_error(value)


def _those(names: Names, kind: Callable[[object], bool]) -> Names:
    return {name: value for name, value in names.items() if kind(value)}


def _index() -> str:
    groups = ("functions", "results", "errors", "contracts", "rules", "aio")
    return "\n\n".join(
        [
            "# Python API",
            "The guide to it is [](../../python.md).",
            "```{eval-rst}\n.. automodule:: hloscope\n   :no-members:\n```",
            "\n".join(["```{toctree}", ":maxdepth: 1", "", *groups, "```"]),
        ]
    )


def _page(title: str, module: str, names: Names, *, of: ModuleType | None = None) -> str:
    lines = [] if of is None else [f".. automodule:: {module}", "   :no-members:", ""]
    for name, value in names.items():
        directive = "autofunction" if inspect.isroutine(value) else "autoexception" if _is_error(value) else "autoclass"
        lines += [f".. {directive}:: {module}.{name}"]
        lines += ["   :members:", "   :inherited-members: Exception"] if directive == "autoclass" else []
        lines += ["   :no-index:"] if of is not None and value in public_names(hloscope).values() else []
        lines += [""]
    body = "\n".join(lines).rstrip()
    return f"# {title}\n\n```{{eval-rst}}\n{body}\n```\n"
