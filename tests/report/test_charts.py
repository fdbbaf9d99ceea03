"""Charts: positions follow the numbers, names cannot break out, nothing is drawn where nothing is known."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest

from regweave.report.charts import DARK, LIGHT, STYLE, Scale, bar_chart, box_plot, interval_plot, line_chart, summary

HOSTILE = '</svg><script>alert("1")</script>\x00\x1b&\'"'
NAN = math.nan


def parse(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def of_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [e for e in root.iter() if name in (e.get("class") or "").split()]


def y_map(root: ElementTree.Element):
    """The straight line through the ticks of the upward axis, from what is drawn."""
    axis = of_class(root, "axis")[0]
    ticks = [e for e in axis if e.tag == "text" and e.get("text-anchor") == "end"]
    values = [float(e.text.replace("−", "-")) for e in ticks]
    slope, start = np.polyfit(values, [float(e.get("y")) for e in ticks], 1)
    return lambda v: start + slope * v


def x_maps(root: ElementTree.Element):
    """The straight line through the ticks of each scale to the right, from what is drawn."""
    maps = []
    for axis in of_class(root, "axis"):
        ticks = [e for e in axis if e.tag == "text"][:-1]
        values = [float(e.text.replace("−", "-")) for e in ticks]
        slope, start = np.polyfit(values, [float(e.get("x")) for e in ticks], 1)
        maps.append((slope, start))
    return maps


def x_map(root: ElementTree.Element):
    ((slope, start),) = x_maps(root)
    return lambda v: start + slope * v


def test_boxes_lie_where_the_numbers_are():
    values = [0.60, 0.70, 0.72, 0.74, 0.80, 0.99, 0.10]
    root = parse(box_plot({"liver": {"sad": values}}, title="t", x_label="Dice"))
    x = x_map(root)
    lower, median, upper = np.percentile(values, (25, 50, 75))
    (bar,), (box,), (square,) = (of_class(root, n) for n in ("median", "box", "mean"))
    assert float(bar.get("x1")) == float(bar.get("x2")) == pytest.approx(x(median), abs=0.01)
    assert float(box.get("x")) == pytest.approx(x(lower), abs=0.01)
    assert float(box.get("x")) + float(box.get("width")) == pytest.approx(x(upper), abs=0.01)
    centre = float(square.get("x")) + float(square.get("width")) / 2
    assert centre == pytest.approx(x(np.mean(values)), abs=0.01)
    far = sorted(v for v in values if v < lower - 1.5 * (upper - lower) or v > upper + 1.5 * (upper - lower))
    assert far == [0.10, 0.99]
    drawn = [float(c.get("cx")) for c in of_class(root, "outlier")]
    assert drawn == pytest.approx([x(v) for v in far], abs=0.01)
    ends = {float(line.get(k)) for line in of_class(root, "whisker") for k in ("x1", "x2")}
    expected = (0.60, lower, upper, 0.80)
    assert sorted(ends) == pytest.approx(sorted(x(v) for v in expected), abs=0.01)


def test_every_method_of_every_organ_has_its_place():
    for organs, columns in [(2, 1), (9, 2)]:
        groups = {f"organ {g}": {f"method {m}": [0.1 * m + 0.01 * g] for m in range(9)} for g in range(organs)}
        root = parse(box_plot(groups, title="t", x_label="Dice"))
        items = of_class(root, "item")
        names = [(i.get("data-group"), i.get("data-name")) for i in items]
        assert names == [(g, m) for g, methods in groups.items() for m in methods]
        # Names are level, columns have the same scale, and no two boxes lie on each other.
        assert not [e for e in root.iter("text") if e.get("transform")]
        places = [(float(box.get("x")), float(box.get("y"))) for box in of_class(root, "box")]
        assert len(set(places)) == len(places)
        width, height = (float(root.get(k)) for k in ("width", "height"))
        assert all(0 < x < width and 0 < y < height for x, y in places)
        assert all(float(e.get("y")) < height for e in root.iter("text"))
        scales = x_maps(root)
        assert len(scales) == columns
        assert len({round(slope, 3) for slope, _ in scales}) == 1


def test_missing_numbers_are_left_out_and_nothing_to_draw_is_said():
    groups = {"a": {"x": [NAN, 0.5, math.inf], "y": [NAN]}}
    root = parse(box_plot(groups, title="t", x_label="Dice"))
    assert len(of_class(root, "median")) == 1
    assert "a, y: no value" in root.find("desc").text
    assert summary([NAN]) is None
    alone = summary([2.0])
    assert (alone.pop("n"), alone.pop("outliers")) == (1, [])
    assert set(alone.values()) == {2.0}
    charts = [box_plot({}, title="t", x_label="y"), bar_chart({}, title="t", x_label="y")]
    charts += [line_chart({}, title="t", x_label="x", y_label="y"), interval_plot([], title="t", x_label="x")]
    assert all("no data" in "".join(parse(text).itertext()) for text in charts)


def test_bars_begin_at_zero_and_whiskers_show_the_spread():
    groups = {"a": {"sad": (0.5, 0.1), "ncc": (-0.2, 0.0), "mi": (0.3, NAN), "none": (NAN, 1.0)}}
    root = parse(bar_chart(groups, title="t", x_label="weight"))
    x = x_map(root)
    bars = of_class(root, "bar")
    spans = [(float(b.get("x")), float(b.get("x")) + float(b.get("width"))) for b in bars]
    expected = [(x(0), x(0.5)), (x(-0.2), x(0)), (x(0), x(0.3))]
    np.testing.assert_allclose(spans, expected, atol=0.01)
    (whisker,) = of_class(root, "spread")
    ends = [float(whisker.get(k)) for k in ("x1", "x2")]
    assert ends == pytest.approx([x(0.4), x(0.6)], abs=0.01)


def test_lines_follow_their_points_and_powers_of_ten_are_evenly_spaced():
    series = {"a": [(0, 4.0), (1, 2.0), (2, 1.0)], "b": [(0, 3.0), (2, NAN)]}
    root = parse(line_chart(series, title="t", x_label="step", y_label="loss"))
    y = y_map(root)
    lines = {s.get("data-name"): s.find("polyline") for s in of_class(root, "series")}
    points = np.array([p.split(",") for p in lines["a"].get("points").split()], dtype=float)
    assert points[:, 1] == pytest.approx([y(4), y(2), y(1)], abs=0.01)
    assert points[1, 0] - points[0, 0] == pytest.approx(points[2, 0] - points[1, 0], abs=0.01)
    assert len(lines["b"].get("points").split()) == 1
    assert lines["a"].get("stroke-dasharray") != lines["b"].get("stroke-dasharray")
    root = parse(
        line_chart({"gap": [(0, 1.0), (1, 0.1), (2, 0.01), (3, 0.0)]}, title="t", x_label="x", y_label="y", log_y=True)
    )
    (series,) = of_class(root, "series")
    points = np.array([p.split(",") for p in series.find("polyline").get("points").split()], dtype=float)
    assert len(points) == 3
    assert points[1, 1] - points[0, 1] == pytest.approx(points[2, 1] - points[1, 1], abs=0.01)


def test_intervals_and_zero():
    rows = [("a", 0.02, 0.01, 0.04), ("b", -0.03, -0.05, 0.01), ("c", 0.01, NAN, NAN)]
    root = parse(interval_plot(rows, title="t", x_label="Dice"))
    lines, values = of_class(root, "interval"), of_class(root, "value")
    assert len(lines) == 2
    assert len(values) == 3
    centre = [float(v.get("x")) + 4 for v in values]
    zero = float(of_class(root, "zero")[0].get("x1"))
    slope = (centre[0] - zero) / 0.02
    assert slope > 0
    assert centre == pytest.approx([zero + slope * row[1] for row in rows], abs=0.01)
    ends = [[float(line.get(k)) for k in ("x1", "x2")] for line in lines]
    np.testing.assert_allclose(ends, [[zero + slope * v for v in row[2:]] for row in rows[:2]], atol=0.02)
    assert "+0.0200 [+0.0100, +0.0400]" in "".join(root.itertext())


def test_names_cannot_break_out_and_colours_have_contrast():
    drawn = [
        box_plot({HOSTILE: {HOSTILE: [1.0]}}, title=HOSTILE, x_label=HOSTILE),
        bar_chart({HOSTILE: {HOSTILE: (1.0, 0.1)}}, title=HOSTILE, x_label=HOSTILE),
        line_chart({HOSTILE: [(0, 1)], "b": []}, title=HOSTILE, x_label=HOSTILE, y_label=HOSTILE),
        interval_plot([(HOSTILE, 1.0, 0.5, 2.0)], title=HOSTILE, x_label=HOSTILE),
    ]
    for text in drawn:
        assert not any(part in text for part in ("<script", "\x00", "\x1b"))
        root = parse(text)
        assert root.tag == "svg"
        assert root.find("title").text == HOSTILE.replace("\x00", "").replace("\x1b", "")
        assert (root.get("role"), bool(root.get("aria-label"))) == ("img", True)
    for colours in (LIGHT, DARK):
        paper = luminance(colours["paper"])
        for name, colour in colours.items():
            low, high = sorted((luminance(colour), paper))
            least = 1 if name in ("paper", "rule") else 4.5 if name in ("ink", "soft") else 3
            assert (high + 0.05) / (low + 0.05) >= least, name
            assert f"--chart-{name}" in STYLE


def test_ticks_are_round_and_hold_all_values():
    for values, ticks in (
        ([0.62, 0.91], (0.6, 0.7, 0.8, 0.9, 1.0)),
        ([0.0, 0.0], (-0.06, -0.04, -0.02, 0.0, 0.02, 0.04, 0.06)),
        ([-1.3e-5, 2.9e-5], (-2e-05, -1e-05, 0.0, 1e-05, 2e-05, 3e-05)),
        ([3, 1234], (0.0, 250.0, 500.0, 750.0, 1000.0, 1250.0)),
    ):
        found = Scale(values, 100, 0)
        assert found.ticks == pytest.approx(ticks, abs=1e-12)
        assert found.low <= min(values) <= max(values) <= found.high
        texts = [float(t.replace("−", "-")) for t in found.texts]
        assert texts == pytest.approx(ticks, rel=1e-9, abs=1e-12)
    for last in (2, 3, 9, 13, 26, 120):
        ticks = Scale(range(1, last + 1), 0, 100, whole=True).ticks
        assert all(tick.is_integer() for tick in ticks)
        assert 2 <= len(ticks) <= 8


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
