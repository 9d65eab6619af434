"""A purification over many GPUs, by simulation: work, bytes over links and balance of each product of tiles.

Rows of tiles are divided along a Hilbert curve, about the same work to each GPU.  A GPU makes its rows of the square of
an iterate: of its own rows it has all tiles, of the others it fetches those that a product which is kept needs.  The
iterates are those of model water (:mod:`spectile_study.inputs.model_water`), thresholds those that the budgets of
:func:`spectile.density_matrix` allow by the library's bound.  Of work and bytes a sample is counted, tile by tile, and
the standard error is in the record.

Seconds are predicted: at the rates of the library's table of devices and of `LINKS`, which no program reaches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.ndimage
import scipy.spatial

from spectile.core import devices
from spectile.density.projector import ends_at, pessimism
from spectile.density.purify import Pass, budgets
from spectile.tiles import TileMatrix
from spectile_study.bench.case import Context, Method, Problem, Value
from spectile_study.bench.provenance import digest_array
from spectile_study.inputs import hartree_fock, model_water, water
from spectile_study.inputs.model_water import MOST_SCATTER, Decay, Places
from spectile_study.inputs.water import FUNCTIONS, OCCUPIED

#: GPUs of the simulated machines, and those of one host.
GPUS, HOST = (1, 8, 16, 32, 64, 128, 256, 512, 1024), 8
#: Fewest molecules of a GPU.
_FEWEST = 8
#: Rows whose products are counted, GPUs whose links are looked at, and molecules around each.
_ROWS, _LOOKED_AT, _AROUND = 192, 8, 256
#: Distance within which molecules are counted for the work of rows that are not sampled, in ångström.
_NEAR = 10.0
#: Largest standard error of a number of a record, as a share.
_CERTAIN = 0.3
#: Logarithms of norms are counted in bins of this width, from the lowest on.
_LOWEST, _BIN, _BINS = -46.0, 0.1, 500
#: What the purification is asked for: its error over the norm of P.
ERROR = 1e-5
_TILE_BYTES, _TILE_FLOPS = 8 * FUNCTIONS**2, 2 * FUNCTIONS**3


class Links(NamedTuple):
    """Bytes a second that a GPU receives from the others of its host, and from other hosts."""

    inside: float
    outside: float


#: By the vendor's specifications: NVLink, and a network card of 400 Gbit/s for each GPU.
LINKS = {"H100": Links(450e9, 50e9)}


class Product(NamedTuple):
    """The square of an iterate.

    Attributes
    ----------
    decay, after : Decay
        Norms of the tiles of the iterate, and of the next one.
    left_out, dropped : float
        What may be left out of the square, and of the next iterate, of each molecule's rows (Frobenius norm).
    """

    decay: Decay
    after: Decay
    left_out: float
    dropped: float


def products(fock: np.ndarray, oxygens: np.ndarray, error: float, method: str = "sp2_accelerated") -> list[Product]:
    """Return the products of a purification.

    Parameters
    ----------
    fock : ndarray, shape (n, n)
        Of whole molecules, in an orthogonal basis.
    oxygens : ndarray, shape (molecules, 3)
        Their places, in ångström.
    error : float
        Of P, relative to its norm.
    method : str
        As for :func:`spectile.density_matrix`.
    """
    count, n = len(oxygens), len(fock)
    values = np.linalg.eigvalsh(fock)
    low, high = TileMatrix.from_dense(fock, FUNCTIONS, hermitian=True).eigenvalue_bounds()
    homo, lumo = ((high - values[OCCUPIED * count - k]) / (high - low) for k in (1, 0))
    if not homo > lumo:
        raise ValueError(f"the Fock matrix of {count} molecules has no gap: give another one")
    wanted = error * math.sqrt(OCCUPIED * count)
    seen = Pass(None, homo=(homo, 1.0), lumo=(0.0, lumo))
    end = ends_at(wanted)
    x, found = (high * np.eye(n) - fock) / (high - low), []
    tiles = TileMatrix.from_dense(x, FUNCTIONS, hermitian=True)
    budget, polynomials = budgets(seen, method, pessimism(tiles) * wanted, end)
    decay = model_water.fitted(x, oxygens)
    for number, polynomial in enumerate(polynomials):
        if np.linalg.norm(x - x @ x) <= end:
            break
        c = (*polynomial.coefficients, 0.0, 0.0)[:3]
        x = c[0] * np.eye(n) + c[1] * x + c[2] * (x @ x)
        after, allowed = model_water.fitted(x, oxygens), budget(number) / math.sqrt(count)
        found.append(Product(decay, after, allowed / 2 / abs(c[2]), allowed / 4))
        decay = after
    return found


class Counted(NamedTuple):
    """What a GPU does in a product.

    Attributes
    ----------
    products : float
        Products of tiles of the mean GPU, half of them all.
    products_off : float
        Their standard error, as a share.
    balance : float
        Of the GPU with the most of them, over the mean.
    inside, outside, most : float
        Tiles that the mean GPU fetches from its host's and from others, and the most, of those that were looked at.
    tiles_off : float
        The standard error of what is fetched, as a share.
    stored : float
        Tiles of the iterate, of the mean GPU.
    """

    products: float
    products_off: float
    balance: float
    inside: float
    outside: float
    most: float
    tiles_off: float
    stored: float


class Simulation:
    """Products of a purification of so many molecules.

    Parameters
    ----------
    molecules : int
        How many, generated at the density of the liquid.
    sequence : list of Product
        The products.
    seed : int
        Of places, norms and samples.
    """

    def __init__(self, molecules: int, sequence: list[Product], seed: int) -> None:
        self.molecules, self.seed = molecules, seed
        self.places = Places.of(water.generated_cluster(molecules, seed).coordinates[:, 0])
        self.rows = np.unique(np.linspace(0, molecules - 1, _ROWS).astype(np.int64))
        tree = scipy.spatial.cKDTree(self.places.at)
        self._around = tree.query_ball_point(self.places.at, _NEAR, return_length=True).astype(np.float64) ** 2
        self.squares: list[tuple[Decay, float, float]] = []
        least = math.log(min(one.dropped for one in sequence)) - 12
        stored = least
        for one in sequence:
            tau = _threshold(self._counts(one.decay, stored), one.left_out)
            # No tile is in a product with a larger one than the largest.
            largest = max(math.log(one.decay.diagonal), one.decay.constant)
            self.squares.append((one.decay, max(stored, tau - largest), tau))
            stored = _dropped_below(self._counts(one.after, least), one.dropped)
        self._work = [self._worked(*square) for square in self.squares]

    def _room(self, decay: Decay, least: float) -> int:
        """Return how many molecules may be found around one, more than there can be at this density."""
        reach = decay.length * (decay.constant + MOST_SCATTER * decay.scatter - least)
        return min(self.molecules, int(0.05 * 4 / 3 * math.pi * (max(reach, 0.0) + 6) ** 3))

    def _counts(self, decay: Decay, least: float) -> np.ndarray:
        """Return how many norms a row of tiles has in each bin, on average of some rows."""
        room = self._room(decay, least)
        found, logs, counts = np.empty(room, np.int64), np.empty(room), np.zeros(_BINS)
        rows = self.rows[::4]
        for row in rows:
            held = logs[: model_water.near(row, least, decay, self.seed, self.places, found, logs)]
            bins = np.clip((held - _LOWEST) / _BIN, 0, _BINS - 1).astype(np.int64)
            counts += np.bincount(bins, minlength=_BINS)
        return counts / len(rows)

    def _worked(self, decay: Decay, least: float, tau: float) -> tuple[float, float, float]:
        """Return the products of tiles of all rows by those of the sampled ones, their standard error and the tiles."""
        out = np.empty(len(self.rows), np.int64)
        room = self._room(decay, least)
        model_water.kept_products(self.rows, least, tau, decay, self.seed, self.places, room, out)
        # They go with the square of how many molecules are near.
        near = self._around[self.rows]
        ratio = out.sum() / near.sum()
        left = out - ratio * near
        share = math.sqrt(float((left**2).sum()) / max(1, len(out) - 1) * len(out)) / float(out.sum())
        tiles = float(self._counts(decay, least).sum()) * self.molecules
        # The whole is counted where the sample is the whole.
        return ratio * float(self._around.sum()), share * (len(out) < self.molecules), tiles

    def counted(self, gpus: int) -> list[Counted]:
        """Return what a GPU does in each product, as one of so many."""
        # Cut where the work of the rows before is the next GPU's share.
        summed = np.concatenate([[0.0], np.cumsum(self._around)])
        ends = np.searchsorted(summed, np.linspace(0, summed[-1], gpus + 1)).astype(np.int64)
        ends[-1] = self.molecules
        shares = np.diff(summed[ends]) / summed[-1]
        rng = np.random.default_rng([self.seed, self.molecules, gpus])
        chosen = np.unique(((np.arange(_LOOKED_AT) + rng.random()) / _LOOKED_AT * gpus).astype(np.int64))
        found = []
        for (decay, least, tau), (work, off, tiles) in zip(self.squares, self._work, strict=True):
            fetched = [(0.0,) * 3] if gpus == 1 else [
                self._fetched(rng, int(gpu), ends, decay, least, tau) for gpu in chosen
            ]  # fmt: skip
            inside, outside, errors = (np.array(one) for one in zip(*fetched, strict=True))
            whole = inside + outside
            mean = float(whole.mean())
            spread = float(whole.std(ddof=1)) / math.sqrt(len(whole)) * (len(whole) < gpus) if len(whole) > 1 else 0.0
            tiles_off = math.hypot(spread, float(np.sqrt((errors**2).sum())) / len(whole)) / mean if mean else 0.0
            found.append(
                Counted(
                    work / 2 / gpus, off, float(shares.max() * gpus), float(inside.mean()), float(outside.mean()),
                    float(whole.max()), tiles_off, tiles / gpus,
                )
            )  # fmt: skip
        return found

    def _fetched(
        self, rng: np.random.Generator, gpu: int, ends: np.ndarray, decay: Decay, least: float, tau: float
    ) -> tuple[float, float, float]:  # fmt: skip
        """Return the tiles that a GPU fetches from its host and from others, by a sample, and the standard error."""
        first, last = int(ends[gpu]), int(ends[gpu + 1])
        places, room = self.places, self._room(decay, least)
        reach = decay.length * (decay.constant + MOST_SCATTER * decay.scatter - least)
        # Molecules in cells within reach of the GPU's own, which are left out.
        cells = ((places.at - places.low) / places.width).astype(np.int64)
        inner = np.zeros(places.shape, bool)
        inner[tuple(cells[first:last].T)] = True
        near = scipy.ndimage.distance_transform_edt(~inner) <= math.ceil(reach / places.width) * math.sqrt(3) + 1
        around = np.flatnonzero(near[tuple(cells.T)])
        around = around[(around < first) | (around >= last)]
        if not len(around):
            return 0.0, 0.0, 0.0
        taken = around if len(around) <= _AROUND else np.sort(rng.choice(around, _AROUND, replace=False))
        out = np.empty(len(taken), np.int64)
        model_water.needed_tiles(taken, first, last, least, tau, decay, self.seed, places, room, out)
        hosts = (np.searchsorted(ends, taken, side="right") - 1) // HOST
        here = hosts == gpu // HOST
        scale = len(around) / len(taken)
        off = scale * math.sqrt(len(taken)) * float(out.std()) * (len(taken) < len(around))
        return scale * float(out[here].sum()), scale * float(out[~here].sum()), off


def _norms() -> tuple[np.ndarray, np.ndarray]:
    """Return the logarithms of the norms of the bins, and the norms."""
    logs = _LOWEST + _BIN * (np.arange(_BINS) + 0.5)
    return logs, np.exp(logs)


def _threshold(counts: np.ndarray, allowed: float) -> float:
    """Return the logarithm of the threshold that leaves out of a row what is allowed, by the library's bound.

    That is the sum over the tiles of the row of their norms times the norm of what is left out of the row that each is
    multiplied by.
    """
    logs, norms = _norms()
    tails = np.sqrt(np.concatenate([[0.0], np.cumsum(counts * norms**2)]))

    def left_out(tau: float) -> float:
        below = np.clip(np.round((tau - logs - _LOWEST) / _BIN), 0, _BINS).astype(np.int64)
        return float((counts * norms * tails[below]).sum())

    low, high = 2 * _LOWEST, 10.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if left_out(middle) <= allowed else (low, middle)
    return low


def _dropped_below(counts: np.ndarray, allowed: float) -> float:
    """Return the logarithm of the norm below which tiles are dropped, of what is allowed of a row."""
    logs, norms = _norms()
    return float(logs[np.searchsorted(np.sqrt(np.cumsum(counts * norms**2)), allowed)] - _BIN / 2)


def predicted(counted: list[Counted], device: str) -> tuple[float, float]:
    """Return the least seconds of the arithmetic and of the links, of the GPU with the most work, of all products."""
    rate, links = devices.TABLE[device].product_rate("float64"), LINKS[device]
    work = sum(one.products * one.balance for one in counted) * _TILE_FLOPS / rate
    # Of one that fetches the most, in the proportion of the mean one.
    most = [one.most / max(1e-300, one.inside + one.outside) for one in counted]
    moved = sum(
        share * _TILE_BYTES * (one.inside / links.inside + one.outside / links.outside)
        for share, one in zip(most, counted, strict=True)
    )
    return work, moved


def partition(row: Mapping[str, Any], context: Context) -> Problem:
    """Count a purification of ``molecules`` molecules on machines of 1 to 1,024 GPUs.

    Raises
    ------
    FileNotFoundError
        Without PySCF, or a kept Fock matrix of the few molecules whose decay is taken.
    """
    molecules, device = row["molecules"], "H100"
    cluster = water.generated_cluster(model_water.TRUE_MOLECULES, context.seed)
    try:
        fock, source = hartree_fock.scf_matrix("fock_orthogonal", cluster, context.resources)
    except ModuleNotFoundError as error:
        raise FileNotFoundError(str(error)) from None

    @functools.cache
    def simulation() -> Simulation:
        return Simulation(molecules, products(fock, cluster.coordinates[:, 0], ERROR), context.seed)

    def method(gpus: int) -> Method:
        def values(counted: list[Counted]) -> dict[str, Value]:
            work, moved = predicted(counted, device)
            last = counted[-1]
            return {
                "gpus": gpus,
                "products_total": gpus * sum(one.products for one in counted),
                "products_per_molecule": gpus * sum(one.products for one in counted) / molecules,
                "balance": last.balance,
                "bytes_inside": _TILE_BYTES * sum(one.inside for one in counted),
                "bytes_outside": _TILE_BYTES * sum(one.outside for one in counted),
                "bytes_links": _TILE_BYTES * sum(one.inside + one.outside for one in counted),
                "bytes_stored": _TILE_BYTES * max(one.stored for one in counted),
                "predicted_work_s": work,
                "predicted_links_s": moved,
                "predicted_s": work + moved,
                "predicted_device": device,
                "product": list(range(1, len(counted) + 1)),
                "product_count": [one.products for one in counted],
                "product_bytes": [_TILE_BYTES * (one.inside + one.outside) for one in counted],
            }

        def check(counted: list[Counted]) -> dict[str, float]:
            # The same rows are sampled in all products: their errors may all be to one side.
            work, moved = (
                sum(of(one) * off(one) for one in counted) / max(1e-300, sum(map(of, counted)))
                for of, off in (
                    (lambda one: one.products, lambda one: one.products_off),
                    (lambda one: one.inside + one.outside, lambda one: one.tiles_off),
                )
            )
            return {"error_products_rel": work, "error_bytes_rel": moved}

        return Method(
            f"gpus_{gpus}", lambda: simulation().counted(gpus), check,
            {"error_products_rel": _CERTAIN, "error_bytes_rel": _CERTAIN}, clock="none", values=values,
        )  # fmt: skip

    wanted = [gpus for gpus in GPUS if gpus * _FEWEST <= molecules]
    facts: dict[str, Value] = {
        "cluster": f"generated, decay of {model_water.TRUE_MOLECULES} molecules by {source}",
        "error": ERROR,
    }
    return Problem([method(gpus) for gpus in wanted], {"fock": digest_array(fock)}, facts)
