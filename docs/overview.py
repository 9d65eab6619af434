"""Draw docs/overview.svg, the README's picture, from the recorded measurements: ``python docs/overview.py``."""

from pathlib import Path

from spectile_study.bench import record
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.overview import PANELS

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Draw the four panels."""
    drawing = Drawing("Recorded on one NVIDIA H200, ours and the vendor's in the same run", 1, 4, size=(14, 3.6))
    for ax, (paper, draw) in zip(drawing.axes[0], PANELS.items(), strict=True):
        draw(drawing, ax, record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet"))
    drawing.save(ROOT / "docs/overview.svg")
    (ROOT / "docs/overview.png").unlink()


if __name__ == "__main__":
    main()
