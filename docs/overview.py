"""Draw docs/overview.svg, the README's picture, from the recorded measurements: ``python docs/overview.py``."""

import sys
from pathlib import Path

from spectile.bench import record
from spectile.bench.stats import speedups
from spectile.figures.style import Drawing

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "workflow/scripts"))
from kpm_rates import NAMES, drawn_by  # noqa: E402


def recorded(paper: str, machine: str = "h200"):
    """Return the recorded frame of `paper`."""
    return record.read_frame(ROOT / f"results/recorded/{machine}/{paper}.parquet")


def main() -> None:
    """Draw four panels: SpAMM's speed-up, tSparse's by matrix, EVD's over the vendor's two stages, KPM's stages."""
    drawing = Drawing("Recorded on one NVIDIA H200: ours against the vendor in the same run", 1, 4, size=(15, 3.6))
    product, sparse, eigen, density = drawing.axes[0]
    frame = recorded("spamm")
    for precision, color, marker in (("fp16", "#0072B2", "o"), ("fp32", "#009E73", "s"), ("fp64", "#882255", "D")):
        for ratio, line in (("05", "-"), ("30", ":")):
            rows = speedups(frame[frame["case"].str.startswith("product_")], f"spectile_{ratio}", "cublas")
            rows = rows[(rows["p_precision"] == precision) & (rows["p_gpus"] == 1)]
            label = f"{precision}, {int(ratio)} % valid"
            drawing.marks(product, rows, "p_n", "speedup", color=color, marker=marker, linestyle=line, label=label)
    product.set_xscale("log", base=2)
    product.set(title="SpAMM over cuBLAS", xlabel="n", ylabel="speed-up")
    product.legend(fontsize=7)
    rows = speedups(recorded("tsparse"), "spectile_float64", "cusparse_float64").sort_values("speedup")
    places = list(range(len(rows)))
    drawing.marks(sparse, rows, "speedup", "speedup", kind="bar", positions=places, label="float64", color="#0072B2")
    sparse.axhline(1, color="black", linewidth=0.8)
    sparse.set_xticks([0, len(rows) - 1], [rows["p_matrix"].str.split("/").str[-1].iloc[end] for end in (0, -1)])
    sparse.set_yscale("log", base=2)
    sparse.set(title=f"tSparse over cuSPARSE, float64, {len(rows)} matrices", ylabel="speed-up")
    frame = recorded("evd")
    frame = frame[frame["case"].str.fullmatch(r"evd_\d+_(values|vectors)(_gpu)?")]
    for task, color, marker in (("values", "#0072B2", "o"), ("vectors", "#882255", "D")):
        rows = speedups(frame[frame["case"].str.contains(task)], "spectile", "cusolver_two_stage")
        drawing.marks(eigen, rows.sort_values("p_n"), "p_n", "speedup", color=color, marker=marker, label=task)
    eigen.axhline(1, color="black", linewidth=0.8)
    eigen.set_xscale("log", base=2)
    eigen.set(title="EVD over cuSOLVER's two stages, float64", xlabel="n", ylabel="speed-up")
    eigen.legend(fontsize=7)
    rows = drawn_by(recorded("kpm"), "fig11")
    rows = rows[(rows["clock"] == "events") & rows["method"].isin(NAMES)]
    rows = rows[rows["p_num_vectors"] == 32]
    places = list(range(len(rows)))
    drawing.marks(density, rows, "gflops", "gflops", kind="bar", positions=places, label="", color="#0072B2")
    density.set_xticks(places, [NAMES[name] for name in rows["method"]], rotation=30, ha="right", fontsize=7)
    density.set(title="KPM, 200 x 100 x 40, R = 32", ylabel="Gflop/s (138 flop a row)")
    drawing.save(ROOT / "docs/overview.svg")
    (ROOT / "docs/overview.png").unlink()


if __name__ == "__main__":
    main()
