"""Every code block of the documentation and the README runs, page by page, in a folder with small phantoms.

``sh`` and ``python`` blocks run; ``text`` and ``toml`` blocks do not, and a block without a tag is an error. Lines that
begin with ``make`` or ``pip`` are left out: they prepare the machine. A ``python`` block whose title is a file of the
package or of its tests is that file: it is put there, in a folder that the package takes for its own.

Fast, the presets have one level of one step, training has the effort ``smoke``, commands run in this process, and
``regweave demo``, which takes minutes, does not run. A training that several pages show runs for the first of them; the
others get its files. The slow tests change nothing and run in a shell.
"""

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from regweave import losses, metrics, registry
from regweave.cli import main
from regweave.cli.app import load_command
from regweave.config import settings as registration_settings
from regweave.config.settings import Settings
from regweave.jobs import workers as batch
from regweave.jobs.workers import attempt
from regweave.study import examples
from regweave.training.estimator import MetricLearner
from regweave.training.options import TrainOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([a-z]*)(?: title=\"([^\"]+)\")?\s*$")
RUN = ("sh", "python")
SHOWN = ("text", "toml", "json", "csv")
NOT_RUN = ("make ", "pip ")
FOLDERS = {"metrics": metrics, "losses": losses}
MINUTES = "regweave demo"
TRAINING = "regweave train pairs.csv -o model.json"
PLAIN = re.compile(r"^regweave [^|&;$`]*$")


trained: dict[str, bytes] = {}
"""Files of the training that several pages show."""


@dataclass(frozen=True)
class Block:
    tag: str
    title: str | None
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    opened: tuple[str, str | None, int] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if opened is None and line.lstrip().startswith("```"):
            match = FENCE.match(line.strip())
            assert match, f"{page.name}:{number}: {line.strip()} is no fence that we know"
            opened, body = (match[1], match[2], number), []
        elif opened is not None and line.strip() == "```":
            found.append(Block(opened[0], opened[1], "\n".join(body) + "\n", opened[2]))
            opened = None
        elif opened is not None:
            body.append(line)
    assert opened is None, f"{page.name}: the block of line {opened} is not closed"
    return found


def commands_of(text: str) -> list[str]:
    """Logical lines of a shell block, without comments and without those that prepare the machine."""
    joined = text.replace("\\\n", " ")
    lines = [re.sub(r"\s+#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", *NOT_RUN))]


RUNNING = [page for page in PAGES if any(block.tag in RUN for block in blocks_of(page))]


def cheap(name: str, real=registration_settings.preset) -> Settings:
    """Return a preset with one level of one step and a small bank."""
    content = real(name).model_dump(mode="json")
    content["levels"] = [{**content["levels"][0], "steps": 1}]
    content["refine"]["steps"] = min(1, content["refine"]["steps"])
    for modality, bank in content["banks"].items():
        fine = [m for m in bank if m["stage"] == "refine" and m["weight"] > 0][:1]
        content["banks"][modality] = [*[m for m in bank if m["stage"] != "refine"][:2], *fine]
    return registration_settings.validate(content, name)


class Page:
    """Runs the blocks of one page in one folder; names of its Python blocks live on."""

    def __init__(self, folder: Path, in_shell: bool) -> None:
        self.folder, self.in_shell = folder, in_shell
        self.names: dict[str, object] = {"__name__": "__docs__"}
        self.dropped: list[str] = []

    def run(self, block: Block) -> None:
        if block.title is not None:
            self.drop(block)
        elif block.tag == "python":
            self.python(block)
        else:
            for command in commands_of(block.text):
                if command.startswith(MINUTES) and not self.in_shell:
                    continue
                plain = PLAIN.match(command) and not self.in_shell
                out = self.here(command) if plain else self.shell(command)
                if "pytest" in command:
                    assert re.search(r"\d+ passed", out), out
                    assert "failed" not in out

    def drop(self, block: Block) -> None:
        file = self.folder / str(block.title)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, encoding="utf-8")
        if str(block.title).startswith("src/regweave/"):
            self.dropped.append(f"regweave.{file.parent.name}.{file.stem}")
            registry._modules.cache_clear()

    def python(self, block: Block) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)

    def here(self, command: str) -> str:
        if command == TRAINING and trained:
            for name, content in trained.items():
                Path(name).write_bytes(content)
            return ""
        words, out = shlex.split(command), io.StringIO()
        file = None
        if ">" in words:
            words, file = words[: words.index(">")], words[words.index(">") + 1]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = main(words[1:])
        assert status == 0, f"{command}: status {status}\n{out.getvalue()}"
        if command == TRAINING:
            trained.update({path.name: path.read_bytes() for path in Path().glob("model.*") if path.is_file()})
        if file is not None:
            Path(file).write_text(out.getvalue(), encoding="utf-8")
        return out.getvalue()

    def shell(self, command: str) -> str:
        paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
        env = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": str(self.folder / "site"), "COLUMNS": "80"}
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout


