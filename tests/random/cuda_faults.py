"""Plant single faults in CUDA sources and see which the GPU's tests find: ``python -m tests.random.cuda_faults``.

Works on a copy of the tree in a temporary folder, on a machine with a GPU; ``--check`` says, on any machine, whether
each fault still has its place.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.random.mutate import ROOT, run_tests


class Fault(NamedTuple):
    """What stands at one place of a source below src/spectile, what takes its place, and what is to find it."""

    path: str
    old: str
    new: str
    tests: tuple[str, ...]


NORMS = SEARCH = ("tests/gpu/nearsparse/test_spamm.py",)
#: Alone: the whole file takes longer than a fault may.
EQUAL = (f"{SEARCH[0]}::test_products_of_norms_that_equal_the_threshold_are_multiplied",)
ROWS = ("tests/gpu/tsparse/test_spgemm.py",)
EIGH = ("tests/gpu/evd/test_eigh.py",)
RANGES, SIZES = ("tests/gpu/nearsparse/test_range.py",), ("tests/gpu/evd/test_range.py",)
NARROW = ("tests/gpu/evd/test_narrow_families.py", "tests/gpu/evd/test_problems.py")
DENSITY = ("tests/gpu/kpm/test_kpm.py", "tests/gpu/kpm/test_operators.py")
GROUPED, STEPS = ("tests/gpu/kpm/test_inspection.py",), ("tests/gpu/kpm/test_rows.py",)
_KERNELS, _ROWS, _EVD, _KPM = "nearsparse/cuda/kernels", "tsparse/cuda/rows", "evd/cuda", "kpm/cuda"

FAULTS = (
    # SpAMM: the last column of an edge tile, a bound of an edge, the test itself, the order of norms, its range.
    Fault(
        f"{_KERNELS}/norm_map.cu",
        "i < kVector && column + i < columns",
        "i < kVector && column + i + 1 < columns",
        NORMS,
    ),
    Fault(f"{_KERNELS}/norm_map.cu", "r < min(first + 32, task.rows)", "r < min(first + 31, task.rows)", NORMS),
    Fault(f"{_KERNELS}/norm_map.cu", "const int exponent = ilogb(largest);", "const int exponent = 0;", RANGES),
    Fault(f"{_KERNELS}/product.cu", "if (!(norm_a * norm_b < tau))", "if (!(norm_a * norm_b <= tau))", EQUAL),
    Fault(f"{_KERNELS}/product.cu", "first + row < rows ? max(0", "first + row <= rows ? max(0", SEARCH),
    Fault(
        f"{_KERNELS}/product.cu",
        "if (w < warp) position += warp_totals[w];",
        "if (w <= warp) position += warp_totals[w];",
        SEARCH,
    ),
    # Sparse products: a table's collision, places within a word, rows that fall, exact ends.
    Fault(
        f"{_ROWS}/block.cu", "for (int w = 0; w < t / 32; ++w) before", "for (int w = 1; w < t / 32; ++w) before", ROWS
    ),
    Fault(
        f"{_ROWS}/block.cu",
        "q = s_first[s + d] + 2 * THREADS + t; q <",
        "q = s_first[s + d] + 3 * THREADS + t; q <",
        ROWS,
    ),
    Fault(f"{_ROWS}/rows.cuh", "u32 bit = 1u << (offset & 31);", "u32 bit = 1u << (offset & 15);", ROWS),
    Fault(f"{_ROWS}/rows.cuh", "q < stop; q += THREADS) set", "q + 1 < stop; q += THREADS) set", ROWS),
    Fault(f"{_ROWS}/window.cu", "if (slot[row] + used > capacity)", "if (slot[row] + used > capacity + 64)", ROWS),
    Fault("tsparse/cuda/check.cu", "begin > end || end > nnz", "begin > end", ROWS),
    # The eigensolver: the ends of an interval, the sign of a coupling, deflation, what is not read, the range.
    Fault(f"{_EVD}/tridiagonal/sturm.cu", "base + i < n && base + i > 0", "base + i < n && i > 0", NARROW),
    Fault(f"{_EVD}/tridiagonal/sturm.cu", "counted.below <= first + own", "counted.below < first + own", NARROW),
    Fault(f"{_EVD}/tridiagonal/divide.cu", "i >= h && coupling[base + h - 1] < 0 ? -z : z", "z", EIGH),
    Fault(f"{_EVD}/tridiagonal/divide.cu", "other < value || (other == value && i >= h)", "other < value", EIGH),
    Fault(
        f"{_EVD}/matrix.cu",
        "if (other > parts[threadIdx.x] || other != other)",
        "if (other > parts[threadIdx.x])",
        SIZES,
    ),
    Fault(f"{_EVD}/small/rotations.cu", "if (conjugate) value = conj(value);", "", SIZES),
    # KPM: a group's edge, fill-in, a sum's last part, phases of a later vector.
    Fault(f"{_KPM}/vectors.cu", "other |= indices[at] != indices[at - (begin - before)];", ";", GROUPED),
    Fault(f"{_KPM}/vectors.cu", "k < length ? data[at + k] : zero()", "k <= length ? data[at + k] : zero()", DENSITY),
    Fault(
        f"{_KPM}/vectors.cu", "phase_bits(seed, row, first + i % width)", "phase_bits(seed, row, i % width)", DENSITY
    ),
    Fault(f"{_KPM}/sliced/kernel.cu", "k < now.more; k += UNROLL", "k + 1 < now.more; k += UNROLL", STEPS),
    Fault(f"{_KPM}/csr/kernel.cu", "if (wanted >= place.count) e.value[u] = zero();", "", STEPS),
)


def main() -> int:
    """Plant the faults one by one and print which were found."""
    parser = argparse.ArgumentParser(prog="python -m tests.random.cuda_faults", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only look whether every fault has its place")
    parser.add_argument("--minutes", type=float, default=9.0, help="no fault is begun after so many minutes")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that the tests of one fault may take")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first fault")
    arguments = parser.parse_args()
    lost = [fault for fault in FAULTS if (ROOT / "src/spectile" / fault.path).read_text().count(fault.old) != 1]
    for fault in lost:
        print(f"no place, or several: {fault.path}: {fault.old}")
    if arguments.check or lost:
        return int(bool(lost))
    end, verdicts = time.monotonic() + 60 * arguments.minutes, []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(folder) / "tree"
        apart = shutil.ignore_patterns(".git", ".venv", "results", "resources", "__pycache__", "logs", "cubins")
        shutil.copytree(ROOT, tree, ignore=apart, symlinks=True)
        for number, fault in enumerate(FAULTS):
            if number < arguments.first or time.monotonic() > end:
                continue
            source = tree / "src/spectile" / fault.path
            whole, begun = source.read_text(), time.monotonic()
            source.write_text(whole.replace(fault.old, fault.new))
            verdicts.append(run_tests(tree, list(fault.tests), arguments.timeout))
            source.write_text(whole)
            print(
                f"{number} {verdicts[-1]} {fault.path}: {fault.old} -> {fault.new} ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("killed", "survived", "late"))
    print(f"{counts}, {len(FAULTS) - len(verdicts)} not run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
