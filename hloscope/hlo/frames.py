"""The source frames that a module's stack tables hold."""

from __future__ import annotations

from dataclasses import dataclass

from hloscope.hlo.records import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of the Python stack that made an instruction.

    Attributes:
        file: The file's name as XLA was given it.
        line: 1-based; 0 where XLA was given none.
        function: The function's qualified name.
        column: As printed.
    """

    file: str
    line: int
    function: str
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameTables:
    """The four stack tables of a module, by id - 1.

    Attributes:
        file_names: `FileNames`.
        function_names: `FunctionNames`.
        file_locations: `FileLocations`, as (file_name_id, function_name_id, line, column, end_line, end_column).
        stack_frames: `StackFrames`, as (file_location_id, parent frame id); the parent is the real id, 0 for none,
            where the text prints it plus one.
    """

    file_names: tuple[str, ...] = ()
    function_names: tuple[str, ...] = ()
    file_locations: tuple[tuple[int, int, int, int, int, int], ...] = ()
    stack_frames: tuple[tuple[int, int], ...] = ()

    def frames(self, stack_frame_id: int) -> tuple[Frame, ...]:
        """The frames of one id, innermost first; those up to the first id that the tables do not hold.

        A parent that comes round again ends the walk.
        """
        found: list[Frame] = []
        seen: set[int] = set()
        frame_id = stack_frame_id
        while 0 < frame_id <= len(self.stack_frames) and frame_id not in seen:
            seen.add(frame_id)
            location_id, frame_id = self.stack_frames[frame_id - 1]
            frame = self._frame(location_id)
            if frame is None:
                break
            found.append(frame)
        return tuple(found)

    def _frame(self, location_id: int) -> Frame | None:
        if not 0 < location_id <= len(self.file_locations):
            return None
        file_id, function_id, line, column, _, _ = self.file_locations[location_id - 1]
        if not (0 < file_id <= len(self.file_names) and 0 < function_id <= len(self.function_names)):
            return None
        return Frame(
            file=self.file_names[file_id - 1],
            line=line,
            function=self.function_names[function_id - 1],
            column=column,
        )


def frame_tables(
    file_names: tuple[Row, ...],
    function_names: tuple[Row, ...],
    file_locations: tuple[Row, ...],
    stack_frames: tuple[Row, ...],
) -> FrameTables:
    """The stack tables as numbers. XLA prints a frame's parent as its real id plus one."""
    locations = [row for row in file_locations if isinstance(row, dict)]
    frames = [row for row in stack_frames if isinstance(row, dict)]
    return FrameTables(
        file_names=tuple(str(row) for row in file_names),
        function_names=tuple(str(row) for row in function_names),
        file_locations=tuple(
            (
                row.get("file_name_id", 0),
                row.get("function_name_id", 0),
                row.get("line", 0),
                row.get("column", 0),
                row.get("end_line", 0),
                row.get("end_column", 0),
            )
            for row in locations
        ),
        stack_frames=tuple((row.get("file_location_id", 0), row.get("parent_frame_id", 1) - 1) for row in frames),
    )
