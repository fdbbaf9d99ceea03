"""The page in a real browser: what a reader does changes what is seen, and nothing leaves the page."""

import csv
import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from regweave.io.points import read_point_pairs
from regweave.report.signoff import Reviewable, read_signoff, require_match

HOSTILE_FILE = '"><img src=x onerror=window.hacked=1>.nii.gz'
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
PLANES = ("axial", "coronal", "sagittal")


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield running
        running.close()


class Reader:
    """A page with a record of what it said and asked for."""

    def __init__(self, context, path: Path):
        self.page = context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def ready(self):
        self.page.wait_for_selector("html[data-viewer]")
        assert self.page.evaluate("document.documentElement.dataset.viewer") == "ready"
        return self

    def planes(self) -> list[str]:
        """Pixels of the three planes."""
        return [self.page.evaluate(f"document.getElementById('{name}').toDataURL()") for name in PLANES]

    def show(self, expected: list[str]) -> bool:
        """Wait until the planes have these pixels; False where they never have."""
        for _ in range(250):
            if self.planes() == expected:
                return True
            self.page.wait_for_timeout(20)
        return False

    def greys(self, key: str, channel: int = 0) -> np.ndarray:
        """Red channel, or another, of the middle of the axial plane after a key, away from letters and scale."""
        self.press(key)
        values = self.page.evaluate(
            """(channel) => {
            const c = document.getElementById('axial'), w = c.width >> 2, h = c.height >> 2;
            const pixels = c.getContext('2d').getImageData(3 * w >> 1, 3 * h >> 1, w, h).data;
            return [...pixels].filter((_, n) => n % 4 === channel);
        }""",
            channel,
        )
        return np.array(values, dtype=float)

    def press(self, keys: str) -> list[str]:
        for key in keys:
            self.page.keyboard.press(key)
        return self.planes()

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)


@pytest.fixture
def opened(browser, result_folder):
    """Open a page of its own, with options of the browser's context."""
    contexts = []

    def start(**options):
        contexts.append(browser.new_context(**options))
        return Reader(contexts[-1], result_folder / "report.html").ready()

    yield start
    for context in contexts:
        context.close()


@pytest.fixture
def fresh(opened):
    return opened(viewport={"width": 1280, "height": 900})


@pytest.fixture(scope="module")
def shared(browser, result_folder):
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield Reader(context, result_folder / "report.html").ready()
    context.close()


@pytest.fixture
def reader(shared):
    """The viewer of a shared page, as it is at the start."""
    shared.page.mouse.move(0, 0)  # a structure under the pointer is drawn brighter
    shared.page.evaluate("scrollTo(0, 0); document.activeElement.blur(); document.getElementById('reset').click()")
    return shared


def test_opens_from_a_file_with_names_as_text_and_without_error_or_request(fresh, result_folder):
    for key in "mwbscdj2geuozz":
        fresh.press(key)
    others = [url for url in fresh.asked if not url.startswith(("data:", "blob:"))]
    assert others == [(result_folder / "report.html").as_uri()]
    assert not fresh.page.is_visible("#pictures")
    assert fresh.page.evaluate("window.hacked") is None
    assert HOSTILE_FILE in fresh.page.title()
    assert HOSTILE_FILE in fresh.text("h1")
    for name in ("<img src=x onerror=window.hacked=1>", "</script><script>window.hacked=1</script>"):
        assert name in fresh.text("main")
    assert "DOE^JOHN" not in fresh.page.content()
    assert "<script>window.hacked" not in fresh.page.content()
    assert fresh.said == []


def test_views_are_what_their_names_say(reader):
    """Pixel by pixel: blend is the mean, a checkerboard has tiles of both, the difference is around grey."""
    reader.page.uncheck("#cross")
    assert len({tuple(reader.press(key)) for key in "fmwbscd"}) == 7
    before, after = reader.press("f"), reader.press("w")
    for value, expected in (("0", before), ("100", after)):  # the share of the warped image
        reader.page.fill("#blend", value)
        assert reader.planes() == expected
    assert reader.press("p") == reader.press("m")
    reader.press("p")
    assert reader.press("w") == after
    reader.page.click("#reset")
    reader.press("13x")
    reader.page.uncheck("#smooth")
    fixed, warped = (reader.greys(key) for key in "fw")
    inside = fixed > 0  # the frame around the image is black
    red, green, blue = (reader.greys("b", channel) for channel in range(3))  # in colour
    assert max(np.abs(red - warped)[inside].max(), np.abs(blue - fixed)[inside].max()) <= 1
    assert np.abs(green - (fixed + warped) / 2)[inside].max() <= 1
    assert np.abs(red - blue)[inside].max() > 20
    reader.press("o")
    blend, checker, difference = (reader.greys(key) for key in "bcd")
    assert np.abs(blend - (fixed + warped) / 2)[inside].max() <= 1
    assert np.abs(difference - np.clip(128 + fixed - warped, 0, 255))[inside].max() <= 1
    from_fixed, from_warped = checker == fixed, checker == warped
    assert (from_fixed | from_warped)[inside].all()
    apart = inside & (fixed != warped)
    assert 0.3 < from_fixed[apart].mean() < 0.7


