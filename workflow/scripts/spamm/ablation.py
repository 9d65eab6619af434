"""The kernel's ideas one by one: time without each, relative to the kernel that has them all."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import speedups
from spectile_study.figures.tables import Table, first_value

IDEAS = {
    "spectile": "all ideas",
    "norm_shared": "norms summed in shared memory, not by shuffles",
    "norm_ones": "norms by a matrix of ones on tensor cores (Eqs. 3, 4)",
    "double_buffer_only": "two buffers, not a ring of seven",
    "stride": "tiles by the paper's stride, not drawn when free",
    "no_balance": "tiles in runs, not drawn when free",
    "no_cluster": "no cluster: B is not shared by two blocks",
    "half_parts": "a warpgroup takes 64 x 128, not 64 x 256",
    "no_large_tile": "small tiles alone",
    "no_wgmma": "mma.sync, not wgmma",
    "no_compaction": "lists are not compacted",
    "no_double_buffering": "one buffer",
    "unordered": "tiles not sorted by work",
}


def table(frame: pandas.DataFrame) -> Table:
    rows = at(frame, p_study="ablation")
    result = Table("Ablation: the product's kernel without one of its ideas")
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = at(rows, case=case)
        first = here.iloc[0]
        ended = [(name, name.rpartition("_")) for name in here["method"] if name.endswith(("_30", "_05"))]
        for idea in dict.fromkeys(stem for _, (stem, _, _) in ended):
            line: dict[str, object] = {"N": int(first["p_n"]), "precision": first["p_precision"]}
            line["kernel"] = IDEAS.get(idea, idea)
            for ratio in ("30", "05"):
                mine = at(here, method=f"{idea}_{ratio}")
                slower = speedups(here, f"{idea}_{ratio}", f"spectile_{ratio}")
                over_vendor = speedups(here, f"{idea}_{ratio}", "cublas")
                for label, found in (("speed, all ideas = 1", slower), ("speed-up over cuBLAS", over_vendor)):
                    line[f"{int(ratio)} %: {label}"] = first_value(found, "speedup")
                    if not (idea == "spectile" and label.startswith("speed,")):
                        result.cite(found, "speedup")
                if len(mine) and mine["status"].iloc[0] != "ok":
                    result.notes.append(f"{case}, {idea}_{ratio}: {mine['reason'].iloc[0]}")
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {name: "{:.2f}" for name in result.data.columns[3:]}
    result.notes += sorted(set(at(rows, status="skipped")["reason"].dropna()))
    if not lines:
        result.notes.append("This run holds no record of the kernel's variants: they are measured on a CUDA device.")
    return result
