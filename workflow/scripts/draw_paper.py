"""Draw every figure and table of one paper in one process: importing Matplotlib is the expensive part."""

import contextlib
import importlib
import sys
from pathlib import Path

from spectile_study.bench import record

sys.path.insert(0, str(Path("workflow/scripts").resolve()))
with open(snakemake.log[0], "w") as log, contextlib.redirect_stderr(log):  # noqa: F821
    frame = record.read_frame(snakemake.input.frame[0]) if snakemake.input.frame else record.frame([])  # noqa: F821
    for path in snakemake.output:  # noqa: F821
        kind = "plot" if path.endswith(".svg") else "table"
        module = importlib.import_module(f"{kind}_{Path(path).stem}")
        drawing = module.draw(frame) if kind == "plot" else module.table(frame)
        drawing.save(path)
