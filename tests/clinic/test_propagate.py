"""Contours of a phantom with a known map, from series to folder."""

import base64
import hashlib
import json
import re
import shutil
import zlib
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from playwright.sync_api import sync_playwright

from regweave.cli import main
from regweave.clinic.commission import (
    COUCH_MM,
    ORGANS,
    PhantomTrial,
    even_slices,
    inner_points,
    judged,
    make_scan,
    measured,
    smooth_map,
    trials,
)
from regweave.clinic.propagate import ContoursJob, propagate_contours, write_contours
from regweave.clinic.structures import kinds_done
from regweave.contours import volume_ml
from regweave.errors import RegweaveError, RegweaveWarning, UsageError
from regweave.io import read_labels, write_points
from regweave.report.registration import write_page
from regweave.run.result import load
from regweave.types import Field, Transform

WHERE = smooth_map(3, 6.0)
STILL = np.eye(4)
STILL[:3, 3] = -np.asarray(COUCH_MM)


@pytest.fixture(scope="module")
def scans():
    plan = make_scan(lambda p: p, shift_mm=(0.0, 0.0, 0.0), along_mm=even_slices(), name="PLAN", seed=0)
    return plan, make_scan(WHERE, shift_mm=COUCH_MM, along_mm=even_slices(), name="TODAY", seed=1)


@pytest.fixture(scope="module")
def folder(scans, tmp_path_factory):
    plan, today = scans
    where = tmp_path_factory.mktemp("clinic") / "out"
    stages = []
    points = inner_points(8.0, 12, 5)
    job = ContoursJob(
        plan.series, today.series, rtstruct=plan.structures, name_map={"gland-like": "gland"}, progress=False,
        fixed_points=points + np.asarray(COUCH_MM), moving_points=WHERE(points), both_ways=True,
        on_stage=lambda stage, words, share: stages.append((stage, share)),
    )  # fmt: skip
    write_contours(job, where)
    return where, stages


def test_contours_meet_the_true_outlines(scans, folder):
    _plan, today = scans
    record = json.loads((folder[0] / "result.json").read_text())
    assert record["clinic"]["whole"]["start"] == "rigid"
    done = load(folder[0])
    points = inner_points(8.0, 200, 2)
    errors = np.linalg.norm(done.transform(points + np.asarray(COUCH_MM)) - WHERE(points), axis=1)
    assert errors.mean() < 1.5
    rows = {row["name"]: row for row in record["clinic"]["structures"]}
    assert set(rows) == set(ORGANS)
    for true in today.structures.structures:
        assert rows[true.name]["volume_today_ml"] == pytest.approx(volume_ml(true, today.series), rel=0.2)


def test_the_folder_holds_what_is_promised_on_the_grid_of_todays_scan(folder, scans):
    where, _ = folder
    objects = {"rtstruct.dcm", "registration.dcm", "transform.h5"}
    assert objects | {"report.html", "result.json", "warped_labels.nii.gz"} <= {path.name for path in where.iterdir()}
    section = json.loads((where / "result.json").read_text())["clinic"]
    assert section["transform_sha256"] == hashlib.sha256((where / "transform.h5").read_bytes()).hexdigest()
    assert section["grid_error_mm"] < 3.0
    stated = json.loads((where / "report.html").read_text().split('id="signoff-data">')[1].split("</script>")[0])
    assert stated["record"]["rtstruct_sha256"] == hashlib.sha256((where / "rtstruct.dcm").read_bytes()).hexdigest()
    where, _ = folder
    grid = scans[1].series.image.geometry
    labels = read_labels(where / "warped_labels.nii.gz")
    assert labels.geometry.shape == grid.shape
    np.testing.assert_allclose(labels.geometry.affine, grid.affine, atol=1e-4)
    assert set(labels.values()) == {one.number for one in scans[0].structures.structures}
    for true in scans[1].structures.structures:
        found = float((labels.data == true.number).sum() * np.prod(grid.spacing_mm) / 1e3)
        assert found == pytest.approx(volume_ml(true, scans[1].series), rel=0.25)
    assert load(where).warped_labels.geometry.shape == load(where).fixed.geometry.shape
    names = json.loads((where / "view" / "view.json").read_text())["names"].values()
    assert "gland" in names
    assert "gland-like" not in names
    before = (where / "report.html").read_text()
    write_page(where)
    assert (where / "report.html").read_text() == before


