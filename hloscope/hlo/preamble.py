"""What stands before the computations: the header, and the tables of source frames."""

from __future__ import annotations

from hloscope.hlo.builder import Builder
from hloscope.hlo.holes import cut_numbers, is_plain
from hloscope.hlo.language import language
from hloscope.hlo.records import ReadError, Row

MOST_LINES = 64
"""Lines that the header may take here."""

_TITLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class Preamble:
    """Reads from the beginning of a text, line by line.

    Attributes:
        position: Offset of the line that comes next.
        line: Its 1-based number.
    """

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._text = builder.columns.text
        self._keys: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.position = 0
        self.line = 1

    def read(self) -> None:
        """Reads header and tables.

        Raises:
            ReadError: The text does not begin with a header, or is not laid out line by line.
        """
        self._skip_blank()
        if not self._peek().lstrip(" \t").startswith("HloModule"):
            raise ReadError(self.position, "no header")
        self._header()
        tables: list[tuple[Row, ...]] = []
        for title in _TITLES:
            self._skip_blank()
            if self._peek().strip(" \t\r") != title:
                break
            self._next(self._peek())
            tables.append(self._rows(strings=title.endswith("Names")))
        if tables and len(tables) != len(_TITLES):
            raise ReadError(self.position, "a table is missing")
        self._builder.add_tables(tuple(tables))

    def _header(self) -> None:
        end = self.position - 1
        for _ in range(MOST_LINES):
            end = self._text.find("\n", end + 1)
            source = self._text[self.position : end if end >= 0 else None]
            try:
                self._builder.add_header(language().parse("header", source), source)
            except ReadError as error:
                if not error.at_end or end < 0:
                    raise
            else:
                self._next(source)
                return
        raise ReadError(self.position, "too many lines")

    def _rows(self, *, strings: bool) -> tuple[Row, ...]:
        rows: list[Row] = []
        while (source := self._peek())[:1].isdigit():
            row = language().parse("table_row", source) if strings else self._number_row(source)
            if isinstance(row, str) != strings:
                raise ReadError(self.position, "a row of another table")
            rows.append(row)
            self._next(source)
        return tuple(rows)

    def _number_row(self, source: str) -> Row:
        """A row of `FileLocations` or `StackFrames`; rows that differ only in numbers are parsed once."""
        parts = cut_numbers(source)
        pieces, numbers = parts[::2], list(map(int, parts[3::2]))
        keys = self._keys.get(tuple(pieces))
        if keys is not None:
            return dict(zip(keys, numbers, strict=True))
        row: Row = language().parse("table_row", source)
        if isinstance(row, dict) and is_plain(pieces) and list(row.values()) == numbers and len(numbers) == len(row):
            self._keys[tuple(pieces)] = tuple(row)
        return row

    def _peek(self) -> str:
        end = self._text.find("\n", self.position)
        return self._text[self.position : end if end >= 0 else None]

    def _next(self, source: str) -> None:
        self.position = min(self.position + len(source) + 1, len(self._text))
        self.line += source.count("\n") + 1

    def _skip_blank(self) -> None:
        while self.position < len(self._text):
            source = self._peek()
            stripped = source.strip(" \t\r")
            if stripped and not stripped.startswith("//"):
                return
            self._next(source)
