"""Scale the figures of the documentation down for the repository:

    python -m benchmarks.documentation.images runs/lm/large/figures/prefix-wikipedia-noise.png docs/images

shrinks each figure to a width of at most 1,200 pixels and 192 colours, and writes it to the folder.
evidence/README.md lists the commands that draw the figures.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

WIDTH = 1200
COLOURS = 192


def shrink_image(source: Path, target: Path) -> None:
    """Write a smaller copy of a PNG file."""
    with Image.open(source) as opened:
        image = opened.convert("RGB")
    if image.width > WIDTH:
        height = round(image.height * WIDTH / image.width)
        image = image.resize((WIDTH, height), Image.Resampling.LANCZOS)
    few = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Shrink the figures given."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.documentation.images", description="Shrink figures for the documentation."
    )
    parser.add_argument("figures", type=Path, nargs="+", metavar="FIGURE.png")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    for figure in asked.figures:
        shrink_image(figure, asked.folder / figure.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
