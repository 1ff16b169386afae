"""Take screenshots of a page for the documentation, with Chromium, which must be installed:

    python -m benchmarks.documentation.screenshots page.html --unit 0/12

opens the page with a unit selected, in wide and narrow windows, in light and dark mode, and writes
screenshots of the unit browser to docs/images, scaled down for the repository.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.documentation.images import shrink_image
from benchmarks.speed.pages import opened_chromium

WINDOWS = {1400: 1000, 400: 860}  # heights by width
SCHEMES = ("light", "dark")


def take_picture(browser: Any, page: Path, unit: str, width: int, scheme: str, target: Path) -> None:
    """Write a screenshot of the unit browser in a window of this width."""
    height = WINDOWS[width]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = context.new_page()
    tab.set_default_timeout(120_000)
    tab.goto(f"file://{page.resolve()}#unit/{unit}")
    tab.wait_for_selector(f"#units[data-open='{unit}']")
    tab.wait_for_function("document.fonts.status === 'loaded'")
    tab.evaluate("document.querySelector('#units .controls').scrollIntoView()")
    tab.screenshot(path=target)
    context.close()
    shrink_image(target, target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take all screenshots of a page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.documentation.screenshots", description=main.__doc__
    )
    parser.add_argument("page", type=Path, metavar="PAGE.html")
    parser.add_argument("--unit", default="0/0", metavar="SAE/UNIT")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    asked = parser.parse_args(arguments)
    with opened_chromium() as browser:
        for width in WINDOWS:
            for scheme in SCHEMES:
                target = asked.out / f"units-{width}-{scheme}.png"
                take_picture(browser, asked.page, asked.unit, width, scheme, target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
