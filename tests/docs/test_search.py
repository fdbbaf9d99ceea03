"""The search of the site answers in pages that were opened from disk, where browsers start no worker."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = """<!doctype html><body><p id="answer"></p><script src="iframe-worker.js"></script><script>
const worker = new Worker("worker.js");
worker.addEventListener("message", ({ data }) => { answer.textContent = data.sum; });
worker.postMessage({ terms: [3, 4] });
</script>"""
WORKER = "addEventListener('message', ({ data }) => postMessage({ sum: data.terms[0] + data.terms[1] }));"


@pytest.fixture
def page():
    api = pytest.importorskip("playwright.sync_api", reason="the Python package playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with api.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield running.new_page()
        running.close()


def test_a_worker_answers_from_disk_with_the_shim_alone(page, tmp_path):
    (tmp_path / "worker.js").write_text(WORKER)
    shutil.copy(ROOT / "docs" / "iframe-worker.js", tmp_path)
    for text, answer in ((PAGE, "7"), (PAGE.replace('src="iframe-worker.js"', ""), "")):
        (tmp_path / "index.html").write_text(text)
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_timeout(1000)
        assert page.inner_text("#answer") == answer


def test_the_site_uses_it():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "  - offline\n" in config
    assert "polyfills: [iframe-worker.js]" in config
