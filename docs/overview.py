"""Draw docs/overview.svg, the README's picture, from the recorded measurements: ``python docs/overview.py``."""

from pathlib import Path

from spectile_study.bench import record
from spectile_study.figures.drawing import Drawing
from spectile_study.figures.overview import PANELS, picture

RECORDED = Path(__file__).resolve().parents[1] / "results/recorded"
MACHINES = {"h200": "H200", "h100": "H100"}


def main() -> None:
    """Draw a panel of each system, of the machine whose record has most to show in it."""
    panels = []
    for paper, draw in PANELS.items():
        files = {name: RECORDED / machine / f"{paper}.parquet" for machine, name in MACHINES.items()}
        frames = {name: record.read_frame(file) for name, file in files.items() if file.exists()}
        name = max(frames, key=lambda each: len(picture(paper, frames[each]).notes))
        panels.append((draw, name, frames[name]))
    title = "Recorded on one NVIDIA GPU, ours and the vendor's in the same run"
    drawing = Drawing(title, 1, len(panels), size=(3.3 * len(panels), 3.0))
    for ax, (draw, name, frame) in zip(drawing.axes[0], panels, strict=True):
        draw(drawing, ax, frame)
        ax.set_title(f"{ax.get_title()}, {name}")
    drawing.save(RECORDED.parents[1] / "docs/overview.svg")


if __name__ == "__main__":
    main()
