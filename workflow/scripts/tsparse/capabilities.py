"""Complex products, triangles by a mask, and products streamed through the device, each beside what others do."""

import pandas

from spectile_study.bench.rows import at
from spectile_study.bench.stats import geometric_mean, paired_ratio, speedups
from spectile_study.figures.palette import name
from spectile_study.figures.tables import Table, first_value
from spectile_study.figures.tsparse import short

#: Methods of ours by what is measured, and the rivals that each is held against.
RIVALS = {
    "complex": {
        f"spectile_{precision}{ending}": (f"{rival}_{precision}{ending}",)
        for rival, ending in (("cupyx", "_as_called"), ("scipy", ""))
        for precision in ("complex128", "complex64")
    },
    "masked": {"masked": ("selected", "cupyx_selected", "scipy_selected", "graphblas_masked")},
    "streamed": dict.fromkeys(("row_blocks", "row_blocks_limited", "limited"), ("cupyx", "link")),
}


def table(frame: pandas.DataFrame) -> Table:
    result = Table("Complex, masked and streamed products: milliseconds and speed-ups as called")
    frame = at(frame, p_part=list(RIVALS))
    lines = []
    for case in dict.fromkeys(frame["case"]):
        here = at(frame, case=case)
        first = here.iloc[0]
        operand = first["p_matrix"] if pandas.notna(first["p_matrix"]) else first["p_product"]
        for ours, rivals in RIVALS[first["p_part"]].items():
            found = at(here, method=ours, status="ok")
            for rival in rivals:
                faster = speedups(here, ours, rival)
                if not len(faster):
                    continue
                line: dict[str, object] = {"what": first["p_part"], "operand": short(operand)}
                line |= {"entries of C": int(first["v_nnz_c"]), "method": name(ours), "rival": name(rival)}
                line["ms"] = 1e3 * float(found["time_s"].iloc[0])
                if rival == "link":
                    line["share of the link"] = _share(here, ours)
                else:
                    line["speed-up"] = first_value(faster, "speedup")
                result.cite(found, "time_s").cite(faster, "speedup").cite(found, "v_nnz_c")
                lines.append(line)
    result.data = pandas.DataFrame(lines)
    result.formats = {"entries of C": "{:,}", "speed-up": "{:.2f}", "share of the link": "{:.2f}"}
    if not lines:
        result.notes.append("This run holds no record of complex, masked or streamed products.")
    elif "speed-up" in result.data:
        for (what, ours, rival), part in result.data.dropna(subset="speed-up").groupby(["what", "method", "rival"]):
            values = list(part["speed-up"])
            mean = f"geometric mean {geometric_mean(values):.2f} of {len(values)}, least {min(values):.2f}"
            result.notes.append(f"{what}: {ours} over {rival}: {mean}.")
    failed = frame[frame["status"] == "failed"]
    result.notes += [f"{row.case}, {row.method}: {row.reason}" for row in failed.itertuples()]
    return result


def _share(here: pandas.DataFrame, ours: str) -> float:
    """Return the rate at which C came, over that of a copy of the same run."""
    rows = [at(here, method=method, status="ok").iloc[0] for method in (ours, "link")]
    return paired_ratio(rows[1]["samples_s"], rows[0]["samples_s"]).median * rows[0]["bytes"] / rows[1]["bytes"]
