"""Write the tables of README.md and docs/performance/*.md anew, from recorded measurements: ``python docs/tables.py``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; the page's own words around it are left alone.
tests/study/test_pages.py checks that the pages hold what this script would write.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas

from spectile_study.bench import claims, record
from spectile_study.bench.stats import geometric_mean, paired_ratio, speedups
from spectile_study.cases.kpm.matrices import WIDTHS
from spectile_study.cases.tsparse.installed import NAMES as RIVALS
from spectile_study.everyday import drawing
from spectile_study.everyday import frame as frames
from spectile_study.figures import judged
from spectile_study.figures.elements import SCRIPTS, elements
from spectile_study.figures.evd import PROBLEMS, ordered_problems, timed, words_of_problem
from spectile_study.figures.headlines import CUSOLVER, headlines, squares
from spectile_study.figures.tables import Table
from spectile_study.papers import PAPERS

ROOT = Path(__file__).resolve().parents[1]
KPM_METHODS = {
    "aug_spmmv_sell": "stored matrix, SELL",
    "aug_spmmv": "stored matrix, CSR",
    "stencil": "matrix-free, one step a sweep",
    "blocked": "matrix-free, two steps in one sweep",
}
KPM_CALLS = {"as_called_stored": "stored matrix", "as_called_free": "matrix-free"}
STEPS = 4  # of one recorded call
DTYPES = ("float64", "float32", "complex128", "complex64")


def _frame(machine: str, paper: str) -> pandas.DataFrame:
    return record.read_frame(ROOT / f"results/recorded/{machine}/{paper}.parquet").copy()  # in one piece


def _passed(machine: str, paper: str, study: str) -> pandas.DataFrame:
    """Return the rows of a study's methods that passed."""
    frame = _frame(machine, paper)
    return frame[(frame["p_study"] == study) & (frame["status"] == "ok")]


def _extremes(found: pandas.DataFrame, column: str) -> list[str]:
    """Return the least, the geometric mean and the largest of speed-ups, the ends with what they are of."""
    s = found["speedup"]
    least, most = (found.loc[place, column].split("/")[-1] for place in (s.idxmin(), s.idxmax()))
    return [f"{s.min():.2f} ({least})", f"{geometric_mean(s):.2f}", f"{s.max():.2f} ({most})"]


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]], used: pandas.DataFrame, machine: str) -> str:
    """Return the table, and a line that names the record and the commits that measured it."""
    if used.empty:
        return f"{_table(head, rows)}\n\nNot recorded yet."
    source = _source(used, f"{machine}/{used['paper'].iloc[0]}")
    return f"{_table(head, rows)}\n\n{source}"


def _source(used: pandas.DataFrame, name: str, made: str = "") -> str:
    """Return the line that names a record, and the commits that measured these rows of it."""
    days = used["run_measured_at"].astype(str).str[:10].where(used["run_measured_at"].notna(), "undated")
    commits = [f"{commit} ({day})" for day, commit in sorted(set(zip(days, used["commit"].str[:7], strict=True)))]
    return f"Record: `results/recorded/{name}.parquet`, {made}measured at {', '.join(commits)}."


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _duration(seconds: float) -> str:
    if seconds >= 999.5:
        return f"{float(f'{seconds:.3g}'):,.0f} s"
    unit, scale = ("s", 1.0) if seconds >= 0.9995 else ("ms", 1e3)
    return f"{seconds * scale:.3g} {unit}"


def _ratio(value: float) -> str:
    """Return a ratio with no more digits than mean something: three, of a large one."""
    return f"{value:.2f}" if value < 100 else f"{float(f'{value:.3g}'):,.0f}"


def spamm_within(machine: str) -> str:
    """Return time, error that came out, and speed-up over the dense product of products within an error, by matrix."""
    frame = _frame(machine, "spamm")
    rows, used = [], [frame.iloc[:0]]
    asked = frame[frame["method"].str.startswith("called_rtol_") & (frame["status"] == "ok")]
    for (case, method), ours in asked.groupby(["case", "method"], sort=False):
        here = frame[frame["case"] == case]
        found = [speedups(here, method, dense) for dense in ("called_dense", "blas")]
        over = next((each for each in found if len(each)), None)
        if over is None:
            continue
        used.append(ours)
        row, within = ours.iloc[0], float(method.removeprefix("called_rtol_"))
        rows.append([
            row["v_matrix"], f"{row['v_rows']:,.0f}", row["p_precision"], f"{within:.0e}",
            f"{row['error_fro_rel']:.1e}", f"{row['v_valid_ratio']:.2%}", _duration(row["time_s"]),
            f"{over['speedup'].iloc[0]:.2f}",
        ])  # fmt: skip
    head = ["matrix A", "n", "precision", "rtol_factors", "error of A²", "valid", "time", "speed-up over dense"]
    return _markdown(head, rows, pandas.concat(used), machine)


