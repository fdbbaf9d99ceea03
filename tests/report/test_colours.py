"""Colours of the contours: told apart by readers with a colour vision deficiency, and the same wherever they stand."""

import itertools
import re

import numpy as np

from regweave.report.page import asset
from regweave.report.viewer import COLOURS

# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def colours() -> dict[str, str]:
    return dict(re.findall(r'(fixed|before|after): \{ colour: "(#[0-9a-f]{6})"', asset("paint.js")))


def lab(colour: str, matrix) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x = XYZ @ np.clip(np.asarray(matrix) @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_contours_and_structures_are_told_apart():
    for matrix in SIGHT.values():
        seen = {name: lab(colour, matrix) for name, colour in colours().items()}
        for a, b in itertools.combinations(seen, 2):
            # The start is dashed besides; the other two have nothing but their colours.
            wanted = 25 if "before" in (a, b) else 80
            assert np.linalg.norm(seen[a] - seen[b]) > wanted
    for matrix in SIGHT.values():
        seen = [lab(colour, matrix) for colour in COLOURS]
        assert len(seen) == 12
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 20
    cyan, magenta = (lab(c, SIGHT["deuteranopia"]) for c in ("#27d3f5", "#ff5ce1"))
    assert np.linalg.norm(cyan - magenta) < 10


def test_legend_and_lines_agree_and_the_start_is_dashed():
    assert set(colours()) == {"fixed", "before", "after"}
    css = asset("registration.css")
    assert all(colour in css for colour in colours().values())
    assert re.search(r'before: \{ colour: "#\w+", dash: \[\d', asset("paint.js"))
    assert "border-top: 3px dashed" in css
