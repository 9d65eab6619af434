"""Lists of the products of each entry of C: the device's sort of a long list, run on the host."""

import ctypes

import numpy as np
import pytest

from spectile.tsparse.cuda import units

from ...on_host import host_library

#: A warp's lanes as threads of the host, which wait for each other where the lanes do.
HARNESS = """
#include <pthread.h>
#include <thread>
#include <vector>
using u32 = unsigned int; using u64 = unsigned long long;
static pthread_barrier_t barrier;
static void __syncwarp() {{ pthread_barrier_wait(&barrier); }}
{function}
extern "C" void sort(u64* list, u32 count) {{
    pthread_barrier_init(&barrier, nullptr, 32);
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < 32; ++lane) lanes.emplace_back([=] {{ sort_by_warp(list, count, lane); }});
    for (auto& lane : lanes) lane.join();
    pthread_barrier_destroy(&barrier);
}}
"""


@pytest.fixture(scope="module")
def sort(tmp_path_factory):
    source = units.LIST["float32"].source()
    start = source.index("__device__ __forceinline__ void sort_by_warp")
    function = source[start : source.index("\n}\n", start) + 2]
    text = HARNESS.format(function=function.replace("__device__ __forceinline__", "static"))
    return host_library(tmp_path_factory.mktemp("lists") / "lists", text, "-pthread").sort


@pytest.mark.parametrize("count", [1, 2, 3, 31, 32, 33, 64, 100, 257, 1000, 1024, 1025, 20_000, 2**16 - 1])
def test_a_warp_sorts_a_list_and_nothing_beside_it(sort, count):
    rng = np.random.default_rng(count)
    beside = np.array([0, 2**64 - 1, 5], np.uint64)
    for words in (rng.integers(0, 2**64, count, np.uint64), np.arange(count, 0, -1, np.uint64)):
        memory = np.concatenate([beside, words, beside])
        part = memory[len(beside) : len(beside) + count]
        sort(part.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint(count))
        assert (part == np.sort(words)).all()
        assert (memory[: len(beside)] == beside).all() and (memory[-len(beside) :] == beside).all()
