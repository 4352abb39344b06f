"""HTML: one page that fetches nothing, for each result that is worth looking at in a browser."""

from __future__ import annotations

from hloscope.report.renderer import Lazy, Renderer


class Html(Renderer):
    """Pages, whose strings pass `privacy` and are escaped as markup."""

    ending = ".html"
    escapes_itself = True

    render_analysis = Lazy("hloscope.report.html.analysis_page:render_analysis_page", "canvas")
    render_check = Lazy("hloscope.report.html.predicted_pages:render_check_page")
    render_comparison = Lazy("hloscope.report.html.measured_pages:render_comparison_page")
    render_difference = Lazy("hloscope.report.html.analysis_page:render_difference_page", "canvas")
    render_prices = Lazy("hloscope.report.html.predicted_pages:render_price_page")
    render_suggestions = Lazy("hloscope.report.html.predicted_pages:render_suggestions_page")
    render_verification = Lazy("hloscope.report.html.measured_pages:render_verification_page")