def test_the_page_has_what_nobody_has_approved_or_tested_and_every_structure(folder):
    text = (folder[0] / "report.html").read_text()
    assert "UNAPPROVED – needs review by a qualified person" in text
    assert ">gland<" in text
    assert "PMC6036411" in text
    record = (folder[0] / "result.json").read_text()
    for secret in ("PHANTOM", "1.2.4.1", "1.2.5.0"):
        assert secret not in text
        assert secret not in record
    page = (folder[0] / "report.html").read_text()
    assert re.search(r'"words": ?{"fixed": ?"today", ?"moving": ?"plan"', page)
    assert ">Today</button>" in page
    undone = page.split("<b>Not tested here:</b>")[1].split("</p>")[0]
    assert "digital phantoms" in undone
    assert "physical phantom" in undone
    assert "Jacobian" not in undone
    text = (folder[0] / "report.html").read_text()
    names = [row["name"] for row in json.loads((folder[0] / "result.json").read_text())["clinic"]["structures"]]
    called = ["gland" if name == "gland-like" else name for name in names]
    for name in called:
        assert f'aria-label="Grade of {name}"' in text
        assert text.count(f'alt="{name}, axial"') == text.count(f'alt="{name}, coronal"') == 1
        assert f'aria-label="Go to {name}"' in text
    assert "<h1>Contours of the plan on today's scan</h1>" in text
    assert "start: rigid" in text


@pytest.fixture(scope="module")
def overlapping(folder, tmp_path_factory):
    """The folder again with the target moved onto the border of the liver, its page and its structure set."""
    where = shutil.copytree(folder[0], tmp_path_factory.mktemp("overlap") / "out")
    data = pydicom.dcmread(where / "rtstruct.dcm")
    numbers = {roi.ROIName: roi.ROINumber for roi in data.StructureSetROISequence}
    for drawing in data.ROIContourSequence:
        if drawing.ReferencedROINumber == numbers["target-like"]:
            for contour in drawing.ContourSequence:
                moved = np.add(np.reshape(np.array(contour.ContourData, dtype=float), (-1, 3)), (-14.0, 8.0, 0.0))
                contour.ContourData = [f"{value:.3f}" for value in moved.ravel()]
    data.save_as(where / "rtstruct.dcm")
    write_page(where)
    return where, data


def test_the_page_draws_the_polygons_of_the_structure_set_and_no_label_map(overlapping):
    """All polygons of the file, in its order and colours, within the rounding of the page: nothing is cut."""
    where, data = overlapping
    text = (where / "report.html").read_text()
    shown = json.loads(re.search(r'id="view-data">(.*?)</script>', text).group(1))
    assert shown["labels"] == {}
    assert "Drawn are the contours of rtstruct.dcm" in text
    drawn = shown["contours"]
    rings, points = (
        np.frombuffer(zlib.decompress(base64.b64decode(drawn[key]["data"])), "<i4") for key in ("rings", "points")
    )
    in_plane = [axis for axis in range(3) if axis != drawn["axis"]]
    places = np.cumsum(points.reshape(-1)).reshape(2, -1).T * drawn["unit"] / np.array(shown["spacing"])[in_plane]
    affine, first = np.array(shown["affine"]), 0
    wanted = [
        (roi, contour) for roi in data.ROIContourSequence for contour in roi.ContourSequence
        if contour.ContourGeometricType == "CLOSED_PLANAR"
    ]  # fmt: skip
    assert len(rings) == 3 * len(wanted)
    rows = {row["code"]: row for row in shown["structures"]}
    names = {roi.ROINumber: roi.ROIName for roi in data.StructureSetROISequence}
    for (code, k, count), (roi, contour) in zip(rings.reshape(-1, 3), wanted, strict=True):
        voxels = np.insert(places[first : first + count], drawn["axis"], drawn["slices"][k], axis=1)
        first += count
        mm = voxels @ affine[:3, :3].T + affine[:3, 3]
        np.testing.assert_allclose(mm, np.reshape(np.array(contour.ContourData, float), (-1, 3)), atol=0.006)
        assert rows[code]["name"] == names[roi.ReferencedROINumber]
        assert rows[code]["colour"] == "#{:02x}{:02x}{:02x}".format(*roi.ROIDisplayColor)