def test_the_curtain_parts_the_images_and_can_be_drawn(reader):
    """Left of the edge is the fixed image, right of it the warped one; dragging the edge aside shows more of one."""
    reader.press("13x")
    fixed, warped = (reader.greys(key) for key in "fw")
    apart = np.abs(fixed - warped) > 10
    assert apart.any()
    box = reader.page.locator("#axial").bounding_box()
    y, middle = box["y"] + box["height"] * 0.4, box["x"] + box["width"] / 2
    reader.press("s")
    for where, expected in ((0.97, fixed), (0.03, warped)):
        reader.page.mouse.move(middle, y)
        reader.page.mouse.down()
        middle = box["x"] + box["width"] * where
        reader.page.mouse.move(middle, y, steps=3)
        reader.page.mouse.up()
        found = reader.greys("s")
        assert np.abs(found - expected)[apart].max() <= 1


def test_the_window_is_typed_and_dragged_with_the_right_button(reader):
    before = reader.planes()
    width, level = (float(reader.page.input_value(f"#{name}")) for name in ("width", "level"))
    reader.page.fill("#width", str(width / 2))
    narrow = reader.planes()
    assert all(a != b for a, b in zip(before, narrow, strict=True))
    reader.page.fill("#width", str(width))
    reader.page.evaluate("document.activeElement.blur()")
    box = reader.page.locator("#axial").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    place = reader.text("#readout")
    reader.page.mouse.move(x, y)
    reader.page.mouse.down(button="right")
    reader.page.mouse.move(x + 100, y + 60, steps=2)
    reader.page.mouse.up(button="right")
    assert float(reader.page.input_value("#width")) == pytest.approx(width * np.exp(0.5), rel=0.01)
    assert float(reader.page.input_value("#level")) == pytest.approx(level + 0.2 * width, rel=0.02)
    assert reader.text("#readout") == place  # the cross-hair stays


def test_structures_have_names_under_the_pointer_and_colours_of_their_own(reader):
    reader.page.locator("table [data-go]").first.scroll_into_view_if_needed()
    reader.page.locator("table [data-go]").first.click()
    name = reader.page.locator("table tbody tr[data-structure] th").first.inner_text()
    box = reader.page.locator("#axial").bounding_box()
    where = reader.page.evaluate(
        "(() => { const v = window.viewer, p = v.planes[0];"
        " return v.frame(p).place(v.position[0], v.position[1]).map((x) => x / v.ratio); })()"
    )
    reader.page.mouse.move(box["x"] + where[0] + 1, box["y"] + where[1] + 1)
    assert name.strip() in reader.text("#hint")
    by_structure = reader.planes()
    reader.page.select_option("#by", "role")
    assert reader.planes() != by_structure


def test_one_structure_alone_and_all_again(reader):
    everything = reader.planes()
    button = reader.page.locator("table [data-only]").nth(2)
    button.click()
    checked = reader.page.locator("table [data-show]:checked").count()
    assert checked == 1
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert reader.page.locator("table [data-show]:checked").count() == 6
    reader.page.focus("#axial")
    reader.page.keyboard.press("Home")
    reader.page.mouse.move(0, 0)  # focus scrolls: what comes under the pointer is drawn brighter
    assert reader.show(everything)


