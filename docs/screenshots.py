"""Make the pictures of docs/reports.md from finished runs, with headless Chromium.

fathom run --trials 3 --out runs/plumb
fathom run --trials 3 --tuner fathom --out runs/fathom
fathom run --trials 3 --tuner fixed --out runs/fedavg
python docs/screenshots.py runs/plumb runs/fathom runs/fedavg docs

For the live page the first run is copied as it was after two thirds of its rounds.
"""

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from fathom.report import live, page, read

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import Page

DRAWN = "document.querySelectorAll('.chart .main-svg').length > 12"
LARGEST = 400_000  # bytes of a picture


def shoot(address: str, picture: Path, height: int) -> None:
    """Take a picture of an address once its charts are there."""
    with Page(1280, height) as tab:
        tab.open(address, DRAWN)
        tab.evaluate("document.querySelectorAll('input:not(:checked)').forEach(box => box.click())")
        tab.evaluate("new Promise(done => setTimeout(done, 1500))")
        tab.screenshot(picture, whole=False)
    if picture.stat().st_size > LARGEST:
        raise SystemExit(f"{picture} has {picture.stat().st_size:,} bytes, more than {LARGEST:,}; lower its height.")
    print(picture)


def going_on(run: Path, copy: Path) -> None:
    """Copy a run as it was after two thirds of its rounds."""
    copy.mkdir(parents=True)
    shutil.copyfile(run / "spec.toml", copy / "spec.toml")
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    trials = read.read(run).spec["trials"]
    (copy / "records.jsonl").write_text("".join(lines[: len(lines) * 2 // 3 // trials * trials]))


def main() -> None:
    """Make both pictures."""
    *runs, docs = (Path(path).resolve() for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as room:
        report = Path(room) / "report.html"
        report.write_text(page.page(read.read_all(runs)), encoding="utf-8")
        shoot(report.as_uri(), docs / "report.png", 1690)
        going_on(runs[0], Path(room) / "runs" / runs[0].name)
        for run in runs[1:]:
            shutil.copytree(run, Path(room) / "runs" / run.name, ignore=shutil.ignore_patterns("checkpoints"))
        os.chdir(room)  # so that the page says `runs`
        listener, address = live.listen("127.0.0.1", 0)
        served = (Path("runs"), listener, "127.0.0.1")
        threading.Thread(target=live.serve, args=served, daemon=True).start()
        shoot(f"{address}/", docs / "watch.png", 1040)
        os.chdir("/")


main()