def tsparse_second(machine: str) -> str:
    """Return speed-ups as called over the second set: of the product, and of its values where the pattern is known."""
    frame, rows, used = _frame(machine, "tsparse"), [], []
    pairs = [
        ("`spgemm`, one call", "spectile", "cupyx", "as_called", "CuPy's `A @ B`"),
        ("`spgemm`, many calls", "spectile", "cupyx", "throughput", "CuPy's `A @ B`"),
        ("`numeric`, one call", "numeric", "spectile", "as_called", "`spgemm`"),
        ("`numeric`, many calls", "numeric", "cusparse_reuse", "throughput", "cuSPARSE, pattern reused"),
    ]
    frame = frame.iloc[:0] if "p_product" not in frame else frame[frame["p_product"].notna()]
    for dtype in ("float64", "float32"):
        for what, ours, theirs, how, over in pairs:
            found = speedups(frame, f"{ours}_{dtype}_{how}", f"{theirs}_{dtype}_{how}")
            used.append(found)
            if len(found):
                rows.append([what, dtype, over, str(len(found)), *_extremes(found, "p_product")])
    head = ["call", "precision", "over", "products", "least", "geometric mean", "largest"]
    return _markdown(head, rows, pandas.concat([frame.iloc[:0], *used]), machine)


def tsparse_product(machine: str, baseline: str) -> str:
    """Return how much faster products are than the baseline's, over all matrices of the record."""
    frame, rows, used = squares(_frame(machine, "tsparse")), [], []
    for dtype in ("float64", "float32"):
        ours = speedups(frame, f"spectile_{dtype}", f"{baseline}_{dtype}")
        used.append(ours)
        if len(ours):
            rows.append([dtype, str(len(ours)), *_extremes(ours, "p_matrix")])
    head = ["precision", "matrices", "least speed-up", "geometric mean", "largest speed-up"]
    return _markdown(head, rows, pandas.concat([frame.iloc[:0], *used]), machine)


def tsparse_rivals(machine: str) -> str:
    """Return the time of each rival's product over ours in its precision, and on how many matrices it is right."""
    frame, rows, used = squares(_frame(machine, "tsparse")), [], []
    for rival, name in RIVALS.items():
        tried = frame[(frame["method"] == rival) & (frame["status"] != "skipped")]
        if tried.empty:
            continue
        precision = tried["v_precision"].dropna().iloc[0]
        found = speedups(frame[frame["case"].isin(tried["case"])], f"spectile_{precision}", rival)
        used.append(found)
        if len(found):
            rows.append([name, precision, f"{len(found)} of {len(tried)}", *_extremes(found, "p_matrix")])
    head = ["rival", "precision", "right on", "least", "geometric mean", "largest"]
    return _markdown(head, rows, pandas.concat([frame.iloc[:0], *used]), machine)


def evd_solver(machine: str, orders: Iterable[int]) -> str:
    """Return speed-up over the vendor's solvers, and time, of `eigvalsh` and `eigh` by order and dtype."""
    frame, used = _frame(machine, "evd"), []
    cells: dict[tuple[str, int], dict[str, str]] = {}
    frame = frame[frame["case"].str.startswith("evd_") & frame["p_n"].isin(list(orders))]
    task = frame["case"].str.extract(r"evd_\d+_(values|vectors)_?([a-z]+\d+)?")
    for name, call in (("values", "eigvalsh"), ("vectors", "eigh")):
        for dtype in DTYPES:
            part = frame[(task[0] == name) & (task[1].fillna(DTYPES[0]) == dtype)]
            ours = part[(part["method"] == "spectile") & (part["status"] == "ok")].set_index("p_n")
            if ours.empty:
                continue
            found = [speedups(part, "spectile", method).set_index("p_n") for method in CUSOLVER]
            for n in (n for n in orders if n in ours.index):
                over = [f"{each.at[n, 'speedup']:.2f}" if n in each.index else "" for each in found]
                known = ", ".join(
                    ratio + words for ratio, words in zip(over, ("", " two stages"), strict=True) if ratio
                )
                told = f"{known} ({_duration(ours.at[n, 'time_s'])})".strip()
                cells.setdefault((call, n), {})[dtype] = told
            used += [ours, *(part.loc[part["record"].isin(each["record"])] for each in found)]
    dtypes = [dtype for dtype in DTYPES if any(dtype in row for row in cells.values())]
    rows = [[call, f"{n:,}", *(row.get(dtype, "") for dtype in dtypes)] for (call, n), row in cells.items()]
    return _markdown(["call", "n", *dtypes], rows, pandas.concat([frame.iloc[:0], *used]), machine)