def test_tables_sort_and_filter_and_explain(fresh):
    def dice() -> list[float]:
        cells = fresh.page.locator("#structures tbody tr:visible td[data-value]:nth-of-type(3)").all()
        return [float(cell.get_attribute("data-value")) for cell in cells]

    assert dice() == sorted(dice())  # worst first
    head = fresh.page.locator("#structures thead th", has_text="Dice").first.locator("button")
    head.click()
    assert dice() == sorted(dice())
    head.click()
    assert dice() == sorted(dice(), reverse=True)
    assert len(dice()) == 6
    fresh.page.fill("[data-filter]", "hyperlink")
    assert len(dice()) == 1
    fresh.page.fill("[data-filter]", "")
    fresh.page.locator("#structures .help summary").first.click()
    text = fresh.page.locator("#structures .help p").first
    assert "Overlap" in text.inner_text()
    box = text.bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 1280
    fresh.page.locator("h2").first.click()
    assert not text.is_visible()


def test_structures_stand_beside_the_planes_on_a_wide_screen(opened):
    reader = opened(viewport={"width": 1920, "height": 1080})
    panel, plane = (reader.page.locator(name).bounding_box() for name in ("#panel", "#sagittal"))
    assert panel["x"] > plane["x"] + plane["width"]
    assert plane["width"] > 480
    before = reader.planes()
    reader.page.locator("#panel [data-all=none]").click()
    assert reader.page.locator("table [data-show]:checked").count() == 0
    assert reader.planes() != before
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 1920


def test_flicker_and_an_enlarged_plane_and_back(reader):
    first = reader.text("figcaption .what")
    reader.press("k")
    seen = {}
    for _ in range(40):
        caption, picture = reader.page.evaluate(
            "[document.querySelector('figcaption .what').innerText, document.getElementById('axial').toDataURL()]"
        )
        seen[caption] = picture
        if len(seen) == 2:
            break
        reader.page.wait_for_timeout(100)
    assert set(seen) == {"flicker: fixed", "flicker: warped, after"}
    assert len(set(seen.values())) == 2
    reader.press("b")
    assert reader.text("figcaption .what") == first
    small = reader.page.locator("#coronal").bounding_box()
    reader.page.dblclick("#coronal")
    assert not reader.page.is_visible("#axial")
    assert reader.page.locator("#coronal").bounding_box()["width"] > 2.5 * small["width"]
    reader.press("z")
    assert reader.page.is_visible("#axial")
    assert reader.page.locator("#coronal").bounding_box()["width"] == small["width"]


def test_each_key_and_control_changes_the_planes_and_back(reader):
    start = reader.planes()
    for key in "123gxjeu+":
        changed = reader.press(key)
        assert all(a != b for a, b in zip(start, changed, strict=True)), key
        assert reader.press("-" if key == "+" else key) == start, key
    controls = {"#strength": "90", "#level": "40", "#width": "70", "#window": "1", "#map": "confidence"}
    for control, value in controls.items():
        before, field = reader.press("j"), reader.page.locator(control)
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
        assert all(a != b for a, b in zip(before, reader.planes(), strict=True)), control
        reader.page.evaluate("document.activeElement.blur()")
        reader.page.click("#reset")
    assert reader.planes() == start
    for key, words in (("e", "sad"), ("e", "ncc"), ("j", "equal volume")):
        reader.press("n" + key)
        assert words in reader.text("#legend")
    reader.press("n")
    assert reader.text("#legend") == ""
    before = reader.planes()
    reader.page.fill("[name=comment]", "")
    reader.page.type("[name=comment]", "mwdj")  # keys are text while text is written
    assert reader.planes() == before
    assert reader.page.input_value("[name=comment]") == "mwdj"


def test_scrolling_moves_the_other_planes_lines(reader):
    start = reader.planes()
    place = reader.text("#readout")
    reader.page.focus("#axial")
    reader.page.keyboard.press("PageUp")
    moved = reader.planes()
    assert all(a != b for a, b in zip(start, moved, strict=True))  # a new slice, and lines that moved
    assert reader.text("#readout") != place
    reader.page.keyboard.press("PageDown")
    assert reader.planes() == start
    reader.page.keyboard.press("ArrowRight")
    assert reader.text("#readout") != place
    reader.page.keyboard.press("Home")
    assert reader.planes() == start
    box = reader.page.locator("#coronal").bounding_box()
    reader.page.mouse.move(box["x"] + 50, box["y"] + 50)
    reader.page.mouse.wheel(0, -100)
    reader.page.wait_for_timeout(50)
    assert reader.planes() != start


