"""Table 5 of cuSpAMM: accuracy and speed of a network with one convolution thresholded."""

import pandas

from spectile_study.bench.claims import select
from spectile_study.bench.stats import speedups
from spectile_study.cases.spamm.build import network_ratios, skip_reasons
from spectile_study.figures.style import Table, claims, printed


def table(frame: pandas.DataFrame) -> Table:
    rows = pandas.concat([select(frame, f"p_study={study}") for study in ("vgg", "digits")])
    rows = rows.reindex(columns=rows.columns.union(["status", "method", "p_layer", "p_precision", "p_gpus"]))
    result = Table("Table 5: a convolutional network with one layer's product thresholded", pandas.DataFrame())
    lines = []
    done = rows[rows["status"] == "ok"]
    wanted = {(layer, "fp32") for layer in ("conv21", "conv31", "digits")}
    for layer, precision in sorted(wanted.union(zip(done["p_layer"], done["p_precision"], strict=True))):
        here = done[(done["p_layer"] == layer) & (done["p_precision"] == precision)]
        for name in dict.fromkeys([*network_ratios(layer), *(m for m in here["method"] if m.startswith("spectile"))]):
            where = layer if layer != "digits" else "digits on the CPU (not in the paper)"
            chosen = "the paper's" if "tau" in name else "for the paper's share"
            line: dict[str, object] = {"layer": where, "precision": precision, "tau chosen": chosen}
            one = here[(here["method"] == name) & (here["p_gpus"] <= 1)]
            patterns = {"valid ratio": "{:.2%}", "tau": "{:.4g}", "accuracy change": "{:+.2%}"}
            for label, pattern in patterns.items():
                column = "v_" + label.replace(" ", "_")
                have = len(one) and column in one and pandas.notna(one[column].iloc[0])
                line[label] = pattern.format(one[column].iloc[0]) if have else None
                if have:
                    result.cite(one, column)
            claim = f"spamm_t5_{layer}_{name.removeprefix('spectile_')}"
            printed_here = precision == "fp32" and f"{claim}_valid" in claims().index
            line["paper: valid ratio"] = f"{printed(claim + '_valid'):.2%}" if printed_here else ""
            line["paper: accuracy change"] = f"{printed(claim + '_accuracy'):+.1%}" if printed_here else ""
            for gpus in (1, 2, 4):
                group = here[here["p_gpus"].clip(lower=1) == gpus]
                fast = [speedups(group, name, vendor) for vendor in ("cublas", "blas")] if len(group) else []
                found = pandas.concat(fast) if fast else group
                if len(found):
                    result.cite(found, "speedup")
                text = f"{found['speedup'].iloc[0]:.2f}" if len(found) else "-"
                paper = f"\npaper {printed(f'{claim}_gpus{gpus}'):g}" if printed_here else ""
                line[f"speed-up, {gpus} GPU{'s' if gpus > 1 else ''}"] = text + paper
            lines.append(line)
    result.data = pandas.DataFrame(lines)
    devices = sorted(set(rows["device"])) if len(rows) else []
    base = done["v_accuracy_base"].dropna() if "v_accuracy_base" in done else []
    result.notes = [
        "A threshold belongs to a network's weights: ours are chosen to leave the paper's shares of valid products; "
        "the paper's own are applied to our weights beside them.",
        *(f"Accuracy with no layer thresholded: {value:.2%} (the paper's 96.6 %)." for value in sorted(set(base))),
        "The rows tau = 0.1 and 0.05 of conv21 are swapped in the paper; its 2.8x at 97 % valid passes 1/valid ratio.",
        f"Measured on {', '.join(devices)}." if devices else "This run holds no record of a network.",
        *skip_reasons(rows),
    ]
    return result
