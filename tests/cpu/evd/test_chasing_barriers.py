"""The barriers of the bulge-chasing kernel: no schedule of the warps mixes two uses of one, and none waits for ever.

A barrier that is used again before everybody has left its last use would be undefined behaviour.  Every use is an event
of a warp; a warp that waits goes on after all that arrived there.  If all arrivals at one use of a barrier come before
each arrival at the next one in this order, they do so in every schedule, and one run stands for all.
"""

import itertools
import re
from pathlib import Path

import pytest

import spectile.evd.cuda.chasing
from spectile.evd.cuda.choose import chase_threads

SOURCE = (Path(spectile.evd.cuda.chasing.__file__).parent / "chasing.cu").read_text()
NUMBERS = {name: int(number) for name, number in re.findall(r"^    ([A-Z_]+) = (\d+),? ", SOURCE, re.MULTILINE)}
WHOLE_BLOCK = 0
# What the programs below do, in the order of the source: a change there must be made here as well.
CALLS = {
    "receive_edges": ["sync EDGE_ARRIVED, 2", "sync HEAD_ARRIVED, CHASE_WARPS + 1", "arrive MAY_LOAD, CHASE_WARPS + 2",
                      "sync MAY_LOAD, CHASE_WARPS + 2"],
    "receive_rows": ["sync ROW_ARRIVED, CHASE_WARPS + 1", "sync CORNER_ARRIVED, CHASE_WARPS + 1",
                     "sync MAY_LOAD + 1, CHASE_WARPS + 2"],
    "publish": ["sync STORED + group, CHASE_WARPS + 1", "arrive MAY_LOAD + group, CHASE_WARPS + 2"],
    "work_on_o": ["sync EDGE_ARRIVED, 2", "sync WORKING, CHASE_WARPS", "sync HEAD_ARRIVED, CHASE_WARPS + 1",
                  "sync REFLECTOR_READ + (task & 1), CHASE_WARPS + 1", "arrive REFLECTOR + (task & 1), CHASE_WARPS + 1",
                  "arrive STORED, CHASE_WARPS + 1", "sync MAY_LOAD, CHASE_WARPS + 2",
                  "sync REFLECTOR_READ + (task & 1), CHASE_WARPS + 1"],
    "work_on_d": ["sync REFLECTOR + (task & 1), CHASE_WARPS + 1", "arrive REFLECTOR_READ + (task & 1), CHASE_WARPS + 1",
                  "sync ROW_ARRIVED, CHASE_WARPS + 1", "sync WORKING + 1, CHASE_WARPS",
                  "sync CORNER_ARRIVED, CHASE_WARPS + 1", "arrive STORED + 1, CHASE_WARPS + 1",
                  "sync MAY_LOAD + 1, CHASE_WARPS + 2"],
}  # fmt: skip


def sync(name, warps, offset=0):
    return NUMBERS[name] + offset, warps, True


def arrive(name, warps, offset=0):
    return NUMBERS[name] + offset, warps, False


def receive_edges(warps, first, whole):
    for by_message in whole:
        if first:
            yield sync("MAY_LOAD", warps + 2)
            continue
        yield sync("EDGE_ARRIVED", 2)
        if by_message:
            yield sync("HEAD_ARRIVED", warps + 1)
        yield arrive("MAY_LOAD", warps + 2)


def receive_rows(warps, first, whole):
    for by_message in whole:
        yield sync("ROW_ARRIVED", warps + 1)
        if by_message and not first:
            yield sync("CORNER_ARRIVED", warps + 1)
        yield sync("MAY_LOAD", warps + 2, 1)


def publish(warps, whole, group):
    for _ in whole:
        yield sync("STORED", warps + 1, group)
        yield arrive("MAY_LOAD", warps + 2, group)


def work_on_o(warps, first, whole, warp, wait_for_d=True):
    for task, by_message in enumerate(whole):
        if not first and warp == (warps - 1 if task else 0):
            yield sync("EDGE_ARRIVED", 2)
        yield sync("WORKING", warps)
        if by_message and not first:
            yield sync("HEAD_ARRIVED", warps + 1)
        if warp == 0:
            if task > 1 and wait_for_d:
                yield sync("REFLECTOR_READ", warps + 1, task & 1)
            yield arrive("REFLECTOR", warps + 1, task & 1)
        yield arrive("STORED", warps + 1)
        yield sync("MAY_LOAD", warps + 2)
    if warp == 0 and wait_for_d:
        for task in range(max(len(whole) - 2, 0), len(whole)):
            yield sync("REFLECTOR_READ", warps + 1, task & 1)