@contextlib.contextmanager
def package_with(folder: Path) -> Iterator[None]:
    """Let metrics and losses of a folder count as the package's own, here and in processes that are started."""
    start = ["import importlib"]
    for name, package in FOLDERS.items():
        own = folder / "src" / "regweave" / name
        own.mkdir(parents=True)
        package.__path__.append(str(own))
        start.append(f"importlib.import_module('regweave.{name}').__path__.append({str(own)!r})")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text("\n".join(start), encoding="utf-8")
    try:
        yield
    finally:
        for name, package in FOLDERS.items():
            package.__path__.remove(str(folder / "src" / "regweave" / name))
        registry._modules.cache_clear()
        importlib.invalidate_caches()


@pytest.fixture
def page_folder(tmp_path: Path, phantom_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "page"
    shutil.copytree(phantom_folder, folder)
    monkeypatch.chdir(folder)
    with package_with(folder):
        yield folder


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(function, arguments, _n):
        for index, argument in enumerate(arguments):
            yield index, attempt(function, argument)

    monkeypatch.setattr(registration_settings, "preset", cheap)
    monkeypatch.setitem(examples.pair.__kwdefaults__, "voxel_mm", 9.0)
    monkeypatch.setattr(batch, "on_processes", here)
    middle = "regweave.jobs.runner.next_values"
    monkeypatch.setattr(middle, lambda values, found: [] if found else [values[len(values) // 2]])
    for kind in (TrainOptions, MetricLearner):
        monkeypatch.setitem(kind.__init__.__kwdefaults__, "effort", "smoke")


def run_page(page: Path, folder: Path, *, in_shell: bool) -> None:
    runner = Page(folder, in_shell)
    try:
        for block in blocks_of(page):
            if block.tag in RUN:
                try:
                    runner.run(block)
                except Exception as error:
                    raise AssertionError(f"{page.relative_to(ROOT)}:{block.line}: {error}") from error
    finally:
        for name in runner.dropped:
            package, _, short = name.rpartition(".")
            if sys.modules.pop(name, None) is not None:
                delattr(sys.modules[package], short)


@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_run(page: Path, page_folder: Path, little_work: None) -> None:
    run_page(page, page_folder, in_shell=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_a_page_run_as_typed(page: Path, page_folder: Path) -> None:
    run_page(page, page_folder, in_shell=True)


def test_every_block_says_whether_it_runs() -> None:
    tags = {page.name: {block.tag for block in blocks_of(page)} - {*RUN, *SHOWN} for page in PAGES}
    assert {page: unknown for page, unknown in tags.items() if unknown} == {}


def test_commands_that_are_shown_alone_are_understood() -> None:
    """Blocks that need a GPU, a cluster or a clinic do not run here; their options are those of the program."""
    seen = 0
    for page in PAGES:
        shown = [block for block in blocks_of(page) if block.tag == "text"]
        calls = [line for block in shown for line in commands_of(block.text) if line.startswith("regweave ")]
        for call in calls:
            words = shlex.split(re.sub(r" [>|&].*$", "", call))[1:]
            command, name = load_command(words[0]), words.pop(0)
            while hasattr(command, "commands"):
                name = words.pop(0)
                command = command.commands[name]
            command.make_context(name, words)  # raises on an unknown or missing word
            seen += 1
    assert seen > 15


def test_pages_that_extend_the_package_do(page_folder: Path, little_work: None) -> None:
    """The examples are files of the package and pass through the conformance tests, or this test is worth nothing."""
    for page, names, tests in (("add-metric", ("ssd", "laplacian"), 2), ("add-loss", ("tversky",), 1)):
        blocks = blocks_of(ROOT / "docs" / "howto" / f"{page}.md")
        titles = [block.title for block in blocks if block.title]
        assert all(any(title.endswith(f"{name}.py") for title in titles) for name in names)
        lines = [line for block in blocks if block.tag == "sh" for line in commands_of(block.text)]
        assert sum("conformance" in line or "pytest" in line for line in lines) == tests


def test_a_block_that_fails_is_seen(page_folder: Path, little_work: None) -> None:
    for tag, text in (
        ("python", "1 / 0"),
        ("sh", "regweave register nothing.nii.gz fixed.nii.gz -o x"),
        ("sh", "false"),
    ):
        with pytest.raises((AssertionError, ZeroDivisionError)):
            Page(page_folder, in_shell=False).run(Block(tag, None, text, 1))


def test_commands_of_a_block() -> None:
    text = "make demo  # all\nregweave a \\\n  b   # says b\n\n# no\npip install .\nregweave c > d\n"
    assert commands_of(text) == ["regweave a    b", "regweave c > d"]
