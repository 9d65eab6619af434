"""A minimal kernel with the barriers of the bulge chasing, which synccheck and racecheck report wrongly.

    python tests/gpu/arrivals.py [synccheck racecheck] [-- options of compute-sanitizer]

Six warps of a block hand on numbers as ``evd/cuda/chasing/chasing.cu`` hands on tasks: four compute and wait at
MAY_LOAD, to which one that publishes and one that receives arrive without waiting.  Each barrier is used again only
after all have left its last use (tests/cpu/evd/test_chasing_barriers.py proves it of the pattern), and the results are
compared, without a tool first, so a report on this kernel is a fault of the tool, or of the compiler that is printed
beside it; docs/notes/evd.md says what was reported.
"""

from __future__ import annotations

import subprocess
import sys

from sanitize import under

SOURCE = r"""
enum { WORKING = 1, STORED, EDGE_ARRIVED, MAY_LOAD };

__device__ __forceinline__ void sync_warps(int barrier, int warps) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}
__device__ __forceinline__ void arrive_warps(int barrier, int warps) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(32 * warps) : "memory");
}

// sums: of each block, of what its publishing warp has read; traces: 32 of each block.
extern "C" __global__ void __launch_bounds__(192) hand_on(int tasks, int* sums, int* traces) {
    __shared__ int edge[2], parts[128];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int sum = 0;
    for (int task = 0; task < tasks; ++task) {
        if (warp < 4) {
            if (warp == 3) sync_warps(EDGE_ARRIVED, 2);
            sync_warps(WORKING, 4);
            parts[threadIdx.x] = edge[task & 1] + lane;
            arrive_warps(STORED, 5);
            if (traces != nullptr && warp == 3 && lane <= task % 32) traces[32 * blockIdx.x + lane] = task;
            sync_warps(MAY_LOAD, 6);
        } else if (warp == 4) {
            sync_warps(STORED, 5);
            for (int i = lane; i < 128; i += 32) sum += parts[i];
            arrive_warps(MAY_LOAD, 6);
        } else {
            if (lane == 0) edge[task & 1] = task;
            sync_warps(EDGE_ARRIVED, 2);
            arrive_warps(MAY_LOAD, 6);
        }
    }
    if (warp == 4) atomicAdd(sums + blockIdx.x, sum);
}
"""
BLOCKS, TASKS, LAUNCHES = 200, 400, 20


def launch() -> None:
    """Launch the kernel, and compare what it has handed on."""
    import cupy
    from cupy.cuda import nvrtc

    print("NVRTC {}.{}".format(*nvrtc.getVersion()), flush=True)
    kernel = cupy.RawKernel(SOURCE, "hand_on")
    sums, traces = cupy.zeros(BLOCKS, cupy.int32), cupy.zeros(32 * BLOCKS, cupy.int32)
    for _ in range(LAUNCHES):
        sums[:] = 0
        kernel((BLOCKS,), (192,), (TASKS, sums, traces))
        assert (sums == 4 * sum(32 * task + 496 for task in range(TASKS))).all(), "a number was not handed on"


def main(arguments: list[str]) -> int:
    """Launch the kernel alone and under each tool; return 1 if one reports an error."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    command = [sys.executable, __file__, "--launch"]
    subprocess.run(command, check=True)
    return under({tool: arguments[at + 1 :] for tool in arguments[:at] or ("synccheck", "racecheck")}, command)


if __name__ == "__main__":
    if sys.argv[1:] == ["--launch"]:
        launch()
    else:
        sys.exit(main(sys.argv[1:]))
