"""What the pages show is what the repository holds: tables, names, files, images and links."""

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

import osae
from benchmarks import ROOT
from benchmarks.documentation import pages

DOCS = ROOT / "docs"
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGES = {".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp"}
OUTSIDE_THE_SITE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "evidence/README.md",
)


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout, so there is no list of the files that are kept")
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).exists()]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_places_hold_the_current_content(page):
    text = page.read_text(encoding="utf-8")
    assert pages.fill_page(text) == text, "python -m benchmarks.documentation.pages fills the places"


def test_every_image_that_is_kept_is_shown_on_a_page_and_small():
    shown = {
        (page.parent / name).resolve()
        for page in pages.PAGES
        for name in IMAGE.findall(page.read_text(encoding="utf-8"))
    }
    kept = {path.resolve() for path in tracked_files() if path.suffix in IMAGES}
    assert kept == shown
    assert all(path.stat().st_size <= 150_000 for path in kept)


def test_files_are_included_in_pages_with_the_marker_that_the_site_understands():
    """A formatter of the code in pages once put spaces into a marker, which was then shown as it is."""
    lines = [line for page in DOCS.rglob("*.md") for line in page.read_text(encoding="utf-8").splitlines()]
    markers = [line for line in lines if re.search(r"--8\s*<\s*--", line)]
    assert len(markers) >= 3
    included = [re.fullmatch(r'--8<-- "([^"]+)"', line) for line in markers]
    assert all(found and (ROOT / found[1]).is_file() for found in included), markers


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {re.sub(r"[ ]+", "-", heading.strip()) for heading in plain}


@pytest.mark.parametrize("name", OUTSIDE_THE_SITE)
def test_links_of_pages_outside_the_site_lead_somewhere(name):
    """Those of the site are checked when it is built: `make docs`."""
    page = ROOT / name
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_contributing_and_changelog_link_to_no_files():
    """They are shown on the site too, where paths are different."""
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        links = LINK.findall((ROOT / name).read_text(encoding="utf-8"))
        assert all(re.match(r"https?:", link) for link in links), name


def test_readme_is_short_and_its_tables_are_narrow():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90  # about one screen and a half
    assert len(" ".join(lines).split()) <= 900
    assert all(line.count("|") <= 6 for line in lines if line.startswith("|"))
    assert len(IMAGE.findall("\n".join(lines))) == 1


def test_reference_lists_every_public_name():
    listed = re.findall(r"^::: osae\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(name for name in osae.__all__ if not name.startswith("_"))


def test_architecture_names_every_module():
    text = (DOCS / "architecture.md").read_text()
    for path in (ROOT / "src" / "osae").rglob("*.py"):
        if not path.name.startswith("__"):
            assert re.search(rf"^ +{re.escape(path.name)} +\S", text, re.MULTILINE), path
    rooms = {path.parent.name for path in (ROOT / "src" / "osae").rglob("*.py")} - {"osae"}
    assert all(f"{room}/" in text for room in rooms)


def test_every_page_is_in_the_navigation():
    """mkdocs reports this too; here it needs no site."""
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_workflow_runs_what_ci_runs():
    assert "run: .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    ci = Path(ROOT / ".ci" / "run").read_text()
    assert [line for line in ci.splitlines() if line.startswith("make ")] == [
        "make check",
        "make docs",
        "make test",
        "make test-pages",
        "make test-notebooks",
        "make test-interop",
    ]