def evd_problems(machine: str) -> str:
    """Return the time of ours and the speed-up over each rival, by problem."""
    frame, rows = _frame(machine, "evd"), []
    frame = frame[frame["p_study"] == "problems"]
    for case in ordered_problems(frame):
        here = frame[frame["case"] == case]
        ours, first = timed(here, "spectile"), here.iloc[0]
        cells = []
        for method, words in PROBLEMS[first["p_problem"]].items():
            found = speedups(here, "spectile", method)["speedup"]
            cells += [f"{_ratio(found.iloc[0])} ({words})"] if len(found) else []
        time = _duration(ours["time_s"].iloc[0]) if len(ours) else "fails"
        rows.append([f"{first['p_problem']}: {words_of_problem(first)}", time, "; ".join(cells) or "-"])
    return _markdown(["problem", "time", "speed-up over"], rows, frame, machine)


def evd_drivers(machine: str) -> str:
    """Return the time of ours on the host's cores, and over the best of SciPy's drivers, by order."""
    frame, rows = _passed(machine, "evd", "drivers"), []
    for n in sorted(frame["p_n"].unique()):
        cells = []
        for vectors in (False, True):
            here = frame[(frame["p_n"] == n) & (frame["p_vectors"].astype(bool) == vectors)]
            ours, rivals = here[here["method"] == "spectile"], here[here["method"].str.startswith("scipy_")]
            if ours.empty or rivals.empty:
                cells.append("-")
                continue
            best = rivals.loc[rivals["time_s"].idxmin()]
            ratio = paired_ratio(best["samples_s"], ours["samples_s"].iloc[0]).median
            words = f"{_duration(ours['time_s'].iloc[0])}, {best['method'].removeprefix('scipy_')}"
            cells.append(f"{ratio:.2f} ({words})")
        rows.append([f"{n:,.0f}", *cells])
    return _markdown(["n", "eigvalsh", "eigh"], rows, frame, machine)


def kpm_step(machine: str, study: str) -> str:
    """Return the time of one Chebyshev step by number of vectors, for each way to apply the matrix."""
    frame = _frame(machine, "kpm")
    ok = (frame["status"] == "ok") & (frame["p_precision"] == "complex128") & frame["method"].isin(list(KPM_METHODS))
    frame = frame[ok & frame["case"].str.fullmatch(rf"{study}_r\d+")]
    vectors = sorted(frame["p_num_vectors"].unique())
    cells = frame.set_index(["method", "p_num_vectors"])["time_s"] / STEPS
    rows = [
        [name, *(_duration(cells[method, r]) if (method, r) in cells.index else "" for r in vectors)]
        for method, name in KPM_METHODS.items()
    ]
    return _markdown(["H", *(f"R = {int(r)}" for r in vectors)], rows, frame, machine)


def kpm_calls(machine: str, study: str) -> str:
    """Return the time of a call of ``kpm_dos`` by number of vectors, and how much of it comes before the recurrence."""
    frame = _frame(machine, "kpm")
    frame = frame[(frame["status"] == "ok") & frame["case"].str.fullmatch(rf"{study}_r\d+")]
    vectors = sorted(frame["p_num_vectors"].unique())
    frame = frame[frame["method"].str.startswith("as_called_")]
    times = frame.set_index(["method", "p_num_vectors"])["time_s"]
    rows = []
    for name, words in KPM_CALLS.items():
        cells = []
        for r in vectors:
            known = (name, r) in times.index and (f"{name}_setup", r) in times.index
            cells.append(
                f"{_duration(times[name, r])}, of it {_duration(times[f'{name}_setup', r])}"
                if known
                else "not recorded"
            )
        rows.append([words, *cells])
    return _markdown(["H", *(f"R = {int(r)}" for r in vectors)], rows, frame, machine)


