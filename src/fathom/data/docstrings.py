"""English by many authors without a download: the docstrings of Python's standard library, a client per module.

They are read from the source files of the Python that runs this, without importing any: the data is the same for the
same version of Python.
"""

import ast
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

LEAST = 10  # sentences that make a module a client
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo", "ensurepip"}
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[.,;:!?()]")


def make() -> dict[str, list[list[str]]]:
    """Module or package name -> its sentences, each a list of lower-case words and punctuation marks."""
    library = Path(sysconfig.get_paths()["stdlib"])
    clients: dict[str, list[list[str]]] = {}
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if not LEFT_OUT & set(parts):
            clients.setdefault(parts[0].removesuffix(".py"), []).extend(_sentences(path))
    return {name: sentences for name, sentences in clients.items() if len(sentences) >= LEAST}


def _sentences(path: Path) -> Iterator[list[str]]:
    """The sentences of a source file's docstrings, in order, of at least three words."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in old modules; they are not ours to mend
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # a file that is deliberately broken, or not readable
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                if ">>>" in paragraph:
                    continue  # code, not English
                for sentence in re.split(r"(?<=[.!?])\s+", paragraph):
                    words = WORD.findall(sentence.lower())
                    if len(words) >= 3:
                        yield words
