"""The base class of all formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hloscope.base.canvas import Canvas
from hloscope.base.presenter import load

if TYPE_CHECKING:
    from hloscope.base.outputs import OutputFiles


class Renderer:
    """The base class of formats.

    A format is a subclass in a module of this room, and a line in `formats.FORMATS`. For each document named there it
    has a method `render_<document>(found, canvas)`, which returns text, or `OutputFiles` if the format is binary. Text
    passes `escape_for_terminal`, which leaves nothing in it that a terminal or a CI runner obeys.

    Attributes:
        ending: The file name ending that selects the format; empty if none does.
        writes: What the format writes: `text`, or bytes into a `file` or a `folder` that the user names.
        escapes_itself: Whether the format makes hostile strings harmless by its own means, because its readers obey
            something else than terminals do, or must read back what it hides.
        names_options: Whether its sentences name options as the command line spells them.
    """

    ending: ClassVar[str] = ""
    writes: ClassVar[Literal["text", "file", "folder"]] = "text"
    escapes_itself: ClassVar[bool] = False
    names_options: ClassVar[bool] = False

    def render(self, document: str, found: object, canvas: Canvas) -> str:
        """Renders a document as text."""
        from hloscope.report.escaping import escape_for_terminal

        text = str(self.call(document, found, canvas))
        return text if self.escapes_itself else escape_for_terminal(text)

    def files(self, document: str, found: object) -> OutputFiles:
        """Renders a document as bytes, for a binary format."""
        made: OutputFiles = self.call(document, found, Canvas())
        return made

    def call(self, document: str, found: object, canvas: Canvas) -> Any:
        """Calls the method of a document."""
        return getattr(self, f"render_{document}")(found, canvas)


class Lazy:
    """A method of a format that is a function of another module, which is loaded on the first call.

    Attributes:
        path: The function, as `module:name`.
        of_canvas: The fields of the canvas that it takes after the result; `canvas` for the whole of it.
    """

    def __init__(self, path: str, *of_canvas: str) -> None:
        self.path, self.of_canvas = path, of_canvas

    def __call__(self, found: object, canvas: Canvas) -> Any:
        """Calls the function."""
        taken = (canvas if name == "canvas" else getattr(canvas, name) for name in self.of_canvas)
        return load(self.path)(found, *taken)