def work_on_d(warps, first, whole):
    for task, by_message in enumerate(whole):
        yield sync("REFLECTOR", warps + 1, task & 1)
        yield arrive("REFLECTOR_READ", warps + 1, task & 1)
        yield sync("ROW_ARRIVED", warps + 1)
        yield sync("WORKING", warps, 1)
        if by_message and not first:
            yield sync("CORNER_ARRIVED", warps + 1)
        yield arrive("STORED", warps + 1, 1)
        yield sync("MAY_LOAD", warps + 2, 1)


def programs(warps, sweeps, **changed):
    """Return what each warp of a block does at barriers in `sweeps`, pairs of (first of all, which tasks are whole)."""
    together = [(WHOLE_BLOCK, 2 * warps + 4, True)] * 2
    roles = [
        *(lambda first, whole, warp=warp: work_on_o(warps, first, whole, warp, **changed) for warp in range(warps)),
        *[lambda first, whole: work_on_d(warps, first, whole)] * warps,
        lambda first, whole: receive_edges(warps, first, whole),
        lambda first, whole: receive_rows(warps, first, whole),
        *(lambda first, whole, group=group: publish(warps, whole, group) for group in (0, 1)),
    ]
    return [[use for sweep in sweeps for use in (*together, *role(*sweep))] for role in roles]


def run(programs):
    """Run the programs; AssertionError where two uses of a barrier may mix, or where a warp would wait for ever."""
    count = len(programs)
    clocks = [[0] * count for _ in programs]
    next_use, waiting = [0] * count, [False] * count
    arrived = {}  # at the present use of each barrier: warp, its clock, whether it waits
    last = {}  # of each barrier: the clock of everything that arrived at the use before
    while True:
        ready = [warp for warp in range(count) if not waiting[warp] and next_use[warp] < len(programs[warp])]
        if not ready:
            break
        for warp in ready:
            barrier, expected, waits = programs[warp][next_use[warp]]
            next_use[warp] += 1
            clocks[warp][warp] += 1
            before = last.get(barrier, [0] * count)
            assert all(own >= other for own, other in zip(clocks[warp], before, strict=True)), (
                f"warp {warp} may arrive at barrier {barrier} while others still do so for its last use"
            )
            here = arrived.setdefault(barrier, [])
            here.append((warp, list(clocks[warp]), waits, expected))
            waiting[warp] = waits
            if len(here) == expected:
                assert len({who for who, *_ in here}) == expected and {of for *_, of in here} == {expected}
                last[barrier] = [max(clock) for clock in zip(*(clock for _, clock, _, _ in here), strict=True)]
                for who, _, waited, _ in here:
                    if waited:
                        clocks[who] = [max(pair) for pair in zip(clocks[who], last[barrier], strict=True)]
                        waiting[who] = False
                arrived[barrier] = []
    stuck = {barrier: [who for who, *_ in here] for barrier, here in arrived.items() if here}
    assert not stuck, f"these warps are left at barriers: {stuck}"
    assert next_use == [len(program) for program in programs]


def calls_of(function):
    """Return the calls of barriers in a function of the source, in order."""
    body = re.search(rf"^__device__ [^;{{]*?{function}\(.*?^}}", SOURCE, re.MULTILINE | re.DOTALL).group()
    return [" ".join(call) for call in re.findall(r"\b(sync|arrive)_warps\((.*)\);", body)]


def test_the_programs_are_those_of_the_source():
    assert {function: calls_of(function) for function in CALLS} == CALLS
    assert len(re.findall(r"\b(?:sync|arrive)_warps\([A-Z]", SOURCE)) == sum(map(len, CALLS.values()))
    assert SOURCE.count("__syncthreads();") == 2
    # No two names share a number: those of both groups, or of both turns, take two.
    pairs = ("WORKING", "STORED", "MAY_LOAD", "REFLECTOR", "REFLECTOR_READ")
    taken = [number + turn for name, number in NUMBERS.items() for turn in range(2 if name in pairs else 1)]
    assert sorted(taken) == list(range(1, 15))


@pytest.mark.parametrize("bandwidth", [32, 64])
def test_no_schedule_mixes_two_uses_of_a_barrier(bandwidth):
    warps = chase_threads(bandwidth) // 32
    for tasks, last_is_whole in itertools.product(range(1, 7), (False, True)):
        whole = [True] * (tasks - 1) + [last_is_whole]
        run(programs(warps, [(True, whole), (False, whole), (False, whole[1:] or whole)]))


def test_a_barrier_that_is_used_too_early_is_found():
    """Without the wait for what D has read, O's first warp may arrive twice before D has seen it once."""
    with pytest.raises(AssertionError, match="for its last use"):
        run(programs(4, [(False, [True] * 6)], wait_for_d=False))
    alone = programs(4, [(False, [True] * 3)])
    alone[-1].pop()
    with pytest.raises(AssertionError, match="left at barriers"):
        run(alone)
