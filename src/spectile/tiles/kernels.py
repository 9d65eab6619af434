"""Compiled functions of the CPU: the search among tile products, their lists, and the product itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from spectile.core.jit import njit


@njit(nogil=True)
def sorted_rows(indptr: Any, norms: Any, order: Any, sorted_norms: Any, tail_fro: Any, tail_one: Any) -> None:
    """Finish rows whose tiles were put in falling order of their norms: norms in that order, and those of the tails.

    ``tail_fro[p]`` is the root of the squares of the norms from place p to the end of p's row, ``tail_one[p]`` their
    sum.
    """
    for row in range(len(indptr) - 1):
        squares, total = 0.0, 0.0
        for p in range(indptr[row + 1] - 1, indptr[row] - 1, -1):
            norm = norms[order[p]]
            squares, total = math.hypot(squares, norm), total + norm
            sorted_norms[p], tail_fro[p], tail_one[p] = norm, squares, total


@njit(nogil=True)
def merge(a: Any, b: Any, both: Any, of_a: Any, of_b: Any) -> int:
    """Write the numbers of two rising lists, each once, and where theirs are; return how many there are."""
    i, j, count = 0, 0, 0
    while i < len(a) or j < len(b):
        first = j == len(b) or (i < len(a) and a[i] <= b[j])
        key = a[i] if first else b[j]
        if first:
            of_a[i] = count
            i += 1
        if j < len(b) and b[j] == key:
            of_b[j] = count
            j += 1
        both[count] = key
        count += 1
    return count


@njit(nogil=True)
def sums(indptr: Any, indices: Any, numbers: Any, both: bool, rows: Any, columns: Any) -> None:
    """Add the numbers of tiles to those of their rows and columns; with `both` a tile is its mirror image, too."""
    for i in range(len(rows)):
        total = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            total += numbers[p]
            if not both or indices[p] != i:
                columns[indices[p]] += numbers[p]
        rows[i] += total


@njit(nogil=True, fastmath={"reassoc"})
def squares(norms: Any, weights: Any, unit: float, sums: Any) -> None:
    """Write sums of squares, times weights, of as many norms in units each as there are of the others."""
    each = math.ceil(len(norms) / len(sums))
    for part in range(len(sums)):
        total = 0.0
        for p in range(part * each, min((part + 1) * each, len(norms))):
            x = norms[p] / unit
            total += weights[p] * (x * x)
        sums[part] = total


@njit(nogil=True)
def cut(norms: Any, low: int, high: int, limit: float) -> int:
    """Return the first place of falling norms whose norm is below a limit."""
    while low < high:
        middle = (low + high) // 2
        if norms[middle] < limit:
            high = middle
        else:
            low = middle + 1
    return low


@njit(nogil=True)
def skipped(
    indptr_a: Any, indices_a: Any, norms_a: Any, indptr_b: Any, sorted_b: Any, tail_fro: Any, tail_one: Any, tau: float
) -> tuple[float, float]:
    """Bound what is left out where ``norms_b < tau / norms_a``: its Frobenius norm, and its largest row sum.

    The part of a row of C that is left out is a sum over k, whose norms are added.
    """
    whole, largest = 0.0, 0.0
    for i in range(len(indptr_a) - 1):
        row, total = 0.0, 0.0
        for p in range(indptr_a[i], indptr_a[i + 1]):
            k, norm = indices_a[p], norms_a[p]
            if norm > 0:
                q = cut(sorted_b, indptr_b[k], indptr_b[k + 1], tau / norm)
                if q < indptr_b[k + 1]:
                    row += norm * tail_fro[q]
                    total += norm * tail_one[q]
        whole = math.hypot(whole, row)
        largest = max(largest, total)
    return whole, largest


@njit(nogil=True)
def count_products(
    indptr_a: Any, indices_a: Any, norms_a: Any, indptr_b: Any, columns_b: Any, sorted_b: Any, tau: float, upper: bool,
    mark: Any, first: int, last: int, tiles: Any, products: Any,
) -> None:  # fmt: skip
    """Count the tiles of rows first ... last - 1 of C and the products that are kept in them."""
    for i in range(first, last):
        for p in range(indptr_a[i], indptr_a[i + 1]):
            k, norm = indices_a[p], norms_a[p]
            if norm > 0:
                for q in range(indptr_b[k], cut(sorted_b, indptr_b[k], indptr_b[k + 1], tau / norm)):
                    j = columns_b[q]
                    if not upper or j >= i:
                        products[i] += 1
                        if mark[j] != i + 1:
                            mark[j] = i + 1
                            tiles[i] += 1


@njit(nogil=True)
def list_products(
    indptr_a: Any, indices_a: Any, norms_a: Any, indptr_b: Any, columns_b: Any, tiles_b: Any, sorted_b: Any,
    tau: float, upper: bool, inner: Any, place: Any, cursor: Any, first: int, last: int, indptr_c: Any, begin: Any,
    indices_c: Any, pointer: Any, left: Any, right: Any, sums: Any, terms: Any,
) -> None:  # fmt: skip
    """List the products of each tile of rows first ... last - 1 of C, k rising: numbers of tiles of A and of B.

    ``begin[i]`` is the place of the first product of row i; those of tile t end where ``pointer[t + 1]`` says.  `sums`
    gets the sum of the products of norms, `terms` the number of products that an entry is the sum of, ``inner[k]`` for
    each k.  `place`, all -1, and `cursor` are work space of a number for each column.
    """
    for i in range(first, last):
        start, count = indptr_c[i], 0
        for p in range(indptr_a[i], indptr_a[i + 1]):
            k, norm = indices_a[p], norms_a[p]
            if norm > 0:
                for q in range(indptr_b[k], cut(sorted_b, indptr_b[k], indptr_b[k + 1], tau / norm)):
                    j = columns_b[q]
                    if not upper or j >= i:
                        if place[j] < 0:
                            place[j], cursor[j] = 0, 0
                            indices_c[start + count] = j
                            count += 1
                        cursor[j] += 1
        indices_c[start : start + count].sort()
        at = begin[i]
        for t in range(start, start + count):
            j = indices_c[t]
            place[j], length = t, cursor[j]
            cursor[j] = at
            at += length
            pointer[t + 1] = at
            sums[t], terms[t] = 0.0, 0
        for p in range(indptr_a[i], indptr_a[i + 1]):
            k, norm = indices_a[p], norms_a[p]
            if norm > 0:
                for q in range(indptr_b[k], cut(sorted_b, indptr_b[k], indptr_b[k + 1], tau / norm)):
                    j = columns_b[q]
                    if not upper or j >= i:
                        t = place[j]
                        left[cursor[j]], right[cursor[j]] = p, tiles_b[q]
                        cursor[j] += 1
                        sums[t] += norm * sorted_b[q]
                        terms[t] += inner[k]
        for t in range(start, start + count):
            place[indices_c[t]] = -1


@njit(nogil=True, fastmath={"contract"})
def _multiply_add(a: Any, b: Any, c: Any) -> None:
    """C += A B, four rows of C and of B at a time."""
    height, depth, width = a.shape[0], a.shape[1], b.shape[1]
    rows, inner = height - height % 4, depth - depth % 4
    for i in range(0, rows, 4):
        c0, c1, c2, c3 = c[i], c[i + 1], c[i + 2], c[i + 3]
        for p in range(0, inner, 4):
            b0, b1, b2, b3 = b[p], b[p + 1], b[p + 2], b[p + 3]
            x0, x1, x2, x3 = a[i, p], a[i, p + 1], a[i, p + 2], a[i, p + 3]
            y0, y1, y2, y3 = a[i + 1, p], a[i + 1, p + 1], a[i + 1, p + 2], a[i + 1, p + 3]
            z0, z1, z2, z3 = a[i + 2, p], a[i + 2, p + 1], a[i + 2, p + 2], a[i + 2, p + 3]
            w0, w1, w2, w3 = a[i + 3, p], a[i + 3, p + 1], a[i + 3, p + 2], a[i + 3, p + 3]
            for j in range(width):
                q0, q1, q2, q3 = b0[j], b1[j], b2[j], b3[j]
                c0[j] = c0[j] + x0 * q0 + x1 * q1 + x2 * q2 + x3 * q3
                c1[j] = c1[j] + y0 * q0 + y1 * q1 + y2 * q2 + y3 * q3
                c2[j] = c2[j] + z0 * q0 + z1 * q1 + z2 * q2 + z3 * q3
                c3[j] = c3[j] + w0 * q0 + w1 * q1 + w2 * q2 + w3 * q3
    for i in range(height):
        for p in range(inner if i < rows else 0, depth):
            one, line, x = c[i], b[p], a[i, p]
            for j in range(width):
                one[j] += x * line[j]


@njit(nogil=True)
def multiply(
    a: Any, starts_a: Any, heights: Any, widths: Any, b: Any, starts_b: Any, pointer: Any, left: Any, right: Any,
    first: int, last: int, c: Any, starts_c: Any,
) -> None:  # fmt: skip
    """Add the listed products to tiles first ... last - 1 of C, all zero before."""
    for t in range(first, last):
        height, width = heights[t], widths[t]
        tile = c[starts_c[t] : starts_c[t + 1]].reshape(height, width)
        for p in range(pointer[t], pointer[t + 1]):
            x, y = a[starts_a[left[p]] : starts_a[left[p] + 1]], b[starts_b[right[p]] : starts_b[right[p] + 1]]
            _multiply_add(x.reshape(height, x.size // height), y.reshape(y.size // width, width), tile)


@njit(nogil=True, fastmath={"reassoc", "contract"})
def tile_norms(data: Any, starts: Any, parts: int, scale: float, out: Any) -> None:
    """Write the Frobenius norms of tiles, of numbers that are scaled while they are squared, `parts` of an entry."""
    for t in range(len(out)):
        total, tile = 0.0, data[parts * starts[t] : parts * starts[t + 1]]
        for p in range(len(tile)):
            x = np.float64(tile[p]) * scale
            total += x * x
        out[t] = math.sqrt(total) / scale


@njit(nogil=True, fastmath={"reassoc"})
def line_sums(data: Any, starts: Any, heights: Any, widths: Any, rows: Any, columns: Any) -> None:
    """Write the sums of moduli over each row and over each column of each tile, one tile after the other."""
    row, column = 0, 0
    for t in range(len(heights)):
        width, at = widths[t], starts[t]
        sums = columns[column : column + width]
        sums[:] = 0.0
        for r in range(heights[t]):
            total, line = 0.0, data[at + r * width : at + (r + 1) * width]
            for s in range(width):
                x, y = np.float64(line[s].real), np.float64(line[s].imag)
                size = abs(x) if y == 0 else math.hypot(x, y)
                total += size
                sums[s] += size
            rows[row + r] = total
        row, column = row + heights[t], column + width


@njit(nogil=True)
def map_bound(indptr: Any, indices: Any, norms: Any, hermitian: bool, x: Any, y: Any, count: int, near: float) -> float:
    """Return ``min of max(N y / x) max(N^T x / y)`` over steps of the power method, for a map N of norms; x, y are 1.

    They end where one leaves more than a share `near`.  With `hermitian` a norm off the diagonal stands for its mirror
    image, too.
    """
    best = math.inf
    for _ in range(count):
        left, right = np.zeros(len(x)), np.zeros(len(y))
        for i in range(len(x)):
            for p in range(indptr[i], indptr[i + 1]):
                j, norm = indices[p], norms[p]
                left[i] += norm * y[j]
                right[j] += norm * x[i]
                if hermitian and i != j:
                    left[j] += norm * y[i]
                    right[i] += norm * x[j]
        before, best = best, min(best, (left / x).max() * (right / y).max())
        if best > near * before:
            break
        # Not 0, that the quotients stay finite.
        x, y = left / left.max() + 1e-3, right / right.max() + 1e-3
    return best


@njit(nogil=True)
def add(factor: Any, given: Any, starts: Any, targets: Any, out: Any) -> None:
    """Add multiples of tiles to those that begin at their targets."""
    for t in range(len(targets)):
        tile = given[starts[t] : starts[t + 1]]
        line = out[targets[t] : targets[t] + len(tile)]
        for p in range(len(tile)):
            line[p] += factor * tile[p]


@njit(nogil=True)
def symmetric(data: Any, starts: Any, sizes: Any) -> None:
    """Make square tiles Hermitian to the last digit, by their mean with the transposed."""
    for t in range(len(starts)):
        tile = data[starts[t] : starts[t] + sizes[t] ** 2].reshape(sizes[t], sizes[t])
        for r in range(sizes[t]):
            for s in range(r + 1):
                mean = tile[r, s] / 2 + np.conj(tile[s, r]) / 2
                tile[r, s], tile[s, r] = mean, np.conj(mean)


@njit(nogil=True)
def gather(
    given: Any, sources: Any, starts: Any, heights: Any, widths: Any, flipped: Any, from_pitch: int, to_pitch: int,
    out: Any,
) -> None:  # fmt: skip
    """Copy tiles, some transposed and conjugate: the one that begins at ``sources[t]`` to ``starts[t]``.

    Rows of a tile follow one another, or begin so many entries apart where a pitch is not 0.
    """
    for t in range(len(sources)):
        height, width, at, to, turned = heights[t], widths[t], sources[t], starts[t], flipped[t]
        row = from_pitch if from_pitch else height if turned else width
        to_row = to_pitch if to_pitch else width
        if turned:
            for r in range(height):
                for s in range(width):
                    out[to + r * to_row + s] = np.conj(given[at + s * row + r])
        elif row == width == to_row:
            out[to : to + height * width] = given[at : at + height * width]
        else:
            for r in range(height):
                out[to + r * to_row : to + r * to_row + width] = given[at + r * row : at + r * row + width]


@njit(nogil=True)
def dots(x: Any, at_x: Any, y: Any, at_y: Any, sizes: Any, out: Any) -> None:
    """Write the inner products of tiles that begin at these places: real and imaginary parts."""
    for t in range(len(sizes)):
        real = imaginary = 0.0
        for i in range(sizes[t]):
            left, right = np.complex128(x[at_x[t] + i]), np.complex128(y[at_y[t] + i])
            real += left.real * right.real + left.imag * right.imag
            imaginary += left.real * right.imag - left.imag * right.real
        out[t, 0], out[t, 1] = real, imaginary


@njit(nogil=True)
def tiles_of_rows(
    pointer: Any, columns: Any, rows: Any, owner: Any, upper: bool, mark: Any, indptr: Any, indices: Any
) -> None:  # fmt: skip
    """Count the tiles of each tile row of a sparse matrix in ``indptr[1:]`` or, with room for them, list them.

    `owner` is the tile column of each column; `mark`, one for each of them, is below 0; with `upper` tiles below the
    diagonal are left out.
    """
    for i in range(len(rows) - 1):
        found = 0
        for p in range(pointer[rows[i]], pointer[rows[i + 1]]):
            j = owner[columns[p]]
            if mark[j] != i and not (upper and j < i):
                mark[j] = i
                if len(indices):
                    indices[indptr[i] + found] = j
                found += 1
        if len(indices):
            indices[indptr[i] : indptr[i + 1]].sort()
        else:
            indptr[i + 1] = found


@njit(nogil=True)
def fill_tiles(
    pointer: Any, columns: Any, rows: Any, owner: Any, upper: bool, firsts: Any, place: Any, indptr: Any, indices: Any,
    starts: Any, values: Any, out: Any,
) -> None:  # fmt: skip
    """Write the entries of a sparse matrix to its tiles; `firsts` is where tile columns begin, `place` work space."""
    for i in range(len(rows) - 1):
        for t in range(indptr[i], indptr[i + 1]):
            place[indices[t]] = t
        for r in range(rows[i], rows[i + 1]):
            for p in range(pointer[r], pointer[r + 1]):
                j = owner[columns[p]]
                if not (upper and j < i):
                    at = starts[place[j]] + (r - rows[i]) * (firsts[j + 1] - firsts[j]) + columns[p] - firsts[j]
                    out[at] = values[p]


@njit(nogil=True)
def rows_of_tiles(
    rows: Any, firsts: Any, indptr: Any, indices: Any, starts: Any, data: Any, pointer: Any, columns: Any, values: Any
) -> None:  # fmt: skip
    """Write the entries of tiles that are not 0 by rows, and where each row ends to ``pointer[1:]``."""
    count = 0
    for i in range(len(rows) - 1):
        for r in range(rows[i + 1] - rows[i]):
            for t in range(indptr[i], indptr[i + 1]):
                first, width = firsts[indices[t]], firsts[indices[t] + 1] - firsts[indices[t]]
                for s in range(width):
                    value = data[starts[t] + r * width + s]
                    if value != 0:
                        columns[count], values[count] = first + s, value
                        count += 1
            pointer[rows[i] + r + 1] = count


@njit(nogil=True)
def drop_by_sums(order: Any, rows: Any, columns: Any, norms: Any, both: bool, limit: float, sums: Any) -> int:
    """Return how many tiles, in an order, can be dropped with no sum over a row or a column above a limit.

    ``sums[0]`` and ``sums[1]`` get the sums over rows and columns; with `both` a tile stands for its mirror image, too.
    """
    for count in range(len(order)):
        t = order[count]
        i, j, norm = rows[t], columns[t], norms[t]
        once = both and i != j
        if sums[0, i] + norm > limit or sums[1, j] + norm > limit:
            return count
        if once and (sums[0, j] + norm > limit or sums[1, i] + norm > limit):
            return count
        sums[0, i] += norm
        sums[1, j] += norm
        if once:
            sums[0, j] += norm
            sums[1, i] += norm
    return len(order)
