"""Products that users make and the paper's sheet lacks: Laplacians, Galerkin products, graphs, odd shapes.

Each name stands for a pair of factors, a case of its own: ours beside CuPy's and cuSPARSE's on a GPU, SciPy's on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp

from spectile.tsparse import symbolic
from spectile_study.bench.case import Context, Method, Problem, Skipped
from spectile_study.bench.provenance import digest_array
from spectile_study.cases.tsparse import host
from spectile_study.cases.tsparse.checks import Check
from spectile_study.inputs import families


def laplacian(shape: tuple[int, ...], points: int) -> sp.csr_array:
    """Return the Laplacian of a grid: 5 or 9 points in two dimensions, 7 or 27 in three."""
    neighbours = [sp.diags_array(np.ones((3, n)), offsets=(-1, 0, 1), shape=(n, n)) for n in shape]
    if points == 3 ** len(shape):
        total = neighbours[0]
        for other in neighbours[1:]:
            total = sp.kron(total, other)
    else:
        total = neighbours[0]
        for other in neighbours[1:]:
            total = sp.kron(total, sp.eye_array(other.shape[0])) + sp.kron(sp.eye_array(total.shape[0]), other)
    A = sp.csr_array(total)
    A.eliminate_zeros()  # of dense blocks, in which Kronecker products of small grids are made
    A.data[:] = -1.0
    A.setdiag(points - 1.0)
    A.sort_indices()
    return A


def aggregation(A: sp.csr_array, size: int) -> sp.csr_array:
    """Return the smoothed prolongation of aggregates of `size` rows that follow each other."""
    n = A.shape[0]
    tentative = sp.csr_array((np.ones(n), (np.arange(n), np.arange(n) // size)), shape=(n, -(-n // size)))
    damped = sp.diags_array(1.0 / A.diagonal()) @ A
    return sp.csr_array(tentative - 2 / 3 * (damped @ tentative))


def random(rows: int, columns: int, per_row: int, seed: int) -> sp.csr_array:
    """Return a matrix with `per_row` entries at random columns of each row, fewer where they meet."""
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(rows), per_row), rng.integers(0, columns, rows * per_row)
    A = sp.coo_array((rng.uniform(0.5, 2, rows * per_row), places), shape=(rows, columns)).tocsr()
    A.sort_indices()
    return A


def hypersparse(n: int, nnz: int, seed: int) -> sp.csr_array:
    """Return a matrix with far fewer entries than rows."""
    rng = np.random.default_rng(seed)
    places = rng.integers(0, n, nnz), rng.integers(0, n, nnz)
    A = sp.coo_array((rng.uniform(0.5, 2, nnz), places), shape=(n, n)).tocsr()
    A.sort_indices()
    return A


def _square(make: Callable[[], sp.csr_array]) -> Callable[[], tuple[sp.csr_array, sp.csr_array]]:
    def pair() -> tuple[sp.csr_array, sp.csr_array]:
        A = make()
        return A, A

    return pair


def _galerkin(shape: tuple[int, ...], points: int, size: int, left: bool) -> tuple[sp.csr_array, sp.csr_array]:
    """Return the factors of A P, or of P^T (A P)."""
    A = laplacian(shape, points)
    P = aggregation(A, size)
    if not left:
        return A, P
    product = sp.csr_array(A @ P)
    product.sort_indices()
    return sp.csr_array(P.T), product


def _random_square(per_row: int) -> sp.csr_array:
    n = 200_000 // per_row
    return random(n, n, per_row, per_row)


def pairs() -> dict[str, Callable[[], tuple[sp.csr_array, sp.csr_array]]]:
    """Return what makes the factors of each product."""
    return {
        "small_500": _square(lambda: random(500, 500, 5, 1)),
        "laplacian_2d_5": _square(lambda: laplacian((1000, 1000), 5)),
        "laplacian_2d_9": _square(lambda: laplacian((700, 700), 9)),
        "laplacian_3d_7": _square(lambda: laplacian((80, 80, 80), 7)),
        "laplacian_3d_27": _square(lambda: laplacian((50, 50, 50), 27)),
        "galerkin_2d_a_p": lambda: _galerkin((700, 700), 5, 3, False),
        "galerkin_2d_pt_ap": lambda: _galerkin((700, 700), 5, 3, True),
        "galerkin_3d_a_p": lambda: _galerkin((60, 60, 60), 27, 3, False),
        "galerkin_3d_pt_ap": lambda: _galerkin((60, 60, 60), 27, 3, True),
        **{f"random_{n}": _square(functools.partial(_random_square, n)) for n in (2, 4, 8, 16, 32, 64)},
        "random_1e5_10": _square(lambda: random(100_000, 100_000, 10, 3)),
        "rmat_14_8": _square(lambda: sp.csr_array(families.rmat(14, 8))),
        "tall_wide": lambda: (random(200_000, 500, 4, 5), random(500, 20_000, 40, 6)),
        "wide_tall": lambda: (random(500, 200_000, 400, 7), random(200_000, 500, 4, 8)),
        "wide_span": lambda: (random(20_000, 400_000, 8, 9), random(400_000, 600_000, 8, 10)),
        "hypersparse_1e7": _square(lambda: hypersparse(10_000_000, 3_000_000, 11)),
        "block_diagonal": _square(lambda: sp.csr_array(sp.block_diag([np.ones((24, 24))] * 2000, format="csr"))),
    }


def problem(name: str, context: Context) -> Problem:
    """Return the case of one product of the set."""
    A, B = pairs()[name]()
    pattern = symbolic(A, B, backend="cpu")
    counts = {"n": int(A.shape[0]), "nnz": int(A.nnz), "nnz_c": int(pattern.nnz), "products": int(pattern.products)}
    values = counts | {"nnz_b": int(B.nnz), "columns": int(B.shape[1])}
    check = Check(A, counts["nnz_c"], context.seed, B)
    methods: list[Method | Skipped]
    if context.device == "cuda":
        from spectile_study.cases.tsparse import device

        methods = device.methods_of_pair(A, B, counts, check)
    else:
        methods = host.methods_of_pair(A, B, counts, check)
    inputs = {"A": digest_array(A.data), "A columns": digest_array(A.indices), "B": digest_array(B.data)}
    return Problem(methods, inputs, values)
