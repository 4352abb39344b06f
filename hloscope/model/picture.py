"""Pictures of arrays, meshes and graphs, for notebooks, terminals and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hloscope.base.calls import front_door, named_path
from hloscope.base.errors import Helpful, HloscopeError
from hloscope.base.outputs import check_report_file, write_text
from hloscope.base.presenter import ask
from hloscope.base.results import Fixed, shorten_to_line


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Picture(Fixed, Helpful):
    """A picture that displays in notebooks, prints as text, and can be saved.

    Example:
        >>> found.array("W")                       # drawn, in a notebook
        >>> print(found.array("W"))                # in box characters
        >>> found.mesh_picture().save("mesh.svg")

    Attributes:
        title: What is drawn.
        svg: The picture as an SVG element, in the color of the surrounding text.
        text: The picture as text.
    """

    title: str
    svg: str
    text: str

    def __repr__(self) -> str:
        return shorten_to_line(f"<Picture of {self.title}>")

    def __str__(self) -> str:
        return self.text

    def _repr_svg_(self) -> str:
        """The picture with its own background, for viewers that show it as an image."""
        return str(ask("image", self.svg))

    def _repr_html_(self) -> str:
        """The picture in the colours of the page."""
        return f'<div style="overflow-x:auto">{self.svg}</div>'

    @front_door
    def save(self, path: str | Path) -> None:
        """Writes the picture to a file: `.svg`, or `.txt` for text.

        Raises:
            HloscopeError: The file has another suffix, or cannot be written.
        """
        file = named_path(path, example='path="picture.svg"')
        if file.suffix not in (".svg", ".txt"):
            raise HloscopeError(
                f"a picture cannot be saved as {file.name}",
                why=f'"{file.suffix}" is none of .svg and .txt' if file.suffix else "its name has no ending",
                fix=f"name it {file.stem}.svg",
            )
        check_report_file(file)
        write_text(self._repr_svg_() if file.suffix == ".svg" else self.text, file, "the picture")
