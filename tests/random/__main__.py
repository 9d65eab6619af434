"""Call at random for some minutes, or repeat one case: ``python -m tests.random --help``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.random.cases import CASES
from tests.random.worker import Worker, run_case, simplify


def main() -> int:
    """Run the cases and print a table of failures; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.random", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to call (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="first seed (default: 1)")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds that a case may take (default: 60)")
    parser.add_argument("--case", metavar="NAME:SEED[:CHOICE=NUMBER,...]", help="repeat one case in this process")
    arguments = parser.parse_args()
    if arguments.case:
        return repeat(arguments.case, arguments.backend)
    failures: dict[tuple[str, str], list[str]] = {}
    counts: Counter[str] = Counter()
    end, seed = time.monotonic() + 60 * arguments.minutes, arguments.seed
    with Worker(arguments.backend, arguments.timeout) as worker:
        while time.monotonic() < end:
            for name in arguments.only:
                outcome = worker.run(name, seed)
                counts[name] += 1
                if not outcome.kind:
                    continue
                # Failures that begin alike are shown once, made simple.
                key = name, f"{outcome.kind} {outcome.message[:24]}"
                known = failures.setdefault(key, [])
                known.append(str(seed))
                if len(known) == 1:
                    fixed, simple = simplify(worker, name, seed, outcome)
                    print(line(name, seed, fixed, simple), flush=True)
                if time.monotonic() > end:
                    break
            seed += 1
    print(f"\n{sum(counts.values())} calls, seeds {arguments.seed} to {seed - 1}: {len(failures)} kinds of failures")
    for (name, what), seeds in failures.items():
        print(f"  {name}: {what}...: {len(seeds)} of {counts[name]}, seeds {' '.join(seeds[:5])}")
    return int(bool(failures))


def line(name: str, seed: int, fixed: dict[str, int], outcome: object) -> str:
    """Return a failure with what repeats it."""
    chosen = ",".join(f"{choice}={number}" for choice, number in fixed.items())
    words = ", ".join(f"{choice}={word}" for choice, word in outcome.words.items() if outcome.made[choice])  # type: ignore[attr-defined]
    return (
        f"{outcome.kind}: {outcome.message}\n    {words}\n"  # type: ignore[attr-defined]
        f"    python -m tests.random --case '{name}:{seed}{':' + chosen if chosen else ''}'"
    )


def repeat(case: str, backend: str) -> int:
    """Run one case here, and show what was chosen and what came out."""
    name, seed, *rest = case.split(":", 2)
    pairs = (pair.rsplit("=", 1) for pair in rest[0].split(",")) if rest else ()
    outcome = run_case(name, int(seed), {choice: int(number) for choice, number in pairs}, backend)
    for choice, word in outcome.words.items():
        print(f"{choice}: {word}")
    print(f"{outcome.kind or 'all holds'}: {outcome.message}")
    return int(bool(outcome.kind))


if __name__ == "__main__":
    sys.exit(main())