def kpm_dos(machine: str) -> str:
    """Return the time of whole densities of states."""
    frame = _frame(machine, "kpm")
    whole = frame["p_study"].isin(["dos", "host_dos"]) & (frame["method"] == "spectile")
    frame = frame[whole & (frame["status"] == "ok")].sort_values("p_nx")
    rows = [
        [
            f"{4 * int(row.p_nx * row.p_ny * row.p_nz):,}",
            f"{int(row.p_num_moments)}",
            f"{int(row.p_num_vectors)}",
            "GPU" if row.case.startswith("dos_") else "CPU",
            _duration(row.time_s),
        ]
        for row in frame.itertuples()
    ]
    return _markdown(["rows of H", "moments M", "vectors R", "on", "time"], rows, frame, machine)


def _of_report(paper: str, name: str, machine: str) -> tuple[Table, pandas.DataFrame]:
    """Return a table of the report, and the rows of the records that it draws from."""
    frame = _frame(machine, paper)
    (element,) = (element for element in elements(paper) if element.name == name)
    table = element.draw(frame)
    return table, frame[frame["record"].isin({source["record"] for source in table.sources})]


def as_drawn(paper: str, name: str, machine: str) -> str:
    """Return a table of the report, and what of it is of a single sample or of an earlier record."""
    table, used = _of_report(paper, name, machine)
    head, *lines = table.words()
    said = " ".join(each for each in table.said() if each not in table.notes)
    return f"{_markdown(head, lines, used, machine)} {said}".strip() if lines else "Not recorded yet."


def capabilities(machine: str) -> str:
    """Return geometric means of complex, masked and streamed products over their rivals."""
    table, used = _of_report("tsparse", "capabilities", machine)
    if table.data.empty:
        return "Not recorded yet."
    rows = []
    for (what, ours, rival), part in table.data.groupby(["what", "method", "rival"], sort=False):
        over = part["share of the link" if rival == "link" else "speed-up"].astype(float)
        value = geometric_mean(list(over))
        shown = [f"{each:.0%}" if rival == "link" else f"{each:.2f}" for each in (over.min(), value, over.max())]
        rows.append([what, ours, "the link's rate" if rival == "link" else rival, f"{len(over)}", *shown])
    head = ["products", "ours", "over", "matrices", "least", "geometric mean", "most"]
    return _markdown(head, rows, used, machine)


def density(machine: str) -> str:
    """Return the time of density matrices of water beside those of dense solvers, and their errors."""
    frame, rows = _passed(machine, "spamm", "density"), []
    frame = frame[frame["device"].str.contains("NVIDIA")]
    for _, here in frame.sort_values("p_molecules").groupby("case", sort=False):
        times, first = here.set_index("method")["time_s"], here.iloc[0]
        dense = [_duration(times[name]) if name in times else "" for name in ("eigh", "cusolver", "sp2_cublas")]
        ours = here[here["method"].str.startswith("density_")].sort_values("method")
        for row in ours.itertuples():
            asked = row.method.removeprefix("density_")
            cells = [asked, f"{row.error_fro_rel:.1e}", f"{row.error_bound_rel:.1e}", _duration(row.time_s), *dense]
            rows.append([f"{int(first['p_molecules']):,}", f"{int(first['v_rows']):,}", *cells])
    head = ["molecules", "n", "error asked", "found", "guaranteed", "density_matrix"]
    return _markdown([*head, "eigh, ours", "cuSOLVER", "SP2 by cuBLAS"], rows, frame, machine)


