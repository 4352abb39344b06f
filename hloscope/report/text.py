"""Text for a terminal or a log, at most as wide as the canvas."""

from __future__ import annotations

from dataclasses import replace

from hloscope.base.canvas import Canvas
from hloscope.report.layout import LEAST_WIDTH, draw_lines
from hloscope.report.renderer import Lazy, Renderer


class Text(Renderer):
    """Lines of text: each method yields those of a document for the width of the canvas."""

    ending = ".txt"
    names_options = True

    render_analysis = Lazy("hloscope.report.analysis:render_analysis", "canvas")
    render_check = Lazy("hloscope.report.checks:render_check", "width")
    render_checkups = Lazy("hloscope.report.checkups:render_checkups", "width")
    render_comparison = Lazy("hloscope.report.comparing:render_comparison", "width")
    render_difference = Lazy("hloscope.report.diffs:render_difference", "width")
    render_drawn_shardings = Lazy("hloscope.report.shardings:render_drawn_shardings", "width")
    render_dump = Lazy("hloscope.report.dumps:render_dump", "width")
    render_dumped = Lazy("hloscope.report.dumps:render_module", "width")
    render_dumped_modules = Lazy("hloscope.report.dumps:render_modules", "width")
    render_explanation = Lazy("hloscope.report.explanation:render_explanations", "width")
    render_graph = Lazy("hloscope.report.graphs:render_graph", "width")
    render_overview = Lazy("hloscope.report.explanation:render_overview", "width")
    render_prices = Lazy("hloscope.report.price:render_prices", "width")
    render_recording = Lazy("hloscope.report.recording:render_recording", "width")
    render_shardings = Lazy("hloscope.report.shardings:render_shardings", "width")
    render_suggestions = Lazy("hloscope.report.suggestions:render_suggestions", "width")
    render_timeline = Lazy("hloscope.report.timeline:render_timeline", "width")
    render_verification = Lazy("hloscope.report.verification:render_verification", "width")

    def render(self, document: str, found: object, canvas: Canvas) -> str:
        """Renders a document; no string in it breaks a line or is obeyed."""
        lines = self.call(document, found, replace(canvas, width=max(canvas.width, LEAST_WIDTH)))
        return draw_lines(lines, canvas.width, canvas.colour)