def test_keys_and_clicks_move_the_cross_hair(reader):
    def place() -> list[float]:
        return [float(v) for v in reader.text("#readout dd").split(",")]

    left, posterior, superior = place()
    reader.page.focus("#axial")
    for key in ("ArrowRight", "ArrowDown", "PageUp"):
        reader.page.keyboard.press(key)
    assert place() == pytest.approx([left + 6.0, posterior + 6.0, superior + 7.0], abs=0.11)
    reader.page.focus("#coronal")
    reader.page.keyboard.press("ArrowUp")
    assert place()[2] == pytest.approx(superior + 14.0, abs=0.11)
    box = reader.page.locator("#axial").bounding_box()
    reader.page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.5)
    # Right of the body is on the left of the picture: LPS x is negative there.
    assert float(reader.text("#readout dd").split(",")[0]) < -20.0
    box = reader.page.locator("#coronal").bounding_box()
    reader.page.mouse.click(box["x"] + box["width"] * 0.75, box["y"] + box["height"] * 0.2)
    left, _, superior = (float(v) for v in reader.text("#readout dd").split(","))
    assert left > 20.0
    assert superior > 20.0


def test_structures_help_and_colours_of_a_page(fresh):
    """Structures are hidden and found, the help lists the keys, every input has a name, and the page can be dark."""
    with_all = fresh.planes()
    for box in fresh.page.locator("table [data-show]").all():
        box.uncheck()
    without = fresh.planes()
    assert without != with_all
    fresh.press("13")
    assert fresh.planes() == without
    place = fresh.text("#readout")
    fresh.page.locator('table [data-go="4"]').click()
    assert fresh.text("#readout") != place
    assert "=HYPERLINK(1)" in fresh.text("#readout")
    assert not fresh.page.is_visible("#key-help")
    fresh.press("?")
    assert fresh.page.is_visible("#key-help")
    assert fresh.page.get_attribute("#keys", "aria-expanded") == "true"
    script = """() => [...document.querySelectorAll('input, select, textarea, button, canvas[tabindex]')].filter((e) =>
        !(e.labels && e.labels.length && e.labels[0].textContent.trim()) && !e.ariaLabel && !e.textContent.trim()
    ).map((e) => e.outerHTML)"""
    assert fresh.page.evaluate(script) == []
    ink = "getComputedStyle(document.documentElement).color"
    light = fresh.page.evaluate(ink)
    fresh.page.click("#theme")
    dark = fresh.page.evaluate(ink)
    assert dark != light
    fresh.page.click("#theme")
    assert fresh.page.evaluate(ink) == light
    fresh.page.emulate_media(color_scheme="dark")
    fresh.page.evaluate("delete document.documentElement.dataset.theme")
    assert fresh.page.evaluate(ink) == dark


def test_paper_has_what_is_read_and_not_what_developers_read(fresh):
    """Printing opens folded parts but for explanations and the developers', which are left out; six pages at most."""
    fresh.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    opened = fresh.page.evaluate("[...document.querySelectorAll('main details[open]')].map((e) => e.className)")
    assert not {"help", "screen"} & set(opened)
    fresh.page.evaluate("dispatchEvent(new Event('afterprint'))")
    fresh.page.emulate_media(media="print")
    assert not any(part.is_visible() for part in fresh.page.locator("details.screen").all())
    assert fresh.page.locator("#structures").is_visible()
    assert 1 <= len(re.findall(rb"/Type /Page\b", fresh.page.pdf(format="A4"))) <= 6


