"""Rules of the house that a program can check: short functions, plain words, everything in its room."""

import ast
import re
from pathlib import Path

import pytest

from benchmarks import ROOT

SRC = ROOT / "src" / "osae"
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

# What not to write, and what to write instead.
WORDS = {
    r"\bspeaks?\b|\bspeaking\b|\bspoke\b": "fires, is active",
    r'\bsilent\b(?!")': "inactive, dead",
    r"\brebuil(d|ds|t|ding)\b": "reconstruct",
    r"\bin (its|their) stead\b": "instead",
    r"\bgoes on\b|\bgo on\b": "resumes, continues",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\ba training\b(?! \w+)|\ba training (of|that|is|in|and)\b|\btrainings\b": "a training run",
    r"\blet go\b": "released",
    r"\bin short\b": "Summary, a short version",
    r"Nothing; a `?ValueError": "Raise `ValueError` if",
    r"\blest\b": "so that ... not",
    r"\bas if it never had been\b": "equals an uninterrupted run",
    r"\bbegun\b": "started",
}
SHOWN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def functions():
    for path, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, FUNCTION):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def test_functions_are_short():
    lengths = {name: node.end_lineno - node.lineno + 1 for name, node in functions()}
    in_order = sorted(lengths.values())
    assert in_order[int(0.9 * len(in_order))] <= 21
    assert not {name: length for name, length in lengths.items() if length > 54}


@pytest.mark.parametrize("word", WORDS)
def test_words_are_those_of_the_field(word):
    files = [*MODULES, *SHOWN, *sorted((ROOT / "examples").glob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(word, line, re.IGNORECASE)
    ]
    assert not found, f"write {WORDS[word]!r} instead:\n" + "\n".join(found)


def test_docstrings_do_not_open_with_a_third_person_verb():
    """Imperatives ("Return the ..."), or nouns for plain values and classes; never "Returns the ...".

    A check of the commonest verbs, since grammar is beyond a program.
    """
    verbs = "Adds Checks Draws Gives Makes Opens Prints Raises Reads Returns Says Sets Tells Writes Yields"
    first = {name: (ast.get_docstring(node) or "").partition(" ")[0] for name, node in functions()}
    found = [name for name, word in first.items() if word in (*verbs.split(), "Nothing;")]
    assert not found


def room_of(path):
    parts = path.relative_to(SRC).parts
    return parts[0].removesuffix(".py")


def imports(path):
    """The top-level modules and rooms of osae that a file imports, anywhere in it."""
    for node in ast.walk(MODULES[path]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "osae":
            inside = node.module.split(".")[1:2]
            yield from inside or [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from alias.name.split(".")[1:2] if alias.name.startswith("osae.") else []


ON_THE_FIRST_FLOOR = {"objective"}  # the loss: part of the idea, although only training asks for it


def test_no_top_level_module_belongs_in_a_room():
    """A module that serves one room alone belongs in that room."""
    users = {room_of(path): set() for path in MODULES if path.parent == SRC}
    for path in MODULES:
        for name in imports(path):
            if name in users and room_of(path) != name:
                users[name].add(room_of(path))
    homes = {path.parent.name for path in MODULES if path.parent != SRC}
    alone = {name: used for name, used in users.items() if len(used) == 1 and used & homes}
    assert {name: used for name, used in alone.items() if name not in ON_THE_FIRST_FLOOR} == {}


def test_files_mirror_the_tree():
    """Tests of a room are in the folder of that room's name."""
    rooms = {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()}
    aside = {"benchmarks", "docs", "faults", "fixtures", "golden", "interop_real"}
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")
    }
    assert folders - aside <= rooms, "a folder of tests without a room"
    assert rooms - folders - {"schemas"} == set(), "a room without tests of its own"


def test_no_drawers():
    names = {path.stem for path in MODULES}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


def test_nothing_points_to_a_machine():
    """No absolute paths of somebody's machine in files that are kept."""
    places = [
        *MODULES,
        *SHOWN,
        *Path(ROOT / "benchmarks").rglob("*.py"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    personal = re.compile(r"(?<![\w.])/(home|root|work|Users|tmp/wt)[/-]\w")
    assert not [path for path in places if personal.search(path.read_text(encoding="utf-8"))]