def test_a_structure_set_that_cannot_be_read_makes_no_page_and_without_it_labels_are_drawn(folder, tmp_path):
    where = shutil.copytree(folder[0], tmp_path / "copy")
    path = where / "rtstruct.dcm"
    for damaged, code in (
        (path.read_bytes()[:2000], "E102"),
        (b"{}", "E103"),
        ((where / "registration.dcm").read_bytes(), "E164"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(RegweaveError, match=code):
            write_page(where)
    path.unlink()
    write_page(where)
    text = (where / "report.html").read_text()
    assert "The contours of the structure set are not drawn here" in text
    assert "Drawn are the contours" not in text


def test_a_browser_paints_the_border_of_a_structure_inside_another(overlapping):
    """In today's slice and in the two planes across it; and every structure is named where several lie."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser on this machine")
    where, data = overlapping
    with sync_playwright() as play:
        window = play.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = window.new_page(viewport={"width": 1400, "height": 1000})
        page.goto((where / "report.html").as_uri())
        page.wait_for_selector("html[data-viewer=ready]", state="attached")
        found = page.evaluate(PAINTED)
        window.close()
    assert found["drawn"] == len(data.ROIContourSequence)
    assert found["stops"] > 10
    for plane, share in found["planes"].items():
        assert share == 1.0, plane
    assert {"liver-like", "target-like"} <= set(found["here"].split(", "))
    assert found["named"] == 1.0


PAINTED = """() => {
  const v = viewer, liver = v.data.structures.find((s) => s.name === "liver-like");
  const target = v.data.structures.find((s) => s.name === "target-like");
  v.shown = new Set([liver.code, target.code]);
  Object.assign(v.state, { cross: false, map: "none", zoom: 1 });
  const out = { planes: {}, drawn: new Set(v.drawn.after.rings.map((ring) => ring.code)).size };
  out.stops = v.stops[v.drawn.after.axis].length;
  v.go(target.centre);
  let right = 0, asked = 0;
  for (const plane of v.planes) {
    // Middles of pieces of the liver's border inside the target: each is painted in the colour of the liver or target.
    // A line that covers half a pixel mixes with what is below it; greys are at least 70 from both colours.
    const pieces = v.drawn.after.section(plane, v.position, v.shown).get(liver.code), all = [];
    const frame = v.frame(plane), context = plane.canvas.getContext("2d");
    for (let n = 0; n < pieces.length; n += 4) {
      const place = [...v.position];
      place[plane.across] = (pieces[n] + pieces[n + 2]) / 2;
      place[plane.down] = (pieces[n + 1] + pieces[n + 3]) / 2;
      if (!v.drawn.after.at(place).includes(target.code)) continue;
      const [x, y] = frame.place(place[plane.across], place[plane.down]).map(Math.floor);
      const round = context.getImageData(x - 1, y - 1, 3, 3).data;
      const near = Array.from({ length: 9 }, (_, k) => [...round.slice(4 * k, 4 * k + 3)]);
      const apart = (hex) => Math.min(...near.map((p) => Math.max(...rgb(hex).map((c, k) => Math.abs(c - p[k])))));
      all.push(Math.min(apart(liver.colour), apart(target.colour)) < 60);
    }
    out.planes[plane.name] = all.length ? all.filter(Boolean).length / all.length : 0;
    // A place is inside where a line from it crosses the border an odd number of times.
    const outline = v.drawn.after.section(plane, v.position, v.shown);
    for (let n = 0; n < 400; n++) {
      const place = [...v.position];
      place[plane.across] = ((n * 0.6180339887) % 1) * v.shape[plane.across] + 1e-4;
      place[plane.down] = ((n * 0.7548776662) % 1) * v.shape[plane.down] + 1e-4;
      const within = v.drawn.after.at(place);
      for (const { code } of [liver, target]) {
        const p = outline.get(code) ?? [];
        let odd = false;
        for (let m = 0; m < p.length; m += 4) {
          const [a, b] = p[m + 1] < p[m + 3] ? [m, m + 2] : [m + 2, m];
          if (p[a + 1] <= place[plane.down] && place[plane.down] < p[b + 1]) {
            const t = (place[plane.down] - p[a + 1]) / (p[b + 1] - p[a + 1]);
            if (p[a] + t * (p[b] - p[a]) < place[plane.across]) odd = !odd;
          }
        }
        asked += 1;
        right += odd === within.includes(code);
      }
    }
  }
  const slice = v.drawn.after.slice(v.position[2]), [a, b] = liver.centre;
  const { both: [x, y] } = v.drawn.after.rings.find((r) => r.code === liver.code && r.slice === slice);
  const inner = Array.from(x, (_, n) => [0.97 * x[n] + 0.03 * a, 0.97 * y[n] + 0.03 * b, v.position[2]]);
  v.position = inner.find((place) => v.drawn.after.at(place).length === 2) ?? v.position;
  out.here = v.facts().find(([name]) => name === "structures here")[1];
  out.named = right / asked;
  return out;
}"""


def test_landmarks_and_both_directions_are_measured_and_progress_never_runs_backwards(folder):
    record = json.loads((folder[0] / "result.json").read_text())
    whole = record["clinic"]["whole"]
    assert 0 < whole["both_ways_mean_mm"] < 2.0
    assert whole["both_ways_max_mm"] >= whole["both_ways_p95_mm"] >= whole["both_ways_mean_mm"]
    assert len(record["landmarks"]["points"]) == 12
    states = {row["kind"]: row["state"] for row in record["clinic"]["tests"]}
    assert states["H"].startswith("computed here: a second registration")
    assert "both_ways_voxels" not in record["verdict"]["unchecked"]
    shares = [share for _, share in folder[1]]
    assert len({share for stage, share in folder[1] if stage == "start"}) >= 5  # it moves where it takes long
    assert shares == sorted(shares)
    assert next(s for s, _ in folder[1]) == "series"
    assert folder[1][-1][0] == "files"


def test_landmarks_and_rules_given_later_are_judged_on_page_and_in_record(folder, tmp_path):
    where = shutil.copytree(folder[0], tmp_path / "out")
    record = json.loads((where / "result.json").read_text())
    del record["landmarks"]
    record["clinic"]["tests"] = [one.model_dump() for one in kinds_done(both_ways=True)]
    record["verdict"]["unchecked"] += ["landmark_mean_mm"]
    (where / "result.json").write_text(json.dumps(record))
    none_given = "landmarks (none given: --fixed-points, --moving-points)"
    assert none_given in write_page(where).read_text()
    points = inner_points(8.0, 12, 5)
    write_points(tmp_path / "f.csv", points + np.asarray(COUCH_MM))
    write_points(tmp_path / "m.csv", WHERE(points) + np.array([30.0, 0.0, 0.0]))
    points_of = ("--fixed-points", str(tmp_path / "f.csv"), "--moving-points", str(tmp_path / "m.csv"))
    assert main(["report", str(where), *points_of]) == 0
    record = json.loads((where / "result.json").read_text())
    assert record["landmarks"]["after_mm"]["mean"] == pytest.approx(30.0, abs=2.0)
    assert record["verdict"]["verdict"] == "fail"
    assert {row["kind"]: row["state"] for row in record["clinic"]["tests"]}["E"] == "computed here"
    page = (where / "report.html").read_text()
    assert "mean error of the landmarks: " in page
    assert none_given not in page
    assert "landmarks: target registration error" not in page.split("<b>Not tested here:</b>")[1].split("</p>")[0]
    (tmp_path / "ours.toml").write_text('name = "ours"\n[structure_volume_percent]\nfail = -1\n')
    assert main(["report", str(where), "--rules", str(tmp_path / "ours.toml")]) == 0
    record = json.loads((where / "result.json").read_text())
    assert {row["flag"] for row in record["clinic"]["structures"]} == {"fail"}
    assert "Limits and their sources (rules “ours”)" in (where / "report.html").read_text()
    assert len(record["landmarks"]["points"]) == 12


def test_contours_of_today_guide_and_are_told_apart(scans):
    plan, today = scans
    guides = replace(today.structures, structures=tuple(s for s in today.structures.structures if "liver" in s.name))
    with pytest.warns(RegweaveWarning, match=r"W252: .*cord-like: the fixed labels do not show it"):
        done = propagate_contours(
            plan.series, today.series, rtstruct=plan.structures, guide=guides, init=STILL, progress=False
        )
    assert list(done.result.provenance.guides.names.values()) == ["liver-like"]
    notes = {row.name: row.note for row in done.quality.structures}
    assert "guided by its contour on today's scan" in notes.pop("liver-like")
    assert not any("guided" in note for note in notes.values())
    assert done.result.guided_score.mean() > 0.95


def test_what_cannot_be_propagated_or_guide_is_refused(scans):
    plan, today = scans
    wrong = np.eye(4)
    wrong[:3, 3] = (25.0, 30.0, 0.0)
    with pytest.raises(RegweaveError, match="E167"):
        propagate_contours(plan.series, today.series, rtstruct=plan.structures, init=wrong, progress=False)
    plan, today = scans
    other = replace(today.series, identity=replace(today.series.identity, patient_id="someone else"))
    with pytest.raises(RegweaveError, match="E162") as caught:
        propagate_contours(plan.series, other, rtstruct=plan.structures, progress=False)
    assert "someone else" not in str(caught.value)
    plan, today = scans
    with pytest.raises(UsageError, match=r"E165.*'spleen'.*liver-like"):
        propagate_contours(plan.series, today.series, rtstruct=plan.structures, structures=["spleen"], progress=False)
    plan, today = scans
    other = replace(
        today.structures, structures=tuple(replace(s, name=f"other {s.number}") for s in today.structures.structures)
    )
    with pytest.raises(RegweaveError, match=r"E126|E130"):
        propagate_contours(plan.series, today.series, rtstruct=plan.structures, guide=other, init=STILL, progress=False)
    with pytest.raises(RegweaveError, match="E101"):
        propagate_contours(plan.series, today.series, rtstruct=plan.structures, guide="nothing.dcm", progress=False)


def test_the_true_map_passes_a_trial_and_no_map_fails_it(scans):
    plan, today = scans
    trial = PhantomTrial("t", "t", WHERE)
    grid = today.series.image.geometry
    index = np.stack(np.meshgrid(*(np.arange(float(n)) for n in grid.shape), indexing="ij"), axis=-1).reshape(-1, 3)
    points = grid.points(index)
    truth = (WHERE(points - np.asarray(COUCH_MM)) - points).T.reshape(3, *grid.shape).astype(np.float32)
    words = {}
    for name, field in (("true", Field(truth, grid)), ("none", Field.zero(grid))):
        done = _Done(Transform(field), plan, today)
        words[name] = judged(trial, measured(trial, done, today))["word"]
    assert words == {"true": "pass", "none": "fail"}


class _Done:
    """A propagation by a map that is handed over."""

    def __init__(self, transform, plan, today):
        from types import SimpleNamespace

        from regweave.contours import carry, shape_of

        self.transform = transform
        self.result = SimpleNamespace(regularity={"folding_fraction": 0.0}, seconds={})
        self._found = {
            s.name: carry(shape_of(s, plan.series), transform, today.series) for s in plan.structures.structures
        }
        self.structures = SimpleNamespace(named=self._found.get)


def test_trials_are_the_same_maps_and_count_only_slices_of_the_plan(scans):
    points = inner_points(8.0, 20, 1)
    for one, again in zip(trials(4), trials(4), strict=True):
        np.testing.assert_array_equal(one.where(points), again.where(points))
    from regweave.clinic.commission import _beyond_plan

    cord = next(s for s in scans[1].structures.structures if s.name == "cord-like")
    moved = _beyond_plan(cord, lambda p: p + np.array([0.0, 0.0, 7.0]))
    assert moved == {30, 31}
    assert _beyond_plan(cord, lambda p: p) == frozenset()


def test_the_protocol_begins_with_what_failed():
    from regweave.report.page import render

    good = {"points": 3, "mean_mm": 0.2, "p95_mm": 0.3, "max_mm": 0.4, "least_dice": 0.97, "dice": {"cord": 0.97},
            "folding_percent": 0.0, "seconds": 1.0}  # fmt: skip
    poor = good | {"least_dice": 0.8125}
    rows = [judged(PhantomTrial(name, name, WHERE, "rigid"), n) for name, n in (("still", good), ("moved", poor))]
    assert [row["word"] for row in rows] == ["pass", "fail"]
    record = {"seed": 0, "word": "fail", "trials": rows, "program": {"regweave": "0"}, "phantom": "made"}
    head = render("commission.j2", {"record": record, "digest": "0"}).split("<h2")[0]
    assert "1 of 2 phantoms pass" in head
    assert "moved: lowest Dice of an organ (at least) 0.8125, limit 0.95 (site" in head
    assert "still:" not in head
    assert re.search(r'row">still</th><td>still</td>.*?0\.20.*?0\.30.*?0\.40.*?0\.970.*?pass', head, re.DOTALL)
