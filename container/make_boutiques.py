"""Write container/regweave.json, the Boutiques description of ``regweave bids``, from the command itself."""

import json
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, get_args

from regweave import __version__
from regweave.cli.app import COMMANDS
from regweave.options import declared, type_of
from regweave.study.bids import BidsJob

FILE = Path(__file__).with_name("regweave.json")
FILES = ("bids_dir", "template")  # They exist before the command runs


def description() -> dict[str, Any]:
    """Return the description: an input for each argument and option."""
    inputs = [_input(field) for field in declared(BidsJob) if field.metadata["cli"].get("typed", str) is not None]
    return {
        "name": "regweave",
        "description": COMMANDS["bids"][2],
        "author": "The regweave developers",
        "tool-version": __version__,
        "schema-version": "0.5",
        "url": "https://github.com/regweave/regweave",
        "command-line": " ".join(["regweave bids", *(one["value-key"] for one in inputs)]),
        "container-image": {"type": "docker", "image": f"regweave:{__version__}", "entrypoint": True},
        "inputs": inputs,
        "output-files": [
            {
                "id": "out_folder",
                "name": "Derivatives",
                "description": "Folder with transforms, images, sidecars and pages.",
                "path-template": "[OUT]",
            }
        ],
        "error-codes": [
            {"code": 1, "description": "Some registrations failed; the results name them."},
            {"code": 2, "description": "Wrong call."},
            {"code": 3, "description": "An input cannot be used."},
            {"code": 4, "description": "The work does not fit the machine."},
        ],
        "tags": {"domain": ["neuroinformatics"], "toolkit": ["BIDS-App"]},
    }


def _input(field: Field[Any]) -> dict[str, Any]:
    cli = field.metadata["cli"]
    kind = str(cli.get("typed", type_of(BidsJob, field)))
    named = {"bool": "Flag", "int": "Number"}
    found = {
        "id": field.name,
        "name": field.name,
        "description": field.metadata["help"],
        "value-key": f"[{field.name.upper()}]",
        "type": "File" if field.name in FILES else next((named[word] for word in named if word in kind), "String"),
        "optional": field.default is not MISSING,
    }
    if found["type"] == "Number":
        found["integer"] = True
    if "Literal" in kind:
        found["value-choices"] = list(get_args(type_of(BidsJob, field)))
    if field.kw_only:
        found["command-line-flag"] = f"--{field.name.replace('_', '-')}"
    if "list" in kind:
        found["list"] = True
    return found


def text() -> str:
    """Return the text of the file."""
    return json.dumps(description(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
