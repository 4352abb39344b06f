"""The HLO language: the parser for the grammar, made on first use."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from hloscope.errors import HloscopeError
from hloscope.hlo.driver import Driver
from hloscope.hlo.expectations import describe
from hloscope.hlo.lexer import HloSyntaxError
from hloscope.hlo.reader import HloReader
from hloscope.hlo.records import ContradictionError
from hloscope.hlo.tables import UPPER_STARTS, tables


class Language:
    """The parser with its callbacks.

    Attributes:
        reader: The callbacks; its `progress` tells the computation that was open when a parse failed.
    """

    def __init__(self) -> None:
        self.reader = HloReader()
        made = tables()
        callbacks = {
            name: getattr(self.reader, name)
            for name in {rule.callback for rule in made.rules if not rule.origin.startswith("_")}
        }
        self._driver = Driver(made, callbacks)
        self.read = lru_cache(maxsize=1 << 16)(self._parse)
        self.reader.read = self.read

    def parse(self, start: str, text: str) -> Any:
        """Parses `text` by the rule `start` and returns what its callback made.

        Raises:
            ReadError: The text does not follow the grammar, or makes no sense; with the offset of the place. A
                `ContradictionError` where its values do not fit together.
        """
        if start in UPPER_STARTS:
            self.reader.progress.head = None
            self.reader.progress.end = None
        return self._parse(start, text)

    def _parse(self, start: str, text: str) -> Any:
        try:
            return self._driver.parse(start, text)
        except HloSyntaxError as error:
            raise describe(text, error.position, error.opened_at, error.accepted) from None
        except HloscopeError as error:
            raise ContradictionError(0, error.what) from None


@cache
def language() -> Language:
    """The one parser of this process."""
    return Language()