def test_sign_off_is_exported_as_a_table(fresh, result_folder, tmp_path):
    """Only a whole review can be exported; it names the transform and is read as `# key: value` and three columns."""
    button = fresh.page.locator("#signoff button")
    button.click()
    assert fresh.page.locator("#tsv").is_hidden()
    assert "6 of 6 without a grade, no name" in fresh.text("#missing")
    assert fresh.page.input_value("[name=date]") != ""
    for n in range(6):
        fresh.page.select_option(f"[name=grade-{n}]", str(n % 5))
    fresh.page.fill("[name=reviewer]", "  ")
    button.click()
    assert fresh.page.locator("#tsv").is_hidden()
    fresh.page.fill("[name=reviewer]", "A. Reader")
    fresh.page.fill("[name=date]", "2026-11-15")
    fresh.page.fill("[name=comment-3]", "=1+1\ttab")
    fresh.page.fill("[name=comment-4]", '"# a\u2028b\x85c\x0cd')
    assert fresh.text("#missing") == ""
    with fresh.page.expect_download() as wait:
        button.click()
    assert wait.value.suggested_filename.startswith("signoff-")
    assert wait.value.suggested_filename.endswith("-to-page0_fixed-2026-11-15.tsv")
    wait.value.save_as(tmp_path / "signoff.tsv")
    text = (tmp_path / "signoff.tsv").read_text(encoding="utf-8")
    assert fresh.page.input_value("#tsv") == text
    lines = text.splitlines()
    head = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    assert head["transform_sha256"] == hashlib.sha256((result_folder / "transform.h5").read_bytes()).hexdigest()
    assert (head["reviewer"], head["date"]) == ("A. Reader", "2026-11-15")
    assert len(head["fixed_sha256"]) == len(head["moving_sha256"]) == 64
    table = [line for line in lines if not line.startswith("# ")]
    rows = list(csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert list(rows[0]) == ["structure", "grade", "comment"]
    assert [row["grade"] for row in rows] == ["0", "1", "2", "3", "4", "0"]
    assert rows[0]["structure"] == "<img src=x onerror=window.hacked=1>"
    assert rows[3]["structure"] == "'=HYPERLINK(1)"
    assert rows[3]["comment"] == "'=1+1 tab"
    assert rows[4]["comment"] == '"# a b c d'
    signed = read_signoff(tmp_path / "signoff.tsv")
    assert require_match(signed, [Reviewable.read(result_folder)], "signoff.tsv").folder == result_folder


def test_leaving_with_an_unfinished_review_is_asked_about(opened):
    reader = opened()
    asked = []
    reader.page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    reader.page.reload()
    assert asked == []
    reader.ready()
    reader.page.fill("[name=reviewer]", "A. Reader")
    reader.page.reload()
    assert asked == ["beforeunload"]


def test_landmarks_are_placed_by_clicks_and_exported(fresh, tmp_path):
    """A place in the fixed image, another in the moving one; the files are read back by the program."""
    fresh.page.click("#new-point")
    assert fresh.page.is_disabled("#keep-point")
    assert fresh.page.locator("#keep-point").bounding_box()["y"] < fresh.page.locator("#axial").bounding_box()["y"]
    box = fresh.page.locator("#axial").bounding_box()
    fresh.page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    fixed = [float(v) for v in fresh.text("#readout dd").split(",")]
    fresh.page.click("#keep-point")
    assert "moving" in fresh.text("figcaption .what")
    box = fresh.page.locator("#axial").bounding_box()
    fresh.page.mouse.click(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.5)
    fresh.page.click("#keep-point")
    assert "P1" in fresh.text("#placed")
    found = {}
    for kind in ("fixed", "moving"):
        with fresh.page.expect_download() as wait:
            fresh.page.click(f"#export-{kind}")
        wait.value.save_as(tmp_path / f"{kind}.mrk.json")
        found[kind] = tmp_path / f"{kind}.mrk.json"
    first, second, names = read_point_pairs(found["fixed"], found["moving"])
    assert names == ["P1"]
    assert first[0] == pytest.approx(fixed, abs=3.6)  # clicks are finer than voxels
    shift = second[0] - first[0]
    assert 3.0 < shift[0] < 30.0
    assert shift[1:] == pytest.approx([0, 0], abs=0.01)  # no start in this registration, the same plane
    told = fresh.text("#placed tbody td:nth-of-type(3)").split(" → ")
    assert float(told[0]) == pytest.approx(np.linalg.norm(shift), abs=0.02)
    assert fresh.said == []


def test_nothing_is_cut_off_on_a_tablet(opened):
    reader = opened(viewport={"width": 820, "height": 1180}, has_touch=True)
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= 820
    assert reader.page.locator(".change").first.is_hidden()  # its two numbers stay, and so do the last columns
    before = reader.planes()
    box = reader.page.locator("#axial").bounding_box()
    reader.page.touchscreen.tap(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.4)
    assert reader.planes() != before


def test_pictures_take_the_place_of_the_viewer(browser, result_folder):
    for how in ["no script", "no decompression"]:
        context = browser.new_context(java_script_enabled=how != "no script")
        context.add_init_script("delete window.DecompressionStream")
        page = context.new_page()
        page.goto((result_folder / "report.html").as_uri())
        if how == "no decompression":
            page.wait_for_selector("html[data-viewer=failed]")
            assert "cannot run the viewer" in page.inner_text("#viewer-note")
        assert page.locator("#pictures img").count() == 9
        assert page.locator("#pictures img").first.is_visible()
        assert not page.is_visible("#viewer")
        if how == "no decompression":
            assert page.evaluate("[...document.images].every((i) => i.naturalWidth > 0)")
        context.close()
