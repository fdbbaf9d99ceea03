"""The examples in docstrings do what they show."""

import doctest
import importlib
import pkgutil
from importlib.util import find_spec

import regweave
from regweave import notices

SKIPPED = ("_core", "_cuda", "__main__", *(() if find_spec("torch") else ("_unet_",)))


def test_examples_of_all_modules():
    names = [found.name for found in pkgutil.walk_packages(regweave.__path__, "regweave.")]
    failed = {}
    with notices.muted():
        for name in (name for name in names if not name.rpartition(".")[2].startswith(SKIPPED)):
            failed[name] = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed
    assert not {name: count for name, count in failed.items() if count}
    assert len(failed) > 50
