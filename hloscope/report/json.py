"""JSON: every result as a document with a published schema."""

from __future__ import annotations

from typing import Any

from hloscope.base.canvas import Canvas
from hloscope.report.renderer import Lazy, Renderer


class Json(Renderer):
    """Documents as JSON. What is a document already has no method of its own."""

    ending = ".json"
    escapes_itself = True

    render_check = Lazy("hloscope.report.checks:make_check_document")
    render_checkups = Lazy("hloscope.report.checkups:make_doctor_document")
    render_dumped = Lazy("hloscope.report.dumps:make_module_document")
    render_dumped_modules = Lazy("hloscope.report.dumps:make_dump_document")
    render_explanation = render_overview = Lazy("hloscope.report.explanation:make_explanation_document")
    render_prices = Lazy("hloscope.report.price:make_price_document")
    render_verification = Lazy("hloscope.verification.model:make_verification_document")

    def render(self, document: str, found: object, canvas: Canvas) -> str:
        """Renders a document, indented."""
        from hloscope.report.escaping import dump_json

        return dump_json(self.call(document, found, canvas))

    def call(self, document: str, found: object, canvas: Canvas) -> Any:
        """Makes the document of a result."""
        make = getattr(self, f"render_{document}", None)
        return found if make is None else make(found, canvas)
