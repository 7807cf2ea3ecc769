"""The documentation says what is so: its Python runs, and the lines it quotes are there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/write-a-tuner.md",
    "docs/bring-your-model.md",
    "docs/bring-your-data.md",
]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_from_top_to_bottom(page):
    code = blocks(page)
    assert code
    names = {"__name__": page}
    exec(compile("\n".join(code), page, "exec"), names)
    for framework in ("equinox", "flax", "plain"):
        if f"{framework}_accuracy" in names:
            assert names[f"{framework}_accuracy"] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(script, tmp_path):
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def test_the_paper_page_quotes_lines_that_are_there():
    rows = re.findall(r"\| `(src/[^`]+)` \| `([^`]+)` \|", (ROOT / "docs" / "paper.md").read_text())
    assert len(rows) > 15
    for file, line in rows:
        assert line in (ROOT / file).read_text(), f"{file} no longer has {line}"


def test_the_file_tree_of_the_readme_is_the_source_tree():
    tree = (ROOT / "README.md").read_text()
    for path in (ROOT / "src" / "fathom").rglob("*.py"):
        if path.name not in ("__init__.py", "__main__.py"):
            assert path.name in tree, f"README's tree lacks {path.name}"
