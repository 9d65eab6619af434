"""The kernel's ideas one by one: time without each, relative to the kernel that has them all."""

import pandas

from spectile.bench.claims import select
from spectile.bench.stats import speedups
from spectile.figures.style import Table


def table(frame: pandas.DataFrame) -> Table:
    rows = select(frame, "p_study=ablation")
    result = Table("Ablation: the product's kernel without one of its ideas", pandas.DataFrame())
    lines = []
    for case in dict.fromkeys(rows["case"]):
        here = select(rows, f"case={case}")
        first = here.iloc[0]
        ended = [(name, name.rpartition("_")) for name in here["method"] if name.endswith(("_30", "_05"))]
        for idea in dict.fromkeys(stem for _, (stem, _, _) in ended):
            line: dict[str, object] = {"N": f"{first['p_n']:,.0f}", "precision": first["p_precision"]}
            line["kernel"] = "all ideas" if idea == "spectile" else idea.replace("no_", "without ").replace("_", " ")
            for ratio in ("30", "05"):
                mine = select(here, f"method={idea}_{ratio}")
                slower = speedups(here, f"{idea}_{ratio}", f"spectile_{ratio}")
                over_vendor = speedups(here, f"{idea}_{ratio}", "cublas")
                for label, found in (("speed, all ideas = 1", slower), ("speed-up over cuBLAS", over_vendor)):
                    line[f"{int(ratio)} %: {label}"] = float(found["speedup"].iloc[0]) if len(found) else None
                    if len(found) and not (idea == "spectile" and label.startswith("speed,")):
                        result.cite(found, "speedup")
                if len(mine) and mine["status"].iloc[0] != "ok":
                    result.notes.append(f"{case}, {idea}_{ratio}: {mine['reason'].iloc[0]}")
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.notes += sorted(set(select(rows, "status=skipped")["reason"].dropna()))
    if not lines:
        result.notes.append("This run holds no record of the kernel's variants: they are measured on a CUDA device.")
    return result
