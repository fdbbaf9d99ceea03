"""SVG charts: pure functions from plain numbers to markup, for a page or as a file.

In a page the colours are variables of `STYLE`, so that they follow the light or dark scheme; with ``standalone`` they
are written out. Numbers that are not finite are left out.
"""

from __future__ import annotations

from regweave.report.charts.plots import bar_chart, box_plot, interval_plot, line_chart, step_chart
from regweave.report.charts.svg import STYLE

__all__ = ["STYLE", "bar_chart", "box_plot", "interval_plot", "line_chart", "step_chart"]
