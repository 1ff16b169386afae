"""Check a built site: there are no dead links, and no page loads external resources.

    python -m benchmarks.documentation.site site

Prints one line per problem; the exit code is 1 if there are any.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ELSEWHERE = re.compile(r"(https?:)?//")
OUTSIDE = re.compile(r"[a-z]+:|//")
IN_STYLE = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)|@import\s+['\"]((?:https?:)?//[^'\"]+)")
LOADING = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "icon"}


class Page(HTMLParser):
    """The links, loaded files and anchors of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag refers to."""
        found = {key: value or "" for key, value in attrs}
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and LOADING & set(found.get("rel", "").split()):
            self.loaded.append(found.get("href", ""))
        elif "src" in found:
            self.loaded.append(found["src"])


def check_site(site: Path) -> Iterator[str]:
    """Yield a line for every problem with the pages of a site."""
    site = site.resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site} has no pages"
    for path, page in pages.items():
        where = path.relative_to(site)
        for target in page.loaded:
            if ELSEWHERE.match(target):
                yield f"{where} loads {target}"
        for link in [*page.links, *page.loaded]:
            if not OUTSIDE.match(link) and not leads_somewhere(site, path, link, pages):
                yield f"{where} links to {link}, which does not exist"
    for path in sorted(site.rglob("*.css")):
        for found in IN_STYLE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads {found[0] or found[1]}"


def leads_somewhere(site: Path, path: Path, link: str, pages: Mapping[Path, Page]) -> bool:
    """Return whether a link leads to a file of the site and, if it names an anchor, to that anchor."""
    file, anchor = urldefrag(link)
    start = site if file.startswith("/") else path.parent
    target = (start / unquote(file).lstrip("/")).resolve() if file else path
    if target not in pages:
        return target.is_file() and not anchor
    return not anchor or unquote(anchor) in pages[target].anchors


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the site in a folder."""
    (folder,) = arguments if arguments is not None else sys.argv[1:]
    wrong = list(check_site(Path(folder)))
    print("\n".join(wrong) or f"{folder}: no dead links, and no external resources.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
