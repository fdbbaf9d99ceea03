"""Sign-offs: bound to what was looked at, read as the page writes them, refused in plain words otherwise."""

import csv
import json
import shutil

import pytest

from regweave.cli import main
from regweave.errors import RegweaveError
from regweave.report.registration import write_page
from regweave.report.signoff import Reviewable, SignOff, collected, read_signoff, require_match, signoff_names


def facts(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    return json.loads(text.split('id="signoff-data">')[1].split("</script>")[0])


def export(folder, path, *, rows=None, **header):
    """Write what the script of the page writes, with other rows or lines of the header where they are given."""
    of = facts(folder)
    head = {**of["record"], "date": "2026-11-18", "reviewer": "A. Reader", **header}
    lines = [f"# {key}: {value}" for key, value in head.items() if value is not None]
    rows = [f"{name}\t4\t" for name in of["structures"]] if rows is None else rows
    path.write_text("\n".join([*lines, "structure\tgrade\tcomment", *rows]) + "\n", encoding="utf-8", newline="")
    return path


@pytest.fixture
def result(result_folder, tmp_path):
    return shutil.copytree(result_folder, tmp_path / "out")


@pytest.mark.parametrize("seen", ["rtstruct.dcm", "warped_labels.nii.gz", "warped.nii.gz"])
def test_a_review_counts_while_the_files_that_were_seen_stay_as_they_are(result, tmp_path, capsys, seen):
    if seen == "rtstruct.dcm":
        (result / seen).write_bytes(b"contours")
    if seen == "warped.nii.gz":
        for path in result.rglob("*labels.nii.gz"):
            path.unlink()
        record = json.loads((result / "result.json").read_text())
        record["provenance"]["inputs"] = {k: v for k, v in record["provenance"]["inputs"].items() if "labels" not in k}
        (result / "result.json").write_text(json.dumps(record))
    write_page(result)
    assert (facts(result)["structures"] == ["whole image"]) == (seen == "warped.nii.gz")
    path = export(result, tmp_path / "s.tsv")
    words = ["clinic", "signoff", str(path), "--result", str(result)]
    assert main(words) == 0
    assert "accepted by A. Reader on 2026-11-18" in capsys.readouterr().out
    before = (result / seen).read_bytes()
    (result / seen).write_bytes(before + b" moved by 20 mm")
    assert main(words) == 3
    assert (
        f"E145: '{path}' cannot be taken as a sign-off: {seen} of '{result}' is not what was" in capsys.readouterr().err
    )
    (result / seen).write_bytes(before)
    (result / "transform.h5").write_bytes(b"another")
    assert main(words) == 3
    assert "transform.h5" in capsys.readouterr().err


def test_of_two_results_with_one_transform_the_labels_decide(result, tmp_path):
    other = shutil.copytree(result, tmp_path / "other")
    (other / "rtstruct.dcm").write_bytes(b"other contours, same names")
    write_page(other)
    found = read_signoff(export(other, tmp_path / "s.tsv"))
    both = [Reviewable.read(result), Reviewable.read(other)]
    assert both[0].structures == both[1].structures
    assert require_match(found, both, "s.tsv").folder == other
    unbound = read_signoff(export(result, tmp_path / "u.tsv", warped_labels_sha256=None))
    with pytest.raises(RegweaveError, match=r"E145.*does not state warped_labels_sha256"):
        require_match(unbound, both[:1], "u.tsv")


def test_every_structure_of_the_page_has_one_grade(result, tmp_path):
    for change, why in [
        (lambda rows: rows[1:], r"1 structure \(.*\) without a grade"),
        (lambda rows: [*rows, "Liver\t4\t"], r"1 structure \(Liver\) not in the result"),
        (lambda rows: [*rows, rows[0]], "graded more than once"),
        (lambda rows: [*rows[1:], "# reviewer: Eve\t4\t"], "reviewer: Eve"),
        (lambda rows: [*rows[1:], rows[0].split("\t")[0]], "is not a structure, a grade and a comment"),
        (lambda rows: [*rows, ""], "is not a structure, a grade and a comment"),
        (lambda rows: [*rows, "a\t4\tb\tc"], "is not a structure, a grade and a comment"),
        (lambda rows: [*rows, "a\t９\t"], "no grade from 0 to 4"),
        (lambda rows: [], "grades no structure"),
    ]:
        rows = [f"{name}\t4\t" for name in facts(result)["structures"]]
        path = export(result, tmp_path / "s.tsv", rows=change(rows))
        with pytest.raises(RegweaveError, match=f"E145.*{why}"):
            require_match(read_signoff(path), [Reviewable.read(result)], path)


def test_no_comment_hides_a_row(result, tmp_path):
    for comment in ['"as drawn', "#", "first\u2028second", "a\x85b", "a\x0cb", "a\rb", "x" * 200_000, "\0"]:
        names = facts(result)["structures"]
        rows = [f"{name}\t{0 if n == 1 else 4}\t{comment}" for n, name in enumerate(names)]
        found = read_signoff(export(result, tmp_path / "s.tsv", rows=rows))
        assert found.word == "refused"
        assert [row[0] for row in found.unusable] == [names[1]]


def test_headers_and_files_that_are_no_sign_off_are_refused(result, tmp_path):
    for header in [
        {"reviewer": "  "},
        {"transform_sha256": None},
        {"date": "yesterday"},
        {"date": "2026-02-30"},
        {"date": "9999-99-99"},
        {"date": "٢٠٢٦-١١-١٨"},
        {"reviewer": "A\n# reviewer: B"},
        {"reviewer": "A\nB"},
    ]:
        with pytest.raises(RegweaveError, match="E145"):
            read_signoff(export(result, tmp_path / "s.tsv", **header))
    for content in [b"", b"<html>", b"{}", "structure\t4".encode("utf-16"), b"structure\tgrade\tcom\xe9"]:
        (tmp_path / "s.tsv").write_bytes(content)
        with pytest.raises(RegweaveError, match="E145"):
            read_signoff(tmp_path / "s.tsv")


def test_a_result_that_is_damaged_has_a_code(result, tmp_path, capsys):
    path = export(result, tmp_path / "s.tsv")
    text = '<script type="application/json" id="signoff-data">[1]</script>'
    for name, content, code in (
        *(("report.html", damage, "E145") for damage in ("", "<html>", text)),
        ("result.json", "[]", "E102"), ("result.json", "{", "E102"), ("result.json", '{"clinic": [1]}', "E178"),
    ):  # fmt: skip
        (result / name).write_text(content)
        assert main(["clinic", "signoff", str(path), "--result", str(result)]) == 3
        assert f"error {code}" in capsys.readouterr().err


def test_names_are_cells_and_each_is_one_structure():
    names = ["#1 node", '"Q" left', "=1+1", "A", "A", "a\tb\u2028c"]
    rows = [{"name": name, "label": n} for n, name in enumerate(names)]
    assert signoff_names(rows) == ["#1 node", '"Q" left', "'=1+1", "A (label 3)", "A (label 4)", "a b c"]


def test_the_table_of_reviews_runs_no_formula_and_breaks_no_line(result, tmp_path):
    rows = [f"{name}\t1\t@SUM(A1)\x0b\u2028=2" for name in facts(result)["structures"]]
    path = export(result, tmp_path / "s.tsv", rows=rows, reviewer='=HYPERLINK("http://x")\x1b[2J')
    words = ["clinic", "signoff", str(path), "--result", str(result), "-o", str(tmp_path / "all.tsv")]
    assert main(words) == 1
    lines = (tmp_path / "all.tsv").read_text(encoding="utf-8").splitlines()
    table = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len(table) == 1 + len(rows)
    assert {len(row) for row in table} == {10}
    assert not [cell for row in table for cell in row if cell[:1] in "=+@-" or not cell.isprintable()]


def test_a_long_review_reads_each_row_once(tmp_path):
    """With the verdict worked out for each row this takes minutes."""
    names = tuple(f"S{n}" for n in range(100_000))
    hashes = {"transform_sha256": "a", "warped_sha256": "b"}
    head = "# reviewer: A\n# date: 2026-11-18\n# transform_sha256: a\n# warped_sha256: b\nstructure\tgrade\tcomment\n"
    (tmp_path / "s.tsv").write_text(head + "".join(f"{name}\t4\t\n" for name in reversed(names)))
    found, of = read_signoff(tmp_path / "s.tsv"), Reviewable(tmp_path, hashes, names)
    assert require_match(found, [of], "s.tsv") == of
    assert collected([(found, of)]).count("accepted") == 100_000
    assert SignOff({}, (("a", "4", ""), ("b", "1", ""))).word == "refused"