def kpm_conductivity(machine: str) -> str:
    """Return the time of a whole conductivity beside that of matrix products by cuBLAS, and beside Kwant on a CPU."""
    frame, host = (_passed(name, "kpm", "conductivity") for name in (machine, "epyc2"))
    kwant = host[host["method"] == "kwant_extrapolated"].set_index("case")["time_s"]
    rows = []
    for case, here in frame.groupby("case", sort=False):
        first, times = here.iloc[0], here.set_index("method")["time_s"]
        if "spectile" not in times:
            continue
        size, moments = int(first["p_rows"]), int(first["p_num_moments"])
        rivals = [rival.get(name) for rival, name in ((times, "gemm"), (kwant, case))]
        cells = ["" if time is None else f"{_duration(time)}, {_ratio(time / times['spectile'])}" for time in rivals]
        ours = _duration(times["spectile"])
        rows.append([f"{size:,}", f"{moments} x {moments}", f"{int(first['p_num_vectors'])}", ours, *cells])
    words = ["rows of H", "moments", "vectors R", "conductivity", "CuPy: SpMM and GEMM, ratio", "Kwant on epyc2, ratio"]
    return _markdown(words, rows, frame, machine)


def kpm_interior(machine: str) -> str:
    """Return the time of all pairs of a window beside that of sparse factors on the host."""
    frame = _passed(machine, "kpm", "interior")
    rows = []
    for _, here in frame.sort_values("p_rows").groupby("case", sort=False):
        methods = here.set_index("method")
        if "spectile" not in methods.index:
            continue
        ours = methods.loc["spectile"]
        counted = f"{ours['v_counted']:.0f} ± {ours['v_counted_error']:.0f}"
        cells = [f"{ours['error_residual']:.0e}", f"{ours['error_orthogonality']:.0e}", _duration(ours["time_s"])]
        rival = _duration(methods.at["shift_invert", "time_s"]) if "shift_invert" in methods.index else ""
        rows.append([f"{int(ours['v_rows']):,}", f"{int(ours['v_pairs'])}", counted, *cells, rival])
    words = ["rows of H", "pairs", "counted", "residual", "XᵀX - 1", "filter_diagonalize", "SciPy, LU and ARPACK"]
    return _markdown(words, rows, frame, machine)


def kpm_evolution(machine: str) -> str:
    """Return a step's time of the iterator and of states that evolve, their shares of the copy rate, and rivals."""
    frame = _passed(machine, "kpm", "evolution")
    rows = []
    for _, here in frame.groupby("case", sort=False):
        first, methods = here.iloc[0], here.set_index("method")
        moved, took, steps = methods["bytes"], methods["time_s"], methods["v_moments"] - 1
        for width in WIDTHS:
            names = [f"{name}_r{width}" for name in ("iterator", "chain", "evolve", "evolve_setup", "evolve_chain")]
            if not {"copy", *names} <= set(methods.index):
                continue
            iterator, chain, evolve, setup, summed = names
            rate = moved["copy"] / took["copy"]
            within = (moved[evolve] - moved[setup]) / (took[evolve] - took[setup]) / rate
            scipy = took.get(f"expm_multiply_r{width}")
            rows.append([
                first["p_matrix"], f"{int(first['v_rows']):,}", first["p_precision"], f"{width}",
                f"{_duration(took[iterator] / steps[iterator])}, {moved[iterator] / took[iterator] / rate:.0%}",
                f"{took[chain] / took[iterator]:.2f}",
                f"{_duration(took[evolve] / steps[evolve])}, {moved[evolve] / took[evolve] / rate:.0%}, {within:.0%}",
                f"{took[summed] / took[evolve]:.2f}", "" if scipy is None else f"{scipy / took[evolve]:,.0f}",
            ])  # fmt: skip
    heads = ["R", "iterator, a term", "SpMM over it", "evolve, a term", "SpMM over it", "SciPy on the host over it"]
    return _markdown(["matrix", "rows of H", "type", *heads], rows, frame, machine)


def kpm_matrices(machine: str) -> str:
    """Return the time of a step of the recurrence, and of a call, with their shares of the copy rate."""
    frame = _passed(machine, "kpm", "matrix")
    rows = []
    for _, here in frame.groupby("case", sort=False):
        first, methods = here.iloc[0], here.set_index("method")
        rates = (methods["bytes"] / methods["time_s"]).to_dict()
        row = [first["p_matrix"], f"{first['v_nnz_per_row']:.0f}", first["p_precision"]]
        for method, steps in [*((f"step_r{width}", STEPS) for width in WIDTHS), (f"as_called_r{WIDTHS[-1]}", 1)]:
            share = f", {rates[method] / rates['copy']:.0%}" if {method, "copy"} <= set(rates) else ""
            row.append(
                f"{_duration(methods.at[method, 'time_s'] / steps)}{share}" if method in rates else "not recorded"
            )
        rows.append(row)
    heads = [*(f"step, R = {width}" for width in WIDTHS), f"kpm_dos, R = {WIDTHS[-1]}"]
    return _markdown(["matrix", "entries a row", "type", *heads], rows, frame, machine)


