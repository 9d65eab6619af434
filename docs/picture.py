"""Draw docs/picture.png, the README's picture, by a program of the gallery: ``python docs/picture.py``."""

import runpy
from pathlib import Path

from matplotlib import pyplot

DOCS = Path(__file__).resolve().parent


def main() -> None:
    """Run the program and keep its picture, which is read at a width of 800 pixels."""
    pyplot.switch_backend("agg")
    runpy.run_path(str(DOCS / "gallery/plot_a_first_look.py"))
    pyplot.gcf().savefig(DOCS / "picture.png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
