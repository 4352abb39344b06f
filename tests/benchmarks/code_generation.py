"""What libtpu's code generation writes into a program, taken over from other programs that have the same instructions.

Between the optimizer and the final text nothing changes but the `backend_config` of instructions that are lowered one
by one: their windows with the cycles that these are estimated to take, and the algorithms of collectives. An
instruction is the same where its opcode, shapes, layouts, memories, attributes and all that it calls are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

_HEAD = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^  (?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_OPCODE = re.compile(r" (?P<opcode>[a-z][\w\-]*)\(")
_METADATA = re.compile(r", metadata=\{(?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*\}")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?(?P<name>[\w.\-]+)")
_REFERENCE = re.compile(r"%(?P<name>[\w.\-]+)")
_NUMBERS = re.compile(
    r', channel_id=\d+|"barrier_config":\{[^{}]*\},?|"async_collective_fusion_config":\{[^{}]*\},?'
    r'|"aliasing_operands":\{"lists":\[[^]]*(?:\]\}[^]]*)*\]\},?|/\*index=\d+\*/'
)
_CONFIG = ", backend_config="
_WRAPPED = re.compile(
    r"^%(?P<name>async_computation[\w.]*) \([^\n]*\{\n(?:  %[^\n]* parameter\(\d+\)[^\n]*\n)+"
    r"  ROOT %[\w.\-]+ = [^\n]*? (?P<opcode>[a-z][a-z\-]*)\([^()]*\)(?P<rest>[^\n]*)\n\}\n\n?",
    re.MULTILINE,
)
_STARTED = re.compile(
    r"^(?P<before> +%(?P<name>[\w.\-]+) = .* )async-start\((?P<operands>[^()]*)\), calls=%(?P<called>[\w.]+)$",
    re.MULTILINE,
)
_DONE = re.compile(r"^(?P<before> +(?:ROOT )?%[\w.\-]+ = .* )async-done\((?=%(?P<name>[\w.\-]+)\))", re.MULTILINE)
_UNLOWERED = frozenset({"parameter", "tuple", "get-tuple-element", "bitcast", "constant", "partition-id", "after-all"})


def without_numbers(text: str) -> str:
    """An instruction, or its configuration, without the numbers that it has in one program alone."""
    return _NUMBERS.sub("", text)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    rest: str

    @property
    def body(self) -> str:
        return self.rest.partition(_CONFIG)[0]

    @property
    def config(self) -> str:
        return self.rest.partition(_CONFIG)[2]

    @property
    def shape(self) -> str:
        found = _OPCODE.search(f" {self.rest}")
        return self.rest[: found.start()].strip() if found else self.rest

    @property
    def opcode(self) -> str:
        found = _OPCODE.search(f" {self.rest}")
        return found["opcode"] if found else ""


def plainly_started(text: str) -> str:
    """A text whose asynchronous operations are written as executables write them, `slice-start(%x), slice={…}`.

    The compiler's dumps have a computation for each that holds the operation alone: `async-start(%x), calls=%wrapped`.
    """
    held = {found["name"]: found for found in _WRAPPED.finditer(text)}
    started: dict[str, str] = {}

    def start(found: re.Match[str]) -> str:
        inner = held.get(found["called"])
        if inner is None:
            return found[0]
        started[found["name"]] = inner["opcode"]
        return f"{found['before']}{inner['opcode']}-start({found['operands']}){inner['rest'].partition(_CONFIG)[0]}"

    text = _STARTED.sub(start, text)
    text = _DONE.sub(
        lambda done: f"{done['before']}{started[done['name']]}-done(" if done["name"] in started else done[0], text
    )
    return _WRAPPED.sub(lambda found: found[0] if f"calls=%{found['name']}" in text else "", text)


class Module:
    """The text of a scheduled module, by its computations.

    Args:
        text: The text.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._computations: dict[str, list[_Line]] = {}
        current: list[_Line] | None = None
        for line in text.splitlines():
            head = _HEAD.match(line)
            if head is not None:
                current = self._computations.setdefault(head["name"], [])
            elif line == "}":
                current = None
            elif current is not None and (found := _INSTRUCTION.match(line)) is not None:
                current.append(_Line(found["name"], found["rest"]))
        self._digests: dict[str, str] = {}
        self._called = {
            called["name"]
            for lines in self._computations.values()
            for one in lines
            for called in _CALLED.finditer(one.rest)
        }

    def keys(self) -> dict[str, str]:
        """For each instruction that is lowered by itself, what it is, by its name."""
        return {
            line.name: hashlib.sha256(text.encode()).hexdigest()[:16]
            for name, lines in self._computations.items()
            if name not in self._called
            for line, text in zip(lines, self._written(lines), strict=True)
            if line.opcode not in _UNLOWERED
        }

    def configs(self) -> dict[str, str]:
        """The configuration of each of these instructions, by its name; empty where it has none."""
        wanted = self.keys()
        return {
            line.name: line.config
            for name, lines in self._computations.items()
            if name not in self._called
            for line in lines
            if line.name in wanted
        }

    def _written(self, lines: list[_Line]) -> Iterator[str]:
        """Each instruction with the shapes of its operands in place of their names, and all that it calls."""
        shapes = {line.name: line.shape for line in lines}
        for line in lines:
            yield self._plain(line, shapes.get)

    def _plain(self, line: _Line, operand: Callable[[str], str | None]) -> str:
        def referred(found: re.Match[str]) -> str:
            shown = operand(found["name"])
            return shown if shown is not None else self._digest(found["name"])

        return _REFERENCE.sub(referred, without_numbers(_METADATA.sub("", line.rest)))

    def _digest(self, name: str) -> str:
        """A computation, by the order of its instructions in place of their names."""
        if name not in self._digests:
            lines = self._computations.get(name, [])
            places = {line.name: f"{number}:{line.shape}" for number, line in enumerate(lines)}
            text = "\n".join(self._plain(line, places.get) for line in lines)
            self._digests[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._digests[name]

    def with_configs(self, configs: Mapping[str, str]) -> str:
        """The text with other configurations, by the names of instructions."""
        lines = []
        for line in self.text.splitlines():
            found = _INSTRUCTION.match(line)
            config = None if found is None else configs.get(found["name"])
            lines.append(line if config is None else line.partition(_CONFIG)[0] + (_CONFIG + config if config else ""))
        return "\n".join(lines) + "\n"