def summary(*machines: str) -> str:
    """Return speed-ups of each system, each on the first of the machines that has recorded it."""
    rows, lacking = [], []
    found = ([each for paper in PAPERS for each in headlines(paper, _frame(machine, paper))] for machine in machines)
    for each in zip(*found, strict=True):
        for machine, line in zip(machines, each, strict=True):
            if line.most:
                told = line.what + (_errors(line.calls) if line.device is None else "")
                extents = line.extent(line.calls), line.extent(line.device)
                rows.append([told, line.over, line.cases(line.most), machine.upper(), *extents])
                break
        else:
            lacking.append(each[0].what)
    table = _table(["what", "over", "of", "on one", "a call", "the device alone"], rows)
    return table + (f"\n\nNot recorded yet: {'; '.join(lacking)}." if lacking else "")


@functools.cache
def _draws() -> list[pandas.DataFrame]:
    """Return the recorded frames of everyday draws, a machine each."""
    return [frames.read(path) for path in sorted((ROOT / "results/recorded").glob("*/everyday.parquet"))]


def _drawn(frame: pandas.DataFrame) -> str:
    """Return the line below a table of everyday draws."""
    name, seeds = f"{frame['machine'].iloc[0]}/everyday", sorted(set(frame["seed"]))
    told = f"seed{'s' if len(seeds) > 1 else ''} {' and '.join(map(str, seeds))}, "
    return _source(frame[frame["commit"].notna()], name, told)


def everyday() -> str:
    """Return the distribution of the everyday draws of each machine and system."""
    rows, lines = [], []
    for frame in _draws():
        lines.append(_drawn(frame))
        for system, call in drawing.CALLS.items():
            found = drawing.compared(frame, system)
            if len(found):
                works = found["device_share"].dropna().astype(float)
                rows.append([
                    f"`{call}`", found["device"].iloc[0], str(len(found)),
                    *(f"{value:.2f}" for value in drawing.quantiles(found)),
                    f"{(found['ratio'] < 1).mean():.0%}", f"{works.median():.0%}" if len(works) else "",
                ])  # fmt: skip
    head = ["call", "on", "draws", "5 %", "median", "95 %", "slower than the alternative", "the device works"]
    return "\n\n".join([_table(head, rows), " ".join(lines) or "Not recorded yet."])


def worst(system: str) -> str:
    """Return the worst everyday draws of a system on each machine, and what bounds them."""
    rows, lines = [], []
    for frame in _draws():
        found = drawing.compared(frame, system).head(drawing.WORST)
        lines += [_drawn(frame[frame["system"] == system])] if len(found) else []
        rows += [
            [
                row["device"], row["draw"], " by ".join(filter(None, (_duration(row["seconds"]), row["library"]))),
                f"{_duration(row['rival_s'])} by {row['rival'].replace('_', ' ')}",
                f"{row['ratio']:.2f}", drawing.bound_by(row),
            ]
            for _, row in found.iterrows()
        ]  # fmt: skip
    head = ["on", "draw", "the call", "the alternative", "ratio", "bound by"]
    return "\n\n".join([_table(head, rows), " ".join(lines) or "Not recorded yet."])


def _errors(found: pandas.DataFrame) -> str:
    """Return in words which errors of the product came out."""
    errors = found["error_fro_rel"].astype(float)
    return f": error {errors.min():.0e} to {errors.max():.0e} of ‖AA‖" if len(errors) else ""


def verdicts(machine: str) -> str:
    """Return how many claims of each paper are reproduced, by kind, and how many have no verdict, by cause."""
    table = claims.read_claims(ROOT / "config/claims.tsv")
    found = judged.evaluate(table, [_frame(machine, paper) for paper in PAPERS], ROOT / SCRIPTS)
    rows = []
    for paper, known in PAPERS.items():
        of_paper = found[(found["paper"] == paper) & found["kind"].isin(claims.JUDGED)]
        own, vendors = (of_paper[of_paper["about"] == about] for about in claims.ABOUT)
        cells = [_reproduced(own[own["kind"] == kind]) for kind in claims.JUDGED]
        why = ", ".join(f"{cause} {count}" for cause, count in claims.causes(of_paper).items())
        without = f"{(of_paper['cause'] != '').sum()} of {len(of_paper)}: {why}"
        rows.append([known.name, *cells, _reproduced(vendors), without])
    return _table(["paper", *claims.JUDGED, "of a vendor alone", "without a verdict"], rows)


