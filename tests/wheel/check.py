"""An installed wheel at work, away from the sources: ``check.py`` in seconds, ``check.py --demo`` in minutes.

Runs with the interpreter of an environment that has the wheel and nothing else of the project.
"""

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve()


def regweave(*arguments: str) -> str:
    """Run the program and return what it prints."""
    command = [sys.executable, "-m", "regweave", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8").stdout


def check_package() -> None:
    """The wheel, not a checkout, with its kernels, its models and its licences, and without what tests call."""
    from importlib.metadata import files, version

    import regweave as package

    assert HERE.parents[2] not in Path(package.__file__).resolve().parents, f"a checkout: {package.__file__}"
    assert regweave("--version").split()[-1] == version("regweave") == package.__version__
    assert find_spec("regweave._core_test") is None
    listed = [str(f) for f in files("regweave") or ()]
    for name in ("LICENSE", "NOTICE", "MODELS.md"):
        assert any(f.endswith(f"licenses/{name}") for f in listed), f"the wheel has no {name}"
    facts = json.loads(regweave("about", "--json"))
    print(facts["version"], facts["platform"], "kernels", facts["kernels"])
    assert "head-neck-ct" in regweave("models", "list")


def check_registration() -> None:
    """A phantom comes to lie on its moved copy, with the shipped settings."""
    from regweave import examples, register

    pair = examples.pair(voxel_mm=6.0)
    result = register(pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels)
    gains = {label: row["after"] - row["before"] for label, row in result.dice.items()}
    print("gain in Dice", {label: round(gain, 3) for label, gain in gains.items()})
    assert sum(gains.values()) / len(gains) > 0.03


def check_demo() -> None:
    """The demo learns where the extra `train` is there, and else says what to install, at once."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "demo"
        command = [sys.executable, "-m", "regweave", "demo", "--output", str(output)]
        if find_spec("daqp") is None:
            done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
            assert done.returncode == 2, done.stderr
            assert 'pip install "regweave[train]"' in done.stderr, done.stderr
            assert not output.exists()
            print("demo without the extra: refused, with the command that installs it")
            return
        subprocess.run(command, check=True)
        assert (output / "index.html").stat().st_size > 0, sorted(p.name for p in output.iterdir())


if __name__ == "__main__":
    check_package()
    check_registration()
    if "--demo" in sys.argv or find_spec("daqp") is None:
        check_demo()
