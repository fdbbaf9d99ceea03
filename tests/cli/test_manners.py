"""How the program behaves in a terminal and in a pipe: help, widths, colours, JSON, completion."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from regweave import errors
from regweave.cli import app as program, main
from regweave.cli.app import WIDTH
from regweave.cli.tables import terminal_text, text_table
from regweave.io import read_transform, write_image, write_labels, write_transform
from regweave.io.transforms.files import write_linear
from regweave.types import Field, Geometry, LabelMap, Transform, Volume


def commands():
    """Every command by its words, groups left out."""
    found = {}
    for name in program.COMMANDS:
        command = program.load_command(name)
        members = getattr(command, "commands", None)
        found |= {name: command} if members is None else {f"{name} {k}": v for k, v in members.items()}
    return found


COMMANDS = commands()


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


@pytest.mark.usefixtures("narrow")
def test_help_fits_80_columns_and_is_plain(capsys):
    for name in ("", "warp", "clinic", "presets", "models", *program.GROUPS, *COMMANDS):
        assert main([*name.split(), "--help"]) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= WIDTH, name
        assert "\x1b" not in text, name
        assert "…" not in re.sub(r"gz …\)", "", text), name  # no summary is cut
        assert ("Examples" in text) == (name == "" or name in COMMANDS), name
        assert ("Exit status:" in text) == (name == ""), name


@pytest.mark.usefixtures("narrow")
def test_help_shows_the_usual_options_on_one_screen_and_help_all_shows_every_one(capsys):
    shown = {}
    for name, number in (("register", 14), ("train", 13), ("batch", 14), ("evaluate", 14), ("contours", 14)):
        for word in ("--help", "--help-all"):
            assert main([name, word]) == 0
            shown[name, word] = capsys.readouterr().out
        usual, every = (
            set(re.findall(r"^│ *[*]? *(--[a-z-]+)", shown[name, w], re.M)) for w in ("--help", "--help-all")
        )
        options = {o for p in COMMANDS[name].params for o in p.opts if o.startswith("--")}
        assert every == options | {"--help"}
        assert len(usual) == number + 1
        assert usual < every
    lines = shown["register", "--help"].splitlines()
    assert len(lines) <= 50
    assert [line.split()[1:4] for line in lines if "[required]" in line] == [["*", "--output", "-o"]]


@pytest.mark.usefixtures("narrow")
def test_the_list_has_sixteen_commands_and_groups_reach_the_others(capsys):
    assert main(["register", "a", "b"]) == 2
    assert "regweave register -o FOLDER [OPTIONS]" in capsys.readouterr().err
    assert main(["regster"]) == errors.EXIT_USAGE
    found = capsys.readouterr()
    assert (found.out, "register" in found.err, "\x1b" in found.err) == ("", True, False)
    stated = {int(line.split()[0]) for line in program.EXIT_STATUS.splitlines()[1:]}
    assert stated == {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert main(["--help"]) == 0
    shown = re.findall(r"^│ ([a-z]+) ", capsys.readouterr().out, re.M)
    grouped = {name: group for group, (members, _) in program.GROUPS.items() for name in members.split()}
    assert len(shown) <= 16
    assert {*shown} == {*program.GROUPS, *program.COMMANDS} - {*grouped}
    for name, group in grouped.items():
        answers = []
        for words in ([name], [group, name]):
            assert main([*words, "--help"]) == 0
            answers.append(re.sub(r"Usage:.*", "", capsys.readouterr().out))
        assert answers[0] == answers[1], name
    assert main(["show", "presets", "list"]) == 0
    assert "default" in capsys.readouterr().out


def test_every_example_is_a_call_that_the_command_understands():
    for name, command in COMMANDS.items():
        calls = [line.strip().removeprefix("regweave ") for line in command.epilog.splitlines()[1:]]
        assert calls, name
        for call in calls:
            assert len(call) <= WIDTH - 2 - len("regweave "), call
            words = call.partition(">")[0].split()
            assert words[: len(name.split())] == name.split(), call
            command.make_context(name, words[len(name.split()) :])  # raises on an unknown or missing word


def test_options_stand_in_known_panels_and_commands_in_those_of_the_list():
    assert [name for name, command in COMMANDS.items() if "as_json" not in {p.name for p in command.params}] == []
    panels = {p.rich_help_panel for command in COMMANDS.values() for p in command.params}
    assert panels == {None, "Input", "Method", "Machine"}
    assert [*dict.fromkeys(panel for _, panel, _ in program.COMMANDS.values())] == [
        "Register", "Clinic", "Studies", "Look", "Learn", "Files", "Program",
    ]  # fmt: skip
    assert max(len(summary) for _, _, summary in program.COMMANDS.values()) <= 60


def test_the_list_and_the_version_load_no_command():
    code = "import sys; from regweave.cli import main; main([{!r}]); print(*sys.modules)"
    for word, heavy in (("--version", []), ("--help", ["rich"])):
        told = subprocess.run([sys.executable, "-c", code.format(word)], capture_output=True, text=True, check=True)
        loaded = told.stdout.splitlines()[-1].split()
        assert [name for name in ("numpy", "pydantic", "rich") if name in loaded] == heavy


def run(*words, **environment):
    command = [sys.executable, "-c", "import sys; from regweave.cli import main; sys.exit(main())", *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


COMPLETED = """
import io, os, sys
from contextlib import redirect_stdout, suppress
from regweave.cli import main
os.environ["_REGWEAVE_COMPLETE"] = "complete_bash"
for line in sys.argv[1:]:
    os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        main([])
    print(*out.getvalue().split())
