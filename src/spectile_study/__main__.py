"""Commands of the study: ``spectile-study --help`` lists them, and each has an example in its own help."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectile import __version__
from spectile.__main__ import run
from spectile_study.bench.provenance import PAPERS

if TYPE_CHECKING:
    from spectile_study.bench.measure import Supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the user's making end it with one sentence and exit status 2."""
    parser = _parser()
    return run(parser.prog, parser.parse_args(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spectile-study", description="Measure, gather and compare.")
    parser.add_argument("--version", action="version", version=f"spectile-study {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    fetch = _command(
        commands,
        "fetch",
        "download one SuiteSparse matrix, checked, into the resources folder",
        "fetch --matrix bcsstk13 --base-url https://sparse.tamu.edu",
    )
    fetch.add_argument("--matrix", required=True, help="name in config/matrices.tsv")
    fetch.add_argument("--base-url", required=True, help="https, file, or http on loopback")
    fetch.add_argument("--resources", type=Path, default=Path("resources"), help="folder of what is fetched")
    fetch.add_argument("--receipt", type=Path, help="JSON file that says what was found, also when it is absent")
    fetch.set_defaults(command=_fetch)

    measure = _command(
        commands,
        "measure",
        "measure cases of a run sheet, one record each",
        "measure --paper kpm --run quick --machine laptop --device cpu",
    )
    measure.add_argument("--paper", required=True, choices=PAPERS)
    measure.add_argument("--case", action="append", help="case of the sheet; repeat for several (default: all)")
    measure.add_argument("--run", choices=("quick", "paper"), help="only cases of this run")
    measure.add_argument("--element", help="only cases that this table or figure draws, for example fig5")
    measure.add_argument("--machine", required=True, help="name under which this machine's results are kept")
    measure.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what is measured")
    measure.add_argument("--sheet", type=Path, help="default: config/<paper>.tsv of the study")
    measure.add_argument("--schema", type=Path, help="default: workflow/schemas/<paper>.schema.yaml of the study")
    measure.add_argument("--out", type=Path, help="record of the one case")
    measure.add_argument("--out-dir", type=Path, help="default: results/<machine>/records/<paper>")
    measure.add_argument("--resources", type=Path, default=Path("resources"), help="folder of inputs")
    measure.add_argument("--seed", type=int, default=1, help="of random inputs")
    measure.add_argument("--threads", type=int, default=0, help="0: all cores that this process may use")
    measure.add_argument("--rounds", type=int, default=9, help="timed rounds")
    measure.add_argument("--warmup", type=int, default=3, help="untimed rounds before them")
    measure.add_argument("--budget-s", type=float, default=60.0, help="rounds of a case end after this time")
    measure.add_argument("--share-with", type=int, metavar="PID", help="measure in the one process for all jobs of PID")
    measure.add_argument("--log", type=Path, help="file for what is printed, with --share-with")
    measure.add_argument("--planned", default="", help="digest of all sources that a case may run, kept in its record")
    measure.add_argument("--again", action="store_true", help="measure cases that have a record, too")
    measure.set_defaults(command=_measure)

    measure.add_argument("--input", type=Path, nargs="*", default=[], help="receipts of the case's inputs, checked")

    make = _command(
        commands,
        "make-input",
        "make an input of cases and write its receipt",
        "make-input --kind decay --name exponential --receipt receipt.json",
    )
    make.add_argument(
        "--kind",
        required=True,
        help="decay, lattice, hamiltonian, hermitian, dense, family, own, water, scf, ergo or network",
    )
    make.add_argument("--name", required=True, help="which one, for example overlap_60 of the kind water, 60 of scf")
    make.add_argument("--resources", type=Path, default=Path("resources"), help="folder of what is made")
    make.add_argument("--seed", type=int, default=1, help="of random inputs")
    make.add_argument("--receipt", type=Path, required=True, help="JSON file that says what was made, or why not")
    make.set_defaults(command=_make_input)

    server = commands.add_parser("serve")
    server.add_argument("socket", type=Path)
    server.add_argument("descriptor", type=int)
    server.add_argument("owner", type=int)
    server.set_defaults(command=_serve)

    software = commands.add_parser("software")
    software.add_argument("--device", choices=("cpu", "cuda"), required=True)
    software.set_defaults(command=_software)

    worker = commands.add_parser("measure-worker")
    worker.add_argument("--parent", type=int, required=True)
    worker.set_defaults(command=_worker)

    gather = _command(
        commands,
        "gather",
        "make one parquet frame of a paper's records",
        "gather --records results/laptop/records/kpm --out results/laptop/kpm.parquet",
    )
    gather.add_argument("--records", type=Path, nargs="+", required=True, help="record files, folders or zips")
    gather.add_argument("--onto", type=Path, help="earlier frame, whose other cases are kept as they stand")
    gather.add_argument("--out", type=Path, required=True, help="the frame, a parquet file")
    gather.add_argument("--zip", type=Path, help="file for the records themselves")
    gather.set_defaults(command=_gather)

    keep = _command(
        commands,
        "keep",
        "take records into the reviewed measurements of their machine",
        "keep --records results/laptop/kpm.zip --into results/recorded/laptop",
    )
    keep.add_argument("--records", type=Path, nargs="+", required=True, help="a zip file or folder of each paper")
    keep.add_argument("--into", type=Path, required=True, help="results/recorded/<machine>")
    keep.set_defaults(command=_keep)

    unpack = _command(
        commands,
        "unpack",
        "go on from reviewed measurements: put their records into results",
        "unpack --recorded results/recorded/h200",
    )
    unpack.add_argument("--recorded", type=Path, required=True, help="results/recorded/<machine>")
    unpack.set_defaults(command=_unpack)

    draw = _command(
        commands,
        "draw",
        "draw tables and figures of a paper",
        "draw --paper kpm --element fig7 --from results/recorded/h200/kpm.parquet --results drawn",
    )
    draw.add_argument("--paper", required=True, choices=PAPERS)
    draw.add_argument("--element", action="append", help="for example fig5; repeat for several (default: all)")
    draw.add_argument("--from", dest="sources", type=Path, nargs="*", default=[], help="records, or one parquet frame")
    draw.add_argument("--results", type=Path, required=True, help="folder of figures/ and tables/")
    draw.set_defaults(command=_draw)

    claims = _command(
        commands,
        "claims",
        "compare the papers' printed numbers with frames",
        "claims --frames results/recorded/h200/kpm.parquet --out claims.html",
    )
    claims.add_argument("--frames", type=Path, nargs="*", default=[], help="parquet frames of the run")
    claims.add_argument("--claims", type=Path, default=Path("config/claims.tsv"), help="table of the claims")
    claims.add_argument("--out", type=Path, required=True, help="the page; .tsv and .fragment.html lie beside it")
    claims.set_defaults(command=_claims)

    machines = _command(
        commands,
        "machines",
        "set the frames of several machines side by side",
        "machines --machine h200 --frames results/recorded/h?00/kpm.parquet --out both",
    )
    machines.add_argument("--machine", required=True, help="the one that the others are compared with")
    machines.add_argument("--frames", type=Path, nargs="*", default=[], help="parquet frames of all machines")
    machines.add_argument("--claims", type=Path, default=Path("config/claims.tsv"), help="table of the claims")
    machines.add_argument("--out", type=Path, required=True, help="folder of claims.html and times.html")
    machines.set_defaults(command=_machines)

    everyday = _command(
        commands,
        "everyday",
        "measure random problems beside the strongest alternatives",
        "everyday --machine laptop --device cpu --set '{\"minutes\": 2}'",
    )
    everyday.add_argument("--machine", required=True, help="name under which this machine's results are kept")
    everyday.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what is measured")
    everyday.add_argument("--system", action="append", help="spamm, tsparse, evd or kpm; repeat for several")
    everyday.add_argument("--set", type=_settings, default={}, metavar="JSON", help='such as {"minutes": 2, "seed": 7}')
    everyday.add_argument("--out", type=Path, help="frame, gone on with if it is there; default: in results/<machine>")
    everyday.set_defaults(command=_everyday)

    draw_everyday = _command(
        commands,
        "draw-everyday",
        "draw the frame of everyday draws",
        "draw-everyday --from results/laptop/everyday.parquet --results results/laptop",
    )
    draw_everyday.add_argument("--from", dest="source", type=Path, required=True, help="the frame, everyday.parquet")
    draw_everyday.add_argument("--results", type=Path, required=True, help="folder of the machine, with everyday/")
    draw_everyday.set_defaults(command=_draw_everyday)

    for command in (fetch, measure, keep, draw, everyday):
        command.add_argument("--study", type=Path, default=Path(), help="folder with config/ and workflow/")

    export = _command(
        commands,
        "export",
        "write a finished run as a Workflow Run RO-Crate",
        "export --machine laptop --out laptop.zip",
    )
    export.add_argument("--machine", default="this", help="name of the machine in results/")
    export.add_argument("--out", type=Path, required=True, help="new folder, or a .zip file")
    export.add_argument("--recorded", action="store_true", help="export results/recorded/<machine>")
    export.set_defaults(command=_export)

    compare = _command(
        commands,
        "compare",
        "compare two frames or folders of records, case by case",
        "compare results/recorded/h200/kpm.parquet results/laptop/kpm.parquet",
    )
    compare.add_argument("a", type=Path, help="the earlier frame or folder")
    compare.add_argument("b", type=Path, help="the later one")
    compare.set_defaults(command=_compare)
    return parser


def _settings(text: str) -> dict[str, Any]:
    """Return the settings that an option gives as JSON."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{text} is no JSON object, such as {{"minutes": 2}}')
    return found


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that ends each option with its default, where there is one to tell."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told, default = action.help or "", action.default
        if not action.option_strings or "default" in told or default in (None, False, "", argparse.SUPPRESS, [], {}):
            return told
        return f"{told} (default: %(default)s)"


def _command(commands: Any, name: str, about: str, example: str) -> argparse.ArgumentParser:
    """Return the parser of a command, whose help describes it and shows a call."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"example:\n  spectile-study {example}",
        formatter_class=_Help,
    )
    return parser


def _fetch(options: argparse.Namespace) -> int:
    from spectile.core.atomic_file import atomic_write
    from spectile_study.inputs.suitesparse import MissingMatrix, fetch_main

    receipt = {"kind": "matrix", "name": options.matrix, "base_url": options.base_url}
    try:
        path, digest = fetch_main(
            options.matrix, options.base_url, options.resources, options.study / "config/matrices.tsv"
        )
        receipt |= {"status": "ok", "file": path.relative_to(options.resources).as_posix(), "sha256": digest}
    except MissingMatrix as error:  # absent from this collection or mirror: a result, which cases report
        if options.receipt is None:
            raise
        receipt |= {"status": "absent", "reason": str(error)}
        print(f"spectile-study: {error}", file=sys.stderr)
    if options.receipt is not None:
        with atomic_write(options.receipt) as partial:
            partial.write_text(json.dumps(receipt, indent=1) + "\n")
    return 0


def _make_input(options: argparse.Namespace) -> int:
    from spectile_study import make_inputs

    if options.kind not in make_inputs.KINDS:
        raise ValueError(f"no input is of the kind {options.kind!r}: choose one of {', '.join(make_inputs.KINDS)}")
    receipt = make_inputs.make(options.kind, options.name, options.resources, options.seed)
    if receipt["status"] != "ok":
        print(f"spectile-study: {receipt['reason']}", file=sys.stderr)
    make_inputs.write(receipt, options.receipt)
    return 0


def _measure(options: argparse.Namespace) -> int:
    if options.share_with is not None:
        from spectile_study.bench import shared_process

        if options.log is None:
            raise ValueError("--share-with needs --log: the shared process prints to a file")
        options.log.parent.mkdir(parents=True, exist_ok=True)
        return shared_process.ask(sys.argv[1:], options.share_with, options.log)
    from spectile_study.bench.measure import Supervisor

    with Supervisor(_threads(options.threads), _say) as supervisor:
        return _measure_cases(options, supervisor)


def _serve(options: argparse.Namespace) -> int:
    from spectile_study.bench import shared_process
    from spectile_study.bench.measure import Supervisor

    kept: Supervisor | None = None

    def command(arguments: Sequence[str], log: str) -> int:
        nonlocal kept
        wanted = _parser().parse_args(arguments)
        threads = _threads(wanted.threads)
        if kept is None or kept.threads != threads:  # libraries read their number of threads once
            if kept is not None:
                kept.stop()
            kept = Supervisor(threads, _say)
        supervisor = kept
        supervisor.log = log
        wanted.command = lambda wanted: _measure_cases(wanted, supervisor)
        return run("spectile-study", wanted)

    shared_process.serve(options.socket, options.descriptor, options.owner, command)
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _measure_cases(options: argparse.Namespace, supervisor: Supervisor) -> int:
    from spectile_study.bench import sheets
    from spectile_study.bench.measure import Job, claim_machine
    from spectile_study.make_inputs import checked

    sheet = options.sheet or options.study / f"config/{options.paper}.tsv"
    schema = options.schema or options.study / f"workflow/schemas/{options.paper}.schema.yaml"
    rows = sheets.read_sheet(sheet, schema, options.run)
    for name in options.case or ():
        if name not in rows:
            raise ValueError(f"{sheet} has no case {name!r}: choose one of its column 'case'")
    chosen = [
        row
        for name, row in rows.items()
        if (not options.case or name in options.case)
        and (not options.element or options.element in (row.get("element") or "").split(","))
    ]
    if not chosen:
        raise ValueError(f"{sheet} has no case for this choice: leave out --case, --run or --element, or name others")
    if options.out is not None and len(chosen) != 1:
        raise ValueError("--out names one record and the choice holds several cases: give one --case, or --out-dir")
    device = _device(options.device)
    folder = options.out_dir or Path("results") / options.machine / "records" / options.paper
    claim_machine(options.out.parents[2] if options.out else folder.parent.parent, options.machine, device)
    made = [checked(path, options.resources) for path in options.input]
    receipts = dict(each for each in made if each is not None)
    failures = []
    for number, row in enumerate(chosen, start=1):
        out = options.out or folder / f"{row['case']}.json"
        label = f"[{number}/{len(chosen)}] {options.paper}/{row['case']}"
        if not options.out and not options.again and _is_record(out):
            print(f"{label}: has a record", flush=True)
            continue
        start = time.monotonic()
        job = Job(
            options.paper, row, options.machine, device, str(out), str(options.resources), options.seed,
            supervisor.threads, options.rounds, options.warmup, options.budget_s, receipts, study=str(options.study),
            planned=options.planned,
        )  # fmt: skip
        try:
            _restore_matrix(row.get("matrix"), options.resources, options.study)
            status = supervisor.measure(job)
        except RuntimeError as error:
            failures.append(str(error))
            status = f"not measured: {error}"
        print(f"{label}: {status} ({time.monotonic() - start:.1f} s)", flush=True)
    if failures:
        raise RuntimeError(f"{len(failures)} of {len(chosen)} cases were not measured: " + "; ".join(failures))
    return 0


def _everyday(options: argparse.Namespace) -> int:
    from spectile_study.bench.measure import claim_machine
    from spectile_study.everyday.run import record
    from spectile_study.everyday.settings import settings

    found = settings(options.study, options.set | ({"systems": options.system} if options.system else {}))
    out = options.out or Path("results") / options.machine / "everyday.parquet"
    device = _device(options.device)
    claim_machine(out.parent, options.machine, device)
    record(options.machine, device, found, out, lambda line: print(line, flush=True))
    return 0


def _draw_everyday(options: argparse.Namespace) -> int:
    from spectile_study.everyday.drawing import draw

    draw(options.source, options.results)
    return 0


def _restore_matrix(name: str | None, resources: Path, study: Path) -> None:
    """Check the kept copy of a fetched matrix; one that was damaged since is made again from where it came."""
    receipt = resources / "receipts" / f"{name}.json"
    if name is None or not receipt.exists():
        return
    known = json.loads(receipt.read_text())
    if known["status"] != "ok":
        return
    from spectile_study.inputs.suitesparse import fetch

    try:
        fetch(name, known["base_url"], resources, table=study / "config/matrices.tsv")
    except ValueError as error:  # the case is built all the same, and its record says what is wrong
        print(f"spectile-study: {error}", file=sys.stderr)


def _is_record(path: Path) -> bool:
    from spectile_study.bench.record import RecordError, named, read

    try:
        named(read(path), path, str(path))
    except (FileNotFoundError, RecordError):
        return False
    return True


def _software(options: argparse.Namespace) -> int:
    from spectile_study.bench import provenance

    print(json.dumps(provenance.software(options.device)))
    return 0


def _worker(options: argparse.Namespace) -> int:
    from spectile_study.bench.measure import worker

    return worker(options.parent)


def _gather(options: argparse.Namespace) -> int:
    from spectile_study.bench import archive, record

    records = [stored for place in options.records for stored in archive.load(place).values()]
    for column in ("paper", "machine"):
        values = sorted({stored[column] for stored in records})
        if len(values) > 1:
            raise ValueError(f"records of several {column}s ({', '.join(values)}) make no frame: gather a file of each")
    cases = [stored["case"] for stored in records]
    if len(set(cases)) < len(cases):
        twice = next(case for case in cases if cases.count(case) > 1)
        raise ValueError(f"the case {twice} comes from several of {', '.join(map(str, options.records))}: name one")
    table = record.frame(records)
    if options.onto is not None:
        table = record.join(archive.read_frame(options.onto, whole=True), table)
    record.write_frame(table, options.out)
    if options.zip is not None:
        archive.pack(records, options.zip)
    unwell = table[table["status"] == "failed"]
    for _, row in unwell.iterrows():
        print(f"failed: {row['paper']}/{row['case']} {row['method']}: {row['reason']}", file=sys.stderr)
    print(f"{options.out}: {len(records)} records, {len(table)} rows, {len(unwell)} failed")
    return 0


def _keep(options: argparse.Namespace) -> int:
    from spectile.core.atomic_file import atomic_write
    from spectile_study.bench import archive, sheets

    for place in options.records:
        rows: set[str] = set()
        for paper in {stored["paper"] for stored in archive.load(place).values()}:
            schema = options.study / f"workflow/schemas/{paper}.schema.yaml"
            rows |= set(sheets.read_sheet(options.study / f"config/{paper}.tsv", schema))
        for line in archive.keep(place, options.into, rows):
            print(f"{place}: {line}")
        # The graph of the run's rules lies beside a zip, and beside the folder of all records.
        for graph in [each / "rules.svg" for each in place.resolve().parents[:2]]:
            if graph.exists():
                with atomic_write(options.into / graph.name) as partial:
                    partial.write_bytes(graph.read_bytes())
    return 0


def _unpack(options: argparse.Namespace) -> int:
    from spectile_study.bench import archive

    zips = sorted(options.recorded.glob("*.zip"))
    if not zips:
        raise FileNotFoundError(f"{options.recorded} holds no zip of records: name a folder of results/recorded")
    for path in zips:
        folder = Path("results") / options.recorded.resolve().name / "records" / path.stem
        print(f"{path}: {archive.unpack(path, folder)} records written to {folder}")
    return 0


def _draw(options: argparse.Namespace) -> int:
    from spectile_study.bench import archive, claims, record
    from spectile_study.figures import agreement
    from spectile_study.figures.elements import SCRIPTS, elements

    known = {element.name: element for element in elements(options.paper, options.study / SCRIPTS)}
    chosen = options.element or list(known)
    for name in set(chosen) - set(known):
        raise ValueError(f"{options.paper} has no element {name!r}: choose one of {', '.join(known)}")
    claims.listed(options.study / "config/claims.tsv")
    if [path.suffix for path in options.sources] == [".parquet"]:
        frame = archive.read_frame(options.sources[0])
    else:
        frame = record.frame(stored for path in options.sources for stored in archive.load(path).values())
    for name in chosen:
        out = options.results / known[name].output
        judged = agreement.of_element(frame, known[name])
        drawing = known[name].draw(frame)
        for sentence in agreement.partly(judged):
            drawing.note(sentence)
        drawing.save(out)
        agreement.write(judged, out)
    return 0


def _claims(options: argparse.Namespace) -> int:
    from spectile_study.bench import archive
    from spectile_study.figures import claims

    claims.write([archive.read_frame(path) for path in options.frames], options.claims, options.out)
    return 0


def _machines(options: argparse.Namespace) -> int:
    from spectile_study.bench import archive
    from spectile_study.figures import machines

    frames = [archive.read_frame(path) for path in options.frames]
    machines.write(options.machine, frames, options.claims, options.out)
    return 0


def _export(options: argparse.Namespace) -> int:
    from spectile_study.bench.crate import export

    print(export(Path(), options.machine, options.out, options.recorded))
    return 0


def _compare(options: argparse.Namespace) -> int:
    from spectile_study.bench.compare import compare, report

    print(report(compare(options.a, options.b)))
    return 0


def _device(wanted: str) -> str:
    from spectile_study.bench.measure.machine import has_driver

    if wanted == "cpu" or (wanted == "auto" and not has_driver()):
        return "cpu"
    from spectile.core import device

    available = device.available()
    if wanted == "cuda" and not available:
        raise ValueError("--device cuda was asked for and no usable CUDA device was found: use --device cpu")
    return "cuda" if available else "cpu"


def _threads(wanted: int) -> int:
    if wanted:
        return wanted
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    raise SystemExit(main())
