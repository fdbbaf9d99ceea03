"""Names of files and folders in the output of the commands."""

from __future__ import annotations

RESULT = "result.json"
RESULTS = "results.json"
REPORT = "report.html"
INDEX = "index.html"
"""A registration; an evaluation or a batch; the page of either, and the list of their registrations."""
PAGES = "pages"
PAGE_RECORD = "page.json"
"""Registrations that an evaluation keeps, and in each the pair and the method it belongs to."""
DEMO = "demo.json"
DEMO_MODEL = "weights.json"
DEMO_EVALUATION = "evaluation"
"""Summary, learned model and evaluation of a demo."""
