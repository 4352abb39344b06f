"""Broken text of every kind: it ends in a module or in an HloParseError, soon, and both ways of reading agree.

A few hundred mutations run always. With `HLOSCOPE_CORPUS` naming a folder of texts and `HLOSCOPE_FUZZ` a number, that
many mutations of the corpus run as well.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator

import pytest
from hlo_printer import print_module
from hlo_texts import BARE, MODULE, corpus_files

from hloscope.base.errors import HloParseError
from hloscope.hlo import HloModule, parse_module
from hloscope.hlo.parser import parse_whole

SEED = 20_240
ALWAYS = 400
WANTED = int(os.environ.get("HLOSCOPE_FUZZ", "0"))
SECONDS_AT_MOST = 2.0
"""Of processor time, for one text of at most `LARGEST` characters; hundreds of times what it takes."""

LARGEST = 20_000
TOKEN = re.compile(r"""%?[\w.-]+|"(?:[^"\\]|\\.)*"|\s+|.""", re.DOTALL)
INSERTED = [
    *"{}[]()=,%\"'/*<>:#@\\ \n\r\t\0",
    *("/*", "*/", "//", "->", "<=", "ROOT ", "ENTRY ", "HloModule ", "\ufeff", "\ud800", "// -----\n", "9" * 40),
    *("metadata={", "backend_config={", "calls=", "f32[", "{1,0:T(8,128)"),
]


def mutated_characters(text: str, choose: random.Random) -> str:
    """One to four characters removed, doubled, replaced, or put in between."""
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        place = choose.randrange(len(text) + 1)
        length = choose.choice((0, 1, 1, 5, 60))
        text = text[:place] + choose.choice([*INSERTED, "", chr(choose.randrange(256))]) + text[place + length :]
    return text


def mutated_tokens(text: str, choose: random.Random) -> str:
    """One to four tokens removed, doubled, swapped or moved."""
    tokens = TOKEN.findall(text)
    for _ in range(choose.choice((1, 1, 1, 2, 4))):
        first, second = choose.randrange(len(tokens)), choose.randrange(len(tokens))
        how = choose.randrange(4)
        if how == 0 and len(tokens) > 1:
            del tokens[first]
        elif how == 1:
            tokens.insert(second, tokens[first])
        elif how == 2:
            tokens[first], tokens[second] = tokens[second], tokens[first]
        else:
            tokens[min(first, second) : max(first, second)] = tokens[min(first, second) : max(first, second)][:200] * 2
    return "".join(tokens)


def cut(text: str, choose: random.Random) -> str:
    return text[: choose.randrange(len(text) + 1)]


def mutations(texts: list[str], count: int) -> Iterator[tuple[int, str]]:
    """(number, text), the same on every run; one number makes its text alone."""
    return ((number, mutation(texts, number)) for number in range(count))


def mutation(texts: list[str], number: int) -> str:
    choose = random.Random(SEED + number)
    how = choose.choice((mutated_characters, mutated_characters, mutated_tokens, mutated_tokens, cut))
    return how(texts[number % len(texts)], choose)


def outcome(parse, text: str) -> tuple | str:
    """The module's shape in a few words, or the error; the time and what every property says are checked."""
    start = time.process_time()
    try:
        module = parse(text)
        found = read_everything(module)
    except HloParseError as error:
        found = str(error) if error.line >= 1 and error.column >= 1 else ()
    assert found != ()
    assert time.process_time() - start < SECONDS_AT_MOST
    return found


def read_everything(module: HloModule) -> tuple:
    """Asks every instruction for everything that is decoded late."""
    counted = []
    for computation in module.computations:
        for item in computation.instructions:
            properties = (item.shape, item.operand_names, dict(item.attributes), item.called, item.literal)
            late = (read_late(item, name) for name in ("replica_groups", "sharding", "metadata", "dimensions",
                    "source_target_pairs", "frontend_attributes", "backend_config", "parameter_number"))  # fmt: skip
            counted.append((item.name, item.opcode, item.is_root, *map(str, properties), *late))
    return module.name, module.truncated, tuple(item.name for item in module.computations), tuple(counted)


def read_late(instruction, name: str) -> str:
    try:
        return str(getattr(instruction, name))
    except HloParseError as error:
        return error.what


def place_or_facts(found: tuple | str) -> tuple | str:
    """The place of an error, whose words depend on the rule that was being read; else the facts."""
    return found.splitlines()[1] if isinstance(found, str) else found


def check(texts: list[str], count: int) -> dict[str, int]:
    """Runs mutations; says how many ended in which way."""
    ends = {"module": 0, "truncated": 0, "error": 0}
    for number, text in mutations(texts, count):
        try:
            found = outcome(parse_module, text)
            if number % 10 == 0:
                assert place_or_facts(found) == place_or_facts(outcome(parse_whole, text)) or "// -----" in text
        except Exception as error:
            raise AssertionError(f"mutation {number} ends in {error!r}:\n{text}") from error
        ends["error" if isinstance(found, str) else "truncated" if found[1] else "module"] += 1
        if number % 50 == 0 and not isinstance(found, str):
            parse_module(print_module(parse_module(text)))
    return ends


def test_mutations_of_two_texts():
    ends = check([MODULE, BARE], ALWAYS)
    assert sum(ends.values()) == ALWAYS
    assert min(ends.values()) > 10


@pytest.mark.skipif(not WANTED or not corpus_files(), reason="HLOSCOPE_FUZZ and HLOSCOPE_CORPUS ask for no more")
def test_mutations_of_the_corpus():
    texts = [path.read_bytes().decode("utf-8", "replace")[:LARGEST] for path in corpus_files()]
    ends = check([text for text in texts if text], WANTED)
    print(ends)
    assert sum(ends.values()) == WANTED
