"""Draw docs/overview.svg, the README's picture, from the recorded measurements: ``python docs/overview.py``."""

from pathlib import Path

from spectile_study.bench import record
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.overview import PANELS, picture

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Draw a panel of each system whose picture has a record."""
    frames = {paper: record.read_frame(ROOT / f"results/recorded/h200/{paper}.parquet") for paper in PANELS}
    drawn = [paper for paper, frame in frames.items() if picture(paper, frame).notes]
    title = "Recorded on one NVIDIA H200, ours and the vendor's in the same run"
    drawing = Drawing(title, 1, len(drawn), size=(3.3 * len(drawn), 3.0))
    for ax, paper in zip(drawing.axes[0], drawn, strict=True):
        PANELS[paper](drawing, ax, frames[paper])
    drawing.save(ROOT / "docs/overview.svg")


if __name__ == "__main__":
    main()