def undated() -> str:
    """Return the cases whose rows say neither driver nor date, by machine, paper and element: to be recorded anew."""
    rows = []
    for path in sorted(path for paper in PAPERS for path in (ROOT / "results/recorded").glob(f"*/{paper}.parquet")):
        whole = record.read_frame(path, whole=True)
        silent = whole[~record.says_its_source(whole) & whole["time_s"].notna()]
        for element, found in silent.groupby(silent["p_element"].fillna("none"), sort=True):
            names = sorted(set(found["case"]))
            rows.append(
                [path.parent.name, path.stem, element, str(len(names)), ", ".join(f"`{name}`" for name in names)]
            )
    return _table(["machine", "paper", "drawn by", "cases", "names"], rows) if rows else "None."


def _reproduced(evaluated: pandas.DataFrame) -> str:
    """Return how many of the claims with a verdict are reproduced, and what the others are."""
    verdicts = evaluated.loc[evaluated["verdict"].isin(claims.VERDICTS), "verdict"]
    others = verdicts[~verdicts.isin(claims.HOLDS)].value_counts()
    more = ", ".join(f"{count} {verdict}" for verdict, count in others.items())
    held = f"{verdicts.isin(claims.HOLDS).sum()} of {len(verdicts)}" if len(verdicts) else ""
    return f"{held} ({more})" if more else held


TABLES: dict[str, Callable[[], str]] = {
    "readme everyday": everyday,
    "readme speed": lambda: summary("h200", "h100"),
    **{f"{system} worst": functools.partial(worst, system) for system in drawing.CALLS},
    "undated": undated,
    "readme claims": lambda: verdicts("h200"),
    "spamm gpu": lambda: spamm_within("h200"),
    "spamm on an h100": lambda: spamm_within("h100"),
    "tsparse gpu": lambda: tsparse_product("h200", "cusparse"),
    "tsparse rivals": lambda: tsparse_rivals("h200"),
    "tsparse second": lambda: tsparse_second("h200"),
    "tsparse on an h100": lambda: tsparse_product("h100", "cusparse"),
    "tsparse second on an h100": lambda: tsparse_second("h100"),
    "evd gpu": lambda: evd_solver("h200", (1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    "evd on an h100": lambda: evd_solver("h100", (2048, 4096, 8192)),
    "evd problems": lambda: evd_problems("h200"),
    "evd drivers": lambda: evd_drivers("epyc2"),
    "evd drivers on a large host": lambda: evd_drivers("h200"),
    "evd batches cpu": lambda: evd_problems("epyc2"),
    "kpm step": lambda: kpm_step("h200", "step_200x100x40"),
    "kpm calls": lambda: kpm_calls("h200", "step_200x100x40"),
    "kpm calls on an h100": lambda: kpm_calls("h100", "step_200x100x40"),
    "kpm matrices": lambda: kpm_matrices("h200"),
    "kpm matrices on an h100": lambda: kpm_matrices("h100"),
    "kpm dos gpu": lambda: kpm_dos("h200"),
    "density": lambda: density("h200"),
    "tsparse capabilities": lambda: capabilities("h200"),
    "tsparse host": lambda: capabilities("epyc2"),
    **{
        f"evd {name}": functools.partial(as_drawn, "evd", name, "h200")
        for name in ("devices", "gradients", "sequences")
    },
    "kpm conductivity": lambda: kpm_conductivity("h200"),
    "kpm interior": lambda: kpm_interior("h200"),
    "kpm evolution": lambda: kpm_evolution("h200"),
}


def written(page: Path) -> str:
    """Return the text of `page` with every table as the records have it now."""
    return re.sub(
        r"<!-- table ([a-z0-9 ]+) -->\n.*?<!-- end -->",
        lambda match: f"<!-- table {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->",
        page.read_text(),
        flags=re.DOTALL,
    )


def main() -> int:
    """Write all pages."""
    for page in (ROOT / "README.md", ROOT / "docs/records.md", *sorted((ROOT / "docs/performance").glob("*.md"))):
        page.write_text(written(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
