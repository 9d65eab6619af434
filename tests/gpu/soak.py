"""Ten thousand mixed calls: device and host memory end where they began.

python tests/gpu/soak.py [calls]
"""

from __future__ import annotations

import resource
import sys

import cupy
import cupyx.scipy.sparse
import numpy as np
import scipy.sparse as sp

import spectile


def main(calls: int) -> int:
    """Run the calls and print the memory in use at ten points; return 1 if it grew after the first tenth."""
    rng = np.random.default_rng(1)
    dense = {n: cupy.asarray(rng.standard_normal((n, n))) for n in (17, 64, 200, 513)}
    sparse = [
        cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(sp.random_array((n, n), density=0.02, rng=n))) for n in (50, 400)
    ]
    pattern = spectile.tsparse.symbolic(sparse[1], sparse[1])
    kinds = (
        lambda k: spectile.spamm(*[dense[list(dense)[k % 4]].astype(("f4", "f2", "f8")[k % 3])] * 2, tau=1.0),
        lambda k: spectile.spamm(*[dense[list(dense)[k % 4]]] * 2, valid_ratio=0.3),
        lambda k: spectile.spgemm(*[sparse[k % 2]] * 2, precision=("float64", "float32", "float16")[k % 3]),
        lambda k: pattern.multiply(sparse[1], sparse[1]),
        lambda k: spectile.eigh(dense[list(dense)[k % 3]], eigvals_only=bool(k % 2)),
        lambda k: spectile.kpm_dos(sparse[k % 2] + sparse[k % 2].T, 16, 1 + k % 5, rng=k),
    )
    seen = []
    for number in range(calls + 1):
        if number % max(1, calls // 10) == 0:
            cupy.cuda.Device().synchronize()
            pool = cupy.get_default_memory_pool()
            seen.append((pool.used_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
            print(
                f"{number:6} calls: {seen[-1][0]:,} bytes in use on the device, {seen[-1][1]:,} MiB at most on the host"
            )
        kinds[number % len(kinds)](number // len(kinds))
    grown_device, grown_host = seen[-1][0] - seen[1][0], seen[-1][1] - seen[1][1]
    print(f"grown since the first tenth: {grown_device:,} bytes on the device, {grown_host:,} MiB on the host")
    return int(grown_device > 0 or grown_host > 64)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