"""


def test_completion_script_and_answers():
    script = run(_REGWEAVE_COMPLETE="source_bash")
    assert script.returncode == 0
    assert "complete -o default -F _regweave_completion" in script.stdout
    lines = {
        "regweave ev": "evaluate", "regweave presets show pa": "paper paper@1",
        "regweave register --model head": "head-neck-ct",
    }  # fmt: skip
    found = subprocess.run([sys.executable, "-c", COMPLETED, *lines], capture_output=True, text=True, check=False)
    assert found.stdout.splitlines() == [*lines.values()], found.stderr


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    geometry = Geometry((20, 20, 20), np.diag([-4.0, -4.0, 4.0, 1.0]))
    where = np.indices(geometry.shape).astype(float)
    for name, shift in (("fixed", 0.0), ("moving", 1.0)):
        radius = np.sqrt(((where - 9.5 - shift) ** 2).sum(axis=0))
        write_image(folder / f"{name}.nii.gz", Volume((100 * np.exp(-radius / 5)).astype(np.float32), geometry))
        write_labels(folder / f"{name}_labels.nii.gz", LabelMap((radius < 5).astype(np.uint8), geometry))
    return folder


def test_json_alone_goes_to_standard_output(images, tmp_path, capsys):
    pair = [str(images / f"{name}.nii.gz") for name in ("fixed", "moving")]
    labels = [f"--{name}-labels={images / name}_labels.nii.gz" for name in ("fixed", "moving")]
    result = tmp_path / "result"
    calls = {
        "register": ["register", *pair, *labels, "-o", str(result), "--preset", "paper", "--json"],
        "plan": ["plan", *pair, "--json"],
        "check": ["check", *pair, "--json"],
        "presets": ["presets", "list", "--json"],
        "models": ["models", "list", "--json"],
        "about": ["about", "--json"],
        "preset": ["presets", "show", "paper", "--json"],
        "report": ["report", str(result), "--json"],
        "convert": ["convert", str(result / "transform.h5"), "-o", str(tmp_path / "f.mha"), "--json"],
        "labels": [
            "warp", "labels", str(images / "moving_labels.nii.gz"), "-t", str(result / "transform.h5"),
            "-r", pair[0], "-o", str(tmp_path / "l.nii.gz"), "--json",
        ],
    }  # fmt: skip
    found = {}
    for name, words in calls.items():
        assert main(words) == 0, name
        found[name] = json.loads(capsys.readouterr().out)
    assert found["register"]["output"] == str(result)
    assert Path(found["register"]["page"]).is_file()
    assert found["register"]["mean_dice"] == json.loads((result / "result.json").read_text())["mean_dice"]
    assert found["plan"]["peak_memory_mb"] > 0
    assert [one["ok"] for one in found["check"]] == [True, True]
    assert "paper@1" in found["presets"]
    assert found["preset"]["name"] == "paper@1"
    assert found["report"] == {"page": str(result / "report.html")}
    assert found["labels"] == {"output": str(tmp_path / "l.nii.gz"), "labels": [1], "lost": [], "names": {"1": "1"}}
    assert Path(found["convert"]["output"]).is_file()


def test_names_with_brackets_are_shown_as_they_are(images, tmp_path, capsys):
    names = tmp_path / "names.json"
    names.write_text(json.dumps({"1": "[/red]organ\x1b[31m"}))
    pair = [str(images / f"{name}.nii.gz") for name in ("fixed", "moving")]
    labels = [f"--{name}-labels={images / name}_labels.nii.gz" for name in ("fixed", "moving")]
    output = tmp_path / "[bold]result"
    words = ["register", *pair, *labels, "-o", str(output), "--preset", "paper", "--label-names", str(names)]
    assert main([*words, "--write", "transform"]) == 0
    out = capsys.readouterr().out
    assert "[/red]organ[31m" in out
    assert "\x1b" not in out
    assert f"result      {output}" in out


def test_text_of_the_commands_fits_80_columns(images, tmp_path, monkeypatch, narrow, capsys):
    monkeypatch.chdir(images)
    register = ["register", "fixed.nii.gz", "moving.nii.gz", "--fixed-labels", "fixed_labels.nii.gz"]
    register += ["--moving-labels", "moving_labels.nii.gz", "--preset", "paper", "-o", "result", "--overwrite"]
    calls = [
        register, ["plan", *register[1:3]], ["check", *register[1:3]], ["about"], ["presets", "list"],
        ["models", "list"], ["report", "result"], ["convert", "result/transform.h5", "-o", "f.mha", "--overwrite"],
    ]  # fmt: skip
    for words in calls:
        assert main(words) == 0, words
        out, err = capsys.readouterr()
        assert out
        assert "\x1b" not in out + err
        lines = [line for line in (out + err).splitlines() if not line.startswith("warning")]
        assert max(map(len, lines)) <= WIDTH, words


def test_no_color_is_obeyed_on_a_terminal(images, monkeypatch, tmp_path):
    pty = pytest.importorskip("pty")
    main_end, other = pty.openpty()
    environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "80", "TERM": "xterm-256color"}
    command = [sys.executable, "-c", "import sys; from regweave.cli import main; sys.exit(main())"]
    command += ["plan", str(images / "fixed.nii.gz"), str(images / "moving.nii.gz")]
    done = subprocess.run(command, stdout=other, stderr=other, env=environment, check=False)
    text = os.read(main_end, 1 << 16).decode()
    os.close(main_end)
    os.close(other)
    assert done.returncode == 0
    assert "peak memory" in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)  # colours; bold is none


def test_tables_and_summaries_fit_80_columns():
    text = text_table("organ", [f"column{i}" for i in range(12)], [("cord", ["0.123"] * 12)])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.count("organ") == 2
    assert text.count("0.123") == 12
    markdown = (
        "# Title\n\n**Note.** `a`\n\n| | mean | organ |\n| --- | ---: | ---: |\n| sad | 0.712 | 0.5 |\n\n- x "
        + "y " * 60
    )
    text = terminal_text(markdown)
    assert text.splitlines()[:3] == ["Title", "", "Note. a"]
    assert ["sad", "0.712", "0.5"] in [line.split() for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "|" not in text


def test_ctrl_c_while_a_command_is_loaded_ends_as_later(monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "import_module", interrupted)
    assert main(["about"]) == errors.EXIT_CANCELLED
    assert capsys.readouterr().err == "cancelled; nothing was written\n"


def test_a_wrong_call_is_refused_before_files_and_folders(tmp_path, monkeypatch, capsys):
    """Neither image exists, and the folder is taken: what can be known from the words alone comes first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "OLD").mkdir()
    (tmp_path / "OLD" / "notes.txt").write_text("kept")
    for call, code, said in [
        ("register a b -o OLD --preset deafult", "E184", "did you mean default? available: default, paper"),
        ("register a b -o OLD --init rigd", "E187", "did you mean rigid?"),
        ("register a b -o OLD --init structures", "E187", "needs a model"),
        ("register a b -o OLD --model brain-t1", "E171", "shipped: head-neck-ct, hippocampus-t1"),
        ("register a b -o OLD --device tpu", "E173", ""),
        ("warp image.nii.gz", "E192", "choose image, labels, points, rtstruct, dose"),
    ]:
        assert main(call.split()) == 2
        err = capsys.readouterr().err
        assert f"error {code}" in err
        assert said in err


def test_a_field_does_not_become_a_mat_and_a_matrix_does(tmp_path, capsys):
    geometry = Geometry((4, 4, 4), np.eye(4))
    write_transform(tmp_path / "t.h5", Transform(Field(np.ones((3, 4, 4, 4), np.float32), geometry)))
    write_linear(tmp_path / "l.tfm", np.diag([1.1, 1.0, 1.0, 1.0]))
    assert main(["convert", str(tmp_path / "t.h5"), "-o", str(tmp_path / "t.mat")]) == 2
    err = capsys.readouterr().err
    assert "E152" in err
    assert "holds a matrix alone" in err
    assert main(["convert", str(tmp_path / "l.tfm"), "-o", str(tmp_path / "l.mat")]) == 0
    np.testing.assert_allclose(read_transform(tmp_path / "l.mat").affine, np.diag([1.1, 1.0, 1.0, 1.0]))
