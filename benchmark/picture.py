"""Make the picture of README.md: register a phantom, open its page in headless Chromium, take a screenshot."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import ROOT
from regweave.datasets.phantom import make_phantom
from regweave.pipeline.register import register

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def page_of_phantom(folder: Path) -> Path:
    """Register the phantom and write its page."""
    pair = make_phantom(seed=5).pair
    result = register(
        pair.fixed, pair.moving, fixed_labels=pair.fixed_labels, moving_labels=pair.moving_labels, keep_view=True
    )
    result.save(folder / "result")
    return folder / "result" / "report.html"


def main() -> None:
    """Write the picture."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--output", type=Path, default=ROOT / "docs" / "images" / "report.png")
    options.add_argument("--width", type=int, default=1600)
    options.add_argument("--height", type=int, default=940)
    args = options.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no Chromium found; install the package chromium")
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as folder, sync_playwright() as p:
        path = page_of_phantom(Path(folder))
        chromium = p.chromium.launch(executable_path=browser, args=FLAGS)
        page = chromium.new_page(viewport={"width": args.width, "height": args.height}, color_scheme="dark")
        page.goto(path.as_uri())
        page.wait_for_timeout(3000)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=args.output)
        chromium.close()
    print(f"wrote {args.output.name}, {args.output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
