"""The text for a methods section says what the record says."""

import json

from regweave.cli import main


def test_the_text_names_settings_members_steps_and_papers(result_folder, capsys, tmp_path):
    assert main(["report", str(result_folder), "--boilerplate"]) == 0
    text = capsys.readouterr().out
    record = json.loads((result_folder / "result.json").read_text())
    table = record["weights"]
    used = [name for name, row in zip(table["members"], table["matrix"], strict=True) if max(row) > 0]
    assert f"settings {record['provenance']['settings']['name']}" in text
    assert f"aggregates {', '.join(used)}" in text
    assert f"{len({s['spacing_mm'] for s in record['steps']})} levels" in text
    assert "[1] Ferrante" in text
    assert "[2]" in text
    record = json.loads((result_folder / "result.json").read_text())
    record["provenance"]["settings"]["engine"] = "mine"
    (tmp_path / "result.json").write_text(json.dumps(record))
    assert main(["report", str(tmp_path), "--boilerplate"]) == 0
    text = capsys.readouterr().out
    assert "solved by MINE [1]," in text
    assert "[2]" not in text
    (tmp_path / "result.json").unlink()
    assert main(["report", str(tmp_path), "--boilerplate"]) == 3
    assert "E101" in capsys.readouterr().err
