"""Command line: ``spectile probe`` describes the machine, ``spectile compile`` compiles kernels ahead of time."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from spectile import __version__, show_config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the user's making end it with one sentence and exit status 2."""
    parser = argparse.ArgumentParser(prog="spectile", description="Four systems for symmetric and sparse matrices.")
    parser.add_argument("--version", action="version", version=f"spectile {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    about = 'describe this machine: the backend that "auto" takes, processor, libraries, CUDA devices'
    probe = commands.add_parser("probe", help=about, description=about, epilog="example: spectile probe > machine.json")
    probe.set_defaults(command=_probe)
    about = "compile the CUDA kernels ahead of the first call; needs no GPU"
    compile_ = commands.add_parser(
        "compile", help=about, description=about, epilog="example: spectile compile --arch sm_90a"
    )
    compile_.add_argument("--arch", action="append", required=True, help="sm_80, sm_90a, ...; repeat for several")
    kept = Path(__file__).parent / "cubins"
    compile_.add_argument("--out", type=Path, default=kept, help="folder; by default the one that calls look into")
    compile_.set_defaults(command=_compile)
    return run(parser.prog, parser.parse_args(arguments))


def run(program: str, options: argparse.Namespace) -> int:
    """Call ``options.command(options)`` of a program and return its exit status."""
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        status = command(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, ImportError, RuntimeError, MemoryError, OSError) as error:
        if os.environ.get("SPECTILE_TRACEBACK"):
            raise
        print(f"{program}: {_sentence(error)}", file=sys.stderr)
        return 2


def _sentence(error: Exception) -> str:
    """Return what an error says; of a file that cannot be used, its name and why."""
    if isinstance(error, OSError) and error.filename is not None:
        name, why = str(error.filename), (error.strerror or "no reason is known").lower()
        short = name if len(name) < 300 else f"{name[:100]}...{name[-100:]}"
        return f"{short!r} cannot be read or written: {why}"
    told = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
    return told if " " in told else f"{type(error).__name__} of {told or 'nothing'}: it cannot be read or written"


def _probe(_: argparse.Namespace) -> int:
    show_config()
    return 0


def _compile(options: argparse.Namespace) -> int:
    from concurrent.futures import ThreadPoolExecutor

    from spectile.core.compile import PORTABLE, image_name, write_image
    from spectile.core.threads import cores
    from spectile.evd.cuda import units as evd
    from spectile.evd.cuda.multi import units as multi
    from spectile.kpm.cuda import units as kpm
    from spectile.nearsparse.cuda import units as nearsparse
    from spectile.tiles.cuda import units as tiles
    from spectile.tsparse.cuda import units as tsparse

    unknown = [arch for arch in options.arch if arch not in PORTABLE]
    if unknown:
        raise ValueError(f"no kernel is written for {', '.join(unknown)}: choose from {', '.join(PORTABLE)}")
    units = [unit for of in (evd, multi, kpm, nearsparse, tiles, tsparse) for unit in of.UNITS]
    chosen = [(unit, arch) for unit in dict.fromkeys(units) for arch in options.arch if arch in unit.archs]
    paths = [options.out / image_name(unit, arch, "cubin") for unit, arch in chosen]
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(lambda one, path: write_image(one[0], one[1], "cubin", path), chosen, paths))
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} units for {', '.join(options.arch)} in {options.out}, {size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
