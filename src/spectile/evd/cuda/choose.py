"""What was tuned: who solves a matrix, the stages' parameters, and the sizes that kernels are compiled with.

Everything here is a function of the problem and of a `core.device.Device`, so that a host without a GPU can ask it.
The measurements are in docs/notes/evd.md.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from spectile.core.choice import Candidate
from spectile.core.devices import Device
from spectile.evd.types import SCALARS, Scalar


@dataclass(frozen=True)
class Tuning:
    """What was measured on one device: by default on an H200."""

    #: Orders below which cuSOLVER solves faster, by dtype: eigenvalues alone, and with vectors.
    vendor_values: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SCALARS, 0))
    vendor_vectors: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SCALARS, 0))
    #: Orders up to which the direct tridiagonalization is faster than two stages, where it fits.
    direct_values: int = 1800
    direct_vectors: int = 2048
    #: Orders from which a band of 64 is better than one of 32.
    wide_band_values: int = 13_000
    wide_band_vectors: int = 12_000
    block: int = 512  #: Columns between two trailing updates of the band reduction, nb.
    syr2k_block: int = 512  #: Diagonal blocks of the trailing update.
    #: Up to how many eigenvalues how many lanes share one: tuple of (int, int).
    sturm_lanes: tuple[tuple[int, int], ...] = ((512, 32), (10_000, 16), (24_000, 4))
    #: Columns of Z per multiprocessor from which one group of sweeps fills the device, and from which eight warps of
    #: the back-transformation share what they read.
    fill_columns: int = 120
    share_columns: int = 80


_H200 = Tuning()
TUNED = {"NVIDIA H200": _H200, "NVIDIA H100 80GB HBM3": _H200}

#: An order that no matrix reaches.
NEVER = 2**31
#: From this many operations of the products in the time of one of a product with a vector on, two stages pay: for the
#: eigenvalues, and with vectors, which pass through one transformation more.
PAYS_VALUES, PAYS_VECTORS = 1.5, 5.0


@functools.cache
def tuning(device: Device) -> Tuning:
    """Return what was measured on `device`, else what follows from its description.

    Of the 4/3 n³ operations of the usual reduction, half are products of the matrix with a vector, at the rate of the
    memory; two stages make products of matrices of them.  Where that pays at all, it does from the order on that was
    measured: there, the latencies of the columns decide, which are alike on all devices.  With slow arithmetic it does
    not pay for long, and a narrow band is wide enough.
    """
    if device.name in TUNED:
        return TUNED[device.name]
    rates = {name: device.product_rate(scalar.real) for name, scalar in SCALARS.items()}
    vendor = {"values": dict(_H200.vendor_values), "vectors": dict(_H200.vendor_vectors)}
    for name, scalar in SCALARS.items():
        # Four operations for each real number that is read; eight for a complex one.
        by_vector = 4 * scalar.parts * device.bytes_per_second / (scalar.itemsize // scalar.parts)
        if rates[name] < PAYS_VALUES * by_vector:
            vendor["values"][name] = NEVER
        if rates[scalar.wide] < PAYS_VECTORS * by_vector or (scalar.real == "float32" and not device.fast_fp64):
            vendor["vectors"][name] = NEVER
    waits_for_memory = rates["float64"] > 2 * 32 / 8 * device.bytes_per_second
    share = device.multiprocessors * device.threads / (132 * 2048)
    return dataclasses.replace(
        _H200,
        vendor_values=vendor["values"],
        vendor_vectors=vendor["vectors"],
        wide_band_values=_H200.wide_band_values if waits_for_memory else NEVER,
        wide_band_vectors=_H200.wide_band_vectors if waits_for_memory else NEVER,
        sturm_lanes=tuple((int(count * share), lanes) for count, lanes in _H200.sturm_lanes),
    )


# -- who solves -------------------------------------------------------------------------------------------------------


Solver = Literal["rotations", "batched", "vendor", "stages"]


def solver_of(
    n: int, count: int, scalar: Scalar, *, vectors: bool, device: Device, batched: Callable[[], bool]
) -> Solver:
    """Return what solves `count` matrices of order `n`: small ones a launch, batches cuSOLVER, large ones two stages.

    `batched` says whether cuSOLVER has its solver of batches; it is asked where that would be taken.
    """
    if n <= rotated_order(scalar.name, count):
        return "rotations"
    if pays_in_batches(n, count, scalar) and batched():
        return "batched"
    return "vendor" if calls_vendor(n, scalar, vectors=vectors, device=device) else "stages"


def candidates(
    n: int, count: int, scalar: Scalar, *, vectors: bool, device: Device, batched: Callable[[], bool]
) -> list[Candidate]:
    """Return all solvers by their names, the one that :func:`solver_of` takes without a prediction (NaN)."""
    taken = solver_of(n, count, scalar, vectors=vectors, device=device, batched=batched)
    tuned, most = tuning(device), largest_order(device)
    bandwidth, _ = reduction_parameters(n, scalar, vectors=vectors, device=device)
    crossover = (tuned.vendor_vectors if vectors else tuned.vendor_values)[scalar.name]
    what = f"{scalar.name} {'eigenpairs' if vectors else 'eigenvalues'}"
    from_order = f"from order {crossover or 1:,} on" if crossover < NEVER else "never on this device"
    reasons: dict[Solver, tuple[str, str]] = {
        "rotations": ("Jacobi rotations in one launch", f"up to order {rotated_order(scalar.name, count)}"),
        "batched": (
            "cuSOLVER's batched solver",
            f"up to order {MOST_BATCHED}, where one by one takes longer; CUDA 12.6",
        ),
        "vendor": ("cuSOLVER, one by one", f"for orders between, and above {most:,}"),
        "stages": (
            "direct tridiagonalization" if bandwidth == 1 else "two stages",
            f"{from_order}, up to {most:,}; in two stages where shared memory does not hold the columns with ease",
        ),
    }
    return [
        Candidate(name, math.nan if solver == taken else None, f"{what}: {why}")
        for solver, (name, why) in reasons.items()
    ]


def calls_vendor(n: int, scalar: Scalar, *, vectors: bool, device: Device) -> bool:
    """Return whether cuSOLVER solves the problem.

    It does below the crossover and beyond what the panel kernel holds.  Where FP64 is slow it makes all eigenvectors:
    ours take more operations, and those of single precision are formed in double precision.
    """
    tuned = tuning(device)
    crossover = (tuned.vendor_vectors if vectors else tuned.vendor_values)[scalar.name]
    return n < crossover or n > largest_order(device)


def widened_order(device: Device) -> int:
    """Return the order up to which cuSOLVER solves problems of single precision in double precision.

    Where FP64 is slow, only as far as it takes less time than the latencies of the columns.
    """
    return 2048 if device.fast_fp64 else 512


#: Orders up to which a part of a spectrum is cut from the whole, which takes the host fewer launches.
WHOLE_ORDER = 1024

#: Orders up to which a generalized problem is reduced by cuBLAS's triangular solver, and beyond by products, in halves.
SOLVED_ORDER = 4096

#: Orders up to which a thread block solves a matrix by Jacobi rotations (`small.rotations`), by dtype: as far as it is
#: faster than what else solves one matrix, or a batch, and fits into 99 KB.
ROTATED_ORDER = {"float32": 64, "float64": 48, "complex64": 48, "complex128": 32}
BATCHED_ORDER = {"float32": 64, "float64": 56, "complex64": 56, "complex128": 40}
#: The same of generalized problems (`small/pairs.cu`), which need more of it.
PAIR_ORDER = {"float32": 64, "float64": 48, "complex64": 48, "complex128": 36}


def rotated_order(name: str, count: int) -> int:
    """Return the order up to which rotations solve `count` matrices of dtype `name`."""
    return (BATCHED_ORDER if count > 1 else ROTATED_ORDER)[name]


def rotation_threads(n: int) -> int:
    """Return the threads that solve a matrix by rotations: one for each pair of pairs of indices, in whole warps."""
    half = (n + 1) // 2
    return max(1, -(-half * (half // 2) // 32)) * 32


def rotation_elements(n: int) -> int:
    """Return the elements that rotations work in: the matrix twice, a step's rotations, and eigenvectors."""
    m = n + n % 2
    return m * (2 * m + 1) + n * (m + m // 2)


#: Order up to which cuSOLVER's batched solver is taken: at 1000, with eight matrices, ours gains more.
MOST_BATCHED = 512
#: Bytes of a matrix up to which its kernels of a whole matrix work.
_WHOLE_BYTES = 144 * 1024
# Microseconds of latency, on an H200's host: of a matrix by itself, at first and for each column; of a batch for each
# column, where kernels hold whole matrices and where they do not.  Another host scales all of them: ratios count.
_ALONE, _ALONE_COLUMN, _WHOLE_COLUMN, _PARTED_COLUMN = 350.0, 3.8, 13.0, 80.0


def pays_in_batches(n: int, count: int, scalar: Scalar) -> bool:
    """Return whether cuSOLVER's batched solver is faster than one by one for `count` matrices above `BATCHED_ORDER`.

    Its launches are for all matrices, and of larger ones so many that a dozen are faster one after the other.
    """
    column = _WHOLE_COLUMN if n * n * scalar.itemsize <= _WHOLE_BYTES else _PARTED_COLUMN
    return count > 1 and n <= MOST_BATCHED and count * (_ALONE + _ALONE_COLUMN * n) > column * n


def largest_order(device: Device) -> int:
    """Return the largest order that the panel kernel takes: one row a thread, one block per multiprocessor."""
    return PANEL_THREADS * device.multiprocessors


def stage_parameters(n: int, scalar: Scalar, *, vectors: bool, device: Device) -> tuple[int, int]:
    """Return bandwidth b and block nb.

    A wide band makes A W faster and the chasing slower; with eigenvectors of a large matrix it halves the passes over
    them.
    """
    tuned = tuning(device)
    wide = n >= (tuned.wide_band_vectors if vectors else tuned.wide_band_values)
    return max(b for b in scalar.bandwidths if b <= (64 if wide else 32)), tuned.block


def reduction_parameters(n: int, scalar: Scalar, *, vectors: bool, device: Device) -> tuple[int, int]:
    """Return bandwidth and block with which `eigh` reduces a matrix: (1, 1) for the direct tridiagonalization."""
    tuned = tuning(device)
    if n <= min(tuned.direct_vectors if vectors else tuned.direct_values, direct_order(scalar, device)):
        return 1, 1
    return stage_parameters(n, scalar, vectors=vectors, device=device)


def direct_blocks(n: int, device: Device) -> int:
    """Return how many blocks hold the columns of a matrix that is tridiagonalized directly."""
    return min(device.multiprocessors, -(-n // DIRECT_COLUMNS))


def direct_size(n: int) -> tuple[int, int]:
    """Return the threads of each of these blocks, and how many rows each of them has."""
    return next(size for size in DIRECT_SIZES if n <= math.prod(size))


def direct_layout(n: int, scalar: Scalar, device: Device) -> tuple[int, int]:
    """Return how many columns of each of these blocks stay in global memory, and its bytes of shared memory."""
    columns, warps, together = -(-n // direct_blocks(n, device)), direct_size(n)[0] // 32, 8 // scalar.parts
    # Three vectors, the sums of the warps, with the columns in two parts, and of the block.
    beside = 3 * n + warps * together * (-(-columns // together) + 1) + 2 + 2 * warps
    near = max(0, min(columns, (device.shared_bytes // scalar.itemsize - beside) // n))
    return columns - near, scalar.itemsize * (beside + near * n)


@functools.cache
def direct_order(scalar: Scalar, device: Device) -> int:
    """Return the largest order of a matrix whose columns fit in shared memory, a block on each multiprocessor."""
    most = math.prod(DIRECT_SIZES[-1])
    beyond = (n for n in range(1, most + 1) if direct_layout(n, scalar, device)[0] > 0)
    return next(beyond, most + 1) - 1


def sturm_lanes(count: int, device: Device) -> int:
    """Return how many lanes share one of `count` eigenvalues, while these are too few to fill the device."""
    return next((lanes for most, lanes in tuning(device).sturm_lanes if count <= most), 1)


# -- what kernels are compiled with -----------------------------------------------------------------------------------

PANEL_THREADS = 512  # most threads, and rows, of a block in the panel kernel
PANEL_FEW = (64, 128)
CLUSTER_BLOCKS = 16  # blocks of a cluster that factors a panel
#: Kernels of panels: for one cluster, for as many registers as half of the threads leave, and for all threads.
PANEL_KERNELS = ("cluster_panel_qr", "panel_qr", "tall_panel_qr")
LEAF = 48  # order of a leaf of divide and conquer at most
DIRECT_COLUMNS = 4  # least columns of a block of reduction/direct.cu, but for the last
DIRECT_SIZES = ((128, 2), (128, 4), (256, 4), (256, 8))  # threads there, and rows of each
SWEEP_GROUP = 64  # sweeps applied together: GROUP of back/sweeps.cu
TILE_SWEEPS = 32  # WIDTH of back/sweeps.cu
TILES = SWEEP_GROUP // TILE_SWEEPS


def sturm_threads(lanes: int) -> int:
    """Threads of a block that counts: one warp where an eigenvalue has it for itself."""
    return 32 if lanes == 32 else 64


def cluster_rows(device: Device) -> int:
    """Return the rows of a panel that one cluster holds, whose blocks send to each other's shared memory."""
    return CLUSTER_BLOCKS * PANEL_THREADS // 2 if (9, 0) <= device.compute_capability < (12, 0) else 0


def panel_threads(m: int, device: Device) -> int:
    """Return the threads, and rows, of a block that factors a panel of m rows.

    Few have less to add up; but blocks on more than half of the multiprocessors take longer to hear of each other.
    """
    if m <= cluster_rows(device):
        return max(64, -(-m // CLUSTER_BLOCKS // 32) * 32)
    few = next((t for t in PANEL_FEW if m <= t * device.multiprocessors // 2), PANEL_THREADS // 2)
    return PANEL_THREADS if m > PANEL_THREADS // 2 * device.multiprocessors else few


def panel_width(scalar: Scalar, bandwidth: int) -> int:
    """Columns that the panel kernel holds in registers, 256 bytes of a row: a panel is this wide, or two of this."""
    return min(bandwidth, 256 // scalar.itemsize)


def chase_threads(bandwidth: int) -> int:
    """Threads of each of a chasing block's two groups: four columns a warp for b = 16, eight for more."""
    return {16: 128, 32: 128, 64: 256}[bandwidth]


def chase_blocks(scalar: Scalar, bandwidth: int) -> int:
    """Chasing blocks that a multiprocessor has registers for."""
    return 1 if bandwidth == 64 or scalar.is_complex else 2


def tile_slots(device: Device) -> int:
    """Tiles of sweeps in shared memory at a time: SLOTS of back/sweeps.cu, whose ring does not fit into 99 KB."""
    return 2 * TILES if (9, 0) <= device.compute_capability < (12, 0) else 1


STAGE_KEYS = tuple((scalar.name, b) for scalar in SCALARS.values() for b in scalar.bandwidths)
