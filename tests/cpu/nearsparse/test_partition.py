"""How a product is cut for several GPUs; no GPU is needed."""

import itertools

import numpy as np
import pytest

from spectile.core.device import unavailable_reason
from spectile.nearsparse import distribute, spamm
from spectile.nearsparse.cuda.choose import Problem
from spectile.nearsparse.multi import partition

# NVLink 4, as measured.
LINK = 394e9


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_rows_are_cut_by_work(parts):
    work = np.random.default_rng(parts).random(500)
    cuts = partition.cut_rows(work, np.ones(parts))
    assert cuts[0] == 0 and cuts[-1] == 500 and cuts == sorted(cuts) and len(cuts) == parts + 1
    sums = [work[a:b].sum() for a, b in itertools.pairwise(cuts)]
    assert max(abs(s - work.sum() / parts) for s in sums) <= work.max()
    shares = np.arange(1, parts + 1)
    cuts = partition.cut_rows(work, shares)
    sums = [work[a:b].sum() for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(sums, shares / shares.sum() * work.sum(), atol=1)


def test_no_work_and_fewer_units_than_parts():
    assert partition.cut_rows(np.zeros(8), np.ones(4)) == [0, 2, 4, 6, 8]
    cuts = partition.cut_rows([5.0], np.ones(3))
    assert sorted(cuts) == cuts and cuts[0] == 0 and cuts[-1] == 1
    assert partition.cut_rows([0, 0, 1.0, 1.0], [1, 0, 1])[-1] == 4


@pytest.mark.parametrize("columns", [1, 256, 300, 4096, 13656])
def test_panels_cover_the_columns_at_multiples_of_the_tiles(columns):
    found = partition.panels(columns)
    assert found[0][0] == 0 and found[-1][1] == columns and len(found) <= partition.PANELS
    assert all(a[1] == b[0] and b[0] % partition.COLUMN_UNIT == 0 for a, b in itertools.pairwise(found))
    wide = partition.panels(columns, least=2048)
    assert wide[-1][1] == columns and all(last - first >= 2048 for first, last in wide[:-1])
    rows = partition.pieces(columns, 5)
    assert [rows[0][0], rows[-1][1]] == [0, columns] and len(rows) <= 5


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_everything_is_sent_once(parts):
    order = partition.schedule(parts, 16)
    assert sorted(order) == [*(("a", p) for p in range(1, parts)), *(("b", j) for j in range(16))]
    assert order[0] == ("b", 0)


def test_shares_keep_work_on_the_first_gpu_where_the_link_is_slow():
    n = 32768
    fast = partition.shares(8, 0.46, 4 * n * n, 4 * n * n, 4 * n * n, (1.0,) * 16, LINK)
    slow = partition.shares(8, 0.028, 2 * n * n, 2 * n * n, 4 * n * n, (1.0,) * 16, LINK)
    for found in (fast, slow):
        assert sum(found) == pytest.approx(1) and min(found) >= 0
        assert found[0] == max(found)
    # What the issue asks for, before anything is lost: 6x and 3x of one GPU.
    assert 1 / fast[0] > 6.5 and 2.7 < 1 / slow[0] < 3.1
    # What is left out of B lets the others do more.
    assert partition.shares(8, 0.028, 2 * n * n, 2 * n * n, 4 * n * n, (0.8,) * 16, LINK)[0] < slow[0]
    # Without transfers all parts are equal, and one part has all.
    np.testing.assert_allclose(partition.shares(4, 1.0, 1, 1, 1, (1.0,) * 16, LINK), 0.25, rtol=1e-6)
    assert partition.shares(1, 1.0, 10, 10, 10, (1.0,) * 16, LINK) == (1.0,)


def test_blocks_of_rows_are_given_out_in_turn():
    blocks = partition.round_robin(1000, 128, 3)
    assert sorted(itertools.chain(*blocks)) == [(s, min(s + 128, 1000)) for s in range(0, 1000, 128)]
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
    assert partition.block_height(32768, 8, 32768) == 1024
    assert partition.block_height(32768, 8, 1000) == 896
    assert partition.block_height(32768, 8, 100) == 0
    assert partition.block_height(10, 4, 10**6) == 128


def test_devices_are_refused_in_words():
    a = np.ones((64, 64))
    with pytest.raises(ValueError, match="split"):
        spamm(a, a, tau=1.0, devices=2, split="both")
    with pytest.raises(ValueError, match="split"):
        distribute(a, a, 1.0, 2, split="both")
    with pytest.raises(ValueError, match="backend"):
        spamm(a, a, tau=1.0, devices=2, backend="cpu")
    with pytest.raises(TypeError, match="a is float64 and b is float32"):
        distribute(a, a.astype("f4"), 1.0, 2)
    with pytest.raises(ValueError, match="one leading dimension"):
        distribute(a[None, None], a, 1.0, 2)
    if unavailable_reason() is not None:
        for call in (lambda: spamm(a, a, tau=1.0, devices=2), lambda: distribute(a, a, 1.0, [0])):
            with pytest.raises(RuntimeError, match=r"CUDA|CuPy"):
                call()


def test_a_part_without_entries_decides_no_kernel_for_the_others():
    a, parts = np.empty((128, 576), "f4"), [np.empty((576, columns), "f4") for columns in (256, 0, 44)]
    for b in parts:
        assert Problem.of(a, b, np.empty((128, b.shape[1]), "f4"), 32, "tf32x3").aligned
