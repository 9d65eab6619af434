"""What a run of the workflow consists of: its cases, records, frames, drawings, and what each job needs.

The rules under ``workflow/rules`` name the methods of one :class:`Plan`; everything here works without Snakemake.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from spectile_study import everyday, make_inputs
from spectile_study.bench import provenance, sheets, sources, stale
from spectile_study.bench.claims import read_claims
from spectile_study.bench.measure.machine import has_driver
from spectile_study.everyday.outputs import outputs
from spectile_study.everyday.settings import Settings, settings
from spectile_study.figures.elements import SCRIPTS, Element, elements
from spectile_study.inputs import own
from spectile_study.inputs.families import is_family
from spectile_study.inputs.suitesparse.table import read_table
from spectile_study.papers import PAPERS

Config = Mapping[str, Any]
#: Settings of a measurement that decide about measuring again, beside the row.
SETTINGS = ("rounds", "warmup", "budget_s", "seed", "device")


class Wildcards(Protocol):
    """What Snakemake hands to a function of a rule."""

    paper: str
    case: str
    element: str


class Plan:
    """A run of the workflow.

    Parameters
    ----------
    config : mapping
        The configuration, as config/README.md explains it.
    study : Path
        Folder with ``config``, ``workflow`` and ``results/recorded``; outputs lie in the working directory.

    Raises
    ------
    SheetError
        If the configuration cannot be used; the message is one sentence.
    """

    #: What is drawn of everyday draws, below a machine's results.
    EVERYDAY = outputs()

    def __init__(self, config: Config, study: Path = Path()) -> None:
        check_config(config, study)
        self.config = config
        self.study = study
        self.machine = str(config["machine"])
        self.papers = [paper for paper in provenance.PAPERS if paper in config["papers"]]
        self.is_recorded = config["source"] == "recorded"

    def result(self, path: str) -> str:
        """Return `path` below this machine's results."""
        return f"results/{self.machine}/{path}"

    def results_folder(self, wildcards: Wildcards) -> str:
        """Return the folder of this machine's results."""
        return self.result("")

    @functools.cache  # noqa: B019  # one plan lives as long as the process
    def cases(self, paper: str) -> dict[str, sheets.Row]:
        """Return the rows of the paper's run sheet that this run measures, by case."""
        rows = sheets.read_sheet(*self.sheet(paper))
        check_elements(rows, self.elements(paper), *self.sheet(paper))
        check_matrices(rows, self.study / "config/matrices.tsv", self.sheet(paper)[0])
        return {case: row for case, row in rows.items() if self.config["run"] in row["run"].split(",")}

    def check(self) -> None:
        """Raise :class:`SheetError` if a table that this run reads cannot be used: better now than after measuring."""
        self.everyday_settings()
        if not self.is_recorded:
            for paper in self.papers:
                self.cases(paper)
        claims = self.study / "config/claims.tsv"
        try:
            read_claims(claims)
        except (OSError, ValueError) as error:
            raise sheets.SheetError(_naming(claims, error)) from None

    def check_targets(self, targets: Iterable[str]) -> None:
        """Raise :class:`SheetError` if a file is asked for that this run does not make.

        Parameters
        ----------
        targets : iterable of str
            What Snakemake was asked for: files, and names of rules, which pass.
        """
        for target in targets:
            parts = Path(target).parts
            if len(parts) < 3 or parts[0] != "results" or parts[1] == "recorded":
                continue
            machine, *folders, name = parts[1:]
            if (folders == ["everyday"] or name == "everyday.parquet") and machine == self.machine:
                self._has_everyday(target)
            if machine != self.machine:
                source = "source=recorded " if (self.study / "results/recorded" / machine).is_dir() else ""
                raise sheets.SheetError(
                    f"{target} is of the machine {machine!r} and this run of {self.machine!r}: "
                    f"add --config {source}machine={machine}"
                )
            drawn = re.fullmatch(r"([a-z]+)_([a-z0-9_]+)\.(svg|html)", name)
            if folders in (["figures"], ["tables"]) and drawn:
                self._has_paper(target, drawn[1])
                place = self.result(self._element(drawn[1], drawn[2]).output)
                if Path(target) != Path(place):
                    raise sheets.SheetError(f"{target} is not drawn: ask for {place}")
            elif len(folders) == 2 and folders[0] == "records":
                self._has_paper(target, folders[1])
                self._row(folders[1], Path(name).stem)

    def _has_everyday(self, target: str) -> None:
        """Raise :class:`SheetError` if a target of everyday draws cannot be made."""
        if self.is_recorded and not Path(self.everyday_frame()).exists():
            raise sheets.SheetError(
                f"{target} cannot be drawn: results/recorded/{self.machine} holds no everyday draws; "
                "measure them with source=measured"
            )

    def _has_paper(self, target: str, paper: str) -> None:
        if paper in self.papers:
            return
        known = f"add --config papers=[{paper}]" if paper in PAPERS else f"papers are {', '.join(PAPERS)}"
        raise sheets.SheetError(f"{target} is of the paper {paper!r}, which this run has not: {known}")

    def sheet(self, paper: str) -> tuple[Path, Path]:
        """Return the paper's run sheet and its schema."""
        return self.study / f"config/{paper}.tsv", self.study / f"workflow/schemas/{paper}.schema.yaml"

    def row(self, wildcards: Wildcards) -> sheets.Row:
        """Return the sheet's row of a case.

        Raises
        ------
        SheetError
            If this run has no such case.
        """
        return self._row(wildcards.paper, wildcards.case)

    def _row(self, paper: str, case: str) -> sheets.Row:
        cases = self.cases(paper)
        if case in cases:
            return cases[case]
        elsewhere = sheets.read_sheet(*self.sheet(paper))
        if case in elsewhere:
            run = elsewhere[case]["run"]
            add = "--configfile config/paper.yaml" if run == "paper" else f"--config run={run}"
            raise sheets.SheetError(f"the case {case} of {paper} is one of the run {run!r}, not of this one: add {add}")
        near = difflib.get_close_matches(case, list(cases), n=1)
        hint = f"did you mean {near[0]}?" if near else f"its cases stand in {self.sheet(paper)[0]}"
        raise sheets.SheetError(f"{paper} has no case {case!r}: {hint}")

    def record(self, paper: str, case: str) -> str:
        """Return the record of a case."""
        return self.result(f"records/{paper}/{case}.json")

    def records(self, wildcards: Wildcards) -> list[str]:
        """Return the records of a paper's frame: of all its cases, or with source=present those that are there."""
        return self._kept([self.record(wildcards.paper, case) for case in self.cases(wildcards.paper)])

    def all_records(self) -> list[str]:
        """Return the records of all cases of this run; none where nothing is measured."""
        if self.config["source"] != "measured":
            return []
        return [self.record(paper, case) for paper in self.papers for case in self.cases(paper)]

    def first_records(self) -> list[str]:
        """Return the record of each paper's first case."""
        return [self.record(paper, case) for paper in self.papers for case in list(self.cases(paper))[:1]]

    @functools.cache  # noqa: B019
    def stale(self) -> dict[str, dict[str, str]]:
        """Return what changed since records of this run were measured, by path; those that stand are left out."""
        found: dict[str, dict[str, str]] = {}
        here: dict[str, dict[str, str]] = {}
        for path in self.all_records():
            try:
                stored = json.loads(Path(path).read_text())
                backend = stored["backend"]
                if backend not in here:
                    here[backend] = stale.installed(backend)
                row = self.cases(stored["paper"])[stored["case"]]
                edited = provenance.edited(stored["provenance"], _case(stored["paper"], row, backend))
                changes = stale.changes(stored, row, edited, here[backend])
            except (OSError, ValueError, KeyError):  # not measured yet, or refused where it is read
                continue
            if changes:
                found[path] = changes
        return found

    def is_measured_again(self, wildcards: Wildcards) -> bool:
        """Return whether the configuration asks for this case again because its record is stale."""
        return self.config["remeasure"] == "stale" and self.record(wildcards.paper, wildcards.case) in self.stale()

    def news(self) -> str | None:
        """Return one sentence about the stale records of this run, None where there are none."""
        found = self.stale()
        if not found:
            return None
        again = (
            "they are measured again"
            if self.config["remeasure"] == "stale"
            else ("they are kept, and --config remeasure=stale measures them again")
        )
        return f"{stale.told(found.values())}; {again}"

    def _kept(self, records: list[str]) -> list[str]:
        if self.config["source"] == "present":
            return [path for path in records if Path(path).exists()]
        return records

    def sources_digest(self, wildcards: Wildcards) -> str:
        """Return the digest of the sources that the case may run.

        Where nothing of what its record ran has changed, the digest under which that was measured.
        """
        paper, row = wildcards.paper, self.row(wildcards)
        try:
            stored = json.loads(Path(self.record(paper, wildcards.case)).read_text())
            planned, facts = stored["provenance"]["planned"], stored["provenance"]
            if not provenance.edited(facts, _case(paper, row, stored["backend"])):
                return planned
        except (OSError, ValueError, KeyError):  # not measured yet, or outside the workflow
            pass
        return _case(paper, row, "cpu" if self.config["device"] == "cpu" else "cuda").digest()

    def row_digest(self, wildcards: Wildcards) -> str:
        """Return the digest of a case's row and of the settings of the measurement."""
        return sheets.row_digest(self.row(wildcards) | {key: self.config[key] for key in SETTINGS})

    def wants_gpu(self) -> bool:
        """Return whether measuring needs the environment with CUDA's libraries."""
        return self.config["device"] == "cuda" or (self.config["device"] == "auto" and has_driver())

    def threads(self, wildcards: Wildcards, cores: int | None) -> int:
        """Return the threads of a measuring job: as configured, or all `cores`; one for each MPI rank at least."""
        return max(self.config["threads"] or cores or 8, self.row(wildcards).get("ranks") or 1)

    def gpus(self, wildcards: Wildcards, limit: int | None) -> int:
        """Return the number of GPUs that a case needs.

        Raises
        ------
        SheetError
            If Snakemake's `limit` of GPUs is below it: Snakemake would clip the case to the limit.
        """
        if self.config["device"] == "cpu":
            return 0
        needed = self.row(wildcards).get("gpus") or (1 if self.config["device"] == "cuda" else 0)
        if limit is not None and limit < needed:
            raise sheets.SheetError(
                f"the case {wildcards.case} needs {needed} GPUs and --resources gpu={limit} would clip it: "
                "leave that limit out, or measure other papers"
            )
        return needed

    def minutes(self, wildcards: Wildcards, attempt: int) -> int:
        """Return the minutes to ask a scheduler for: three times the sheet's estimate, at least five."""
        return max(5, int(3 * (self.row(wildcards).get("minutes") or 1))) * attempt

    def memory_mb(self, wildcards: Wildcards, attempt: int) -> int:
        """Return the memory to ask a scheduler for, more on a second attempt."""
        return int(1024 * (self.row(wildcards).get("memory_gb") or 4)) * attempt

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """Return the receipts of the inputs that a case needs."""
        row = self.row(wildcards)
        made = [f"resources/inputs/{kind}/{name}.json" for kind, name in make_inputs.of_case(wildcards.paper, row)]
        name = None if make_inputs.is_model(wildcards.paper, row) else row.get("matrix")
        return (
            made if name is None or is_family(name) or own.is_own(name) else [*made, f"resources/receipts/{name}.json"]
        )

    def is_made_from(self, wildcards: Wildcards, receipt: str) -> bool:
        """Return whether a case's record was measured with the very input that a receipt names."""
        try:
            stored = json.loads(Path(self.record(wildcards.paper, wildcards.case)).read_text())["inputs"]
            name, digest = make_inputs.said(json.loads(Path(receipt).read_text()))
        except (OSError, ValueError, KeyError):
            return False
        return stored.get(name) == digest

    def frame(self, paper: str) -> list[str]:
        """Return the paper's frame as a list: measured here, recorded, or nothing where no record was kept."""
        if self.is_recorded:
            path = self.study / f"results/recorded/{self.machine}/{paper}.parquet"
            return [str(path)] if path.exists() else []
        if self.config["source"] == "present":
            there = any(Path(self.record(paper, case)).exists() for case in self.cases(paper))
            return [self.result(f"{paper}.parquet")] if there else []
        return [self.result(f"{paper}.parquet")]

    def frames(self) -> list[str]:
        """Return the frames of all papers of this run."""
        return [path for paper in self.papers for path in self.frame(paper)]

    def others(self) -> list[str]:
        """Return the reviewed frames of other machines, which this run is set beside."""
        recorded = self.study / "results/recorded"
        names = sorted(path.name for path in recorded.glob("*") if path.is_dir() and path.name != self.machine)
        paths = [recorded / name / f"{paper}.parquet" for name in names for paper in self.papers]
        return [str(path) for path in paths if path.exists()]

    @functools.cache  # noqa: B019
    def elements(self, paper: str) -> list[Element]:
        """Return the paper's tables and figures."""
        return elements(paper, self.study / SCRIPTS)

    def element(self, wildcards: Wildcards) -> Element:
        """Return the table or figure that the wildcards name.

        Raises
        ------
        SheetError
            If no script draws it.
        """
        return self._element(wildcards.paper, wildcards.element)

    def _element(self, paper: str, name: str) -> Element:
        known = {element.name: element for element in self.elements(paper)}
        if name not in known:
            raise sheets.SheetError(f"{paper} has no element {name!r}: choose one of {', '.join(known)}")
        return known[name]

    def drawn_from(self, wildcards: Wildcards) -> list[str]:
        """Return what a table or figure is drawn from: the records of its cases, or the paper's recorded frame."""
        paper = wildcards.paper
        if self.is_recorded:
            return self.frame(paper)
        names = {wildcards.element, *self.element(wildcards).needs}
        cases = [case for case, row in self.cases(paper).items() if names & set((row.get("element") or "").split(","))]
        return self._kept([self.record(paper, case) for case in cases])

    def caption(self, wildcards: Wildcards) -> str:
        """Return the caption of a table or figure, which names this machine where it includes what was found."""
        caption = (self.study / f"workflow/report/{wildcards.paper}/{wildcards.element}.rst").read_text()
        return caption.replace("{{ snakemake.config.machine }}", self.machine)

    def drawing_digest(self, wildcards: Wildcards) -> str:
        """Return the digest of the sources that decide what a table or figure looks like."""
        return sources.files_digest([self.element(wildcards).script, *_drawing_sources(wildcards.paper)])

    def redrawing_digest(self, paper: str) -> str:
        """Return the digest of the sources that decide what all tables and figures of a paper look like."""
        scripts = [element.script for element in self.elements(paper)]
        return sources.files_digest([*scripts, *_drawing_sources(paper)])

    def claims_digest(self) -> str:
        """Return the digest of the sources that decide what the page of claims says."""
        scripts = [element.script for paper in self.papers for element in self.elements(paper)]
        return sources.files_digest([*scripts, *(path for each in self.papers for path in _drawing_sources(each))])

    def everyday_settings(self) -> Settings:
        """Return the settings of everyday draws, with what the configuration changes of them."""
        return settings(self.study, self.config.get("everyday"))

    def everyday_changes(self) -> str:
        """Return what the configuration changes of these settings, as JSON."""
        return json.dumps(self.config.get("everyday") or {}, sort_keys=True)

    def everyday_minutes(self) -> int:
        """Return the minutes to ask a scheduler for: those of each system, and as much again for what is begun."""
        found = self.everyday_settings()
        return max(10, int(2 * found.minutes * len(found.systems)))

    def everyday_frame(self) -> str:
        """Return the frame of everyday draws: recorded, or measured here."""
        if self.is_recorded:
            return str(self.study / f"results/recorded/{self.machine}/everyday.parquet")
        return self.result("everyday.parquet")

    def everyday_source(self) -> str:
        """Return the frame that is drawn.

        Raises
        ------
        SheetError
            If none is recorded of this machine.
        """
        self._has_everyday("everyday")
        return self.everyday_frame()

    def everyday_drawings(self) -> list[str]:
        """Return what is drawn of everyday draws."""
        return [self.result(path) for path in self.EVERYDAY]

    def everyday_in_report(self) -> list[str]:
        """Return the same where there is a frame: a run that was not asked for draws measures none."""
        return self.everyday_drawings() if Path(self.everyday_frame()).exists() else []

    def everyday_digest(self) -> str:
        """Return the digest of the sources that decide what is drawn of everyday draws."""
        names = ("drawing", "frame", "predict")
        return sources.files_digest(Path(everyday.__file__).with_name(f"{name}.py") for name in names)

    def kept_rules(self) -> list[str]:
        """Return the graph of the rules that measured the recorded results, where it was kept with them."""
        path = self.study / f"results/recorded/{self.machine}/rules.svg"
        return [str(path)] if self.is_recorded and path.exists() else []

    def stored_config(self) -> str:
        """Return the configuration as text, to be stored beside the results."""
        return yaml.safe_dump(dict(self.config), sort_keys=True)

    def drawings(self) -> list[str]:
        """Return all tables and figures of this run."""
        return [self.result(element.output) for paper in self.papers for element in self.elements(paper)]


def _case(paper: str, row: sheets.Row, backend: str) -> provenance.Case:
    return provenance.Case(paper, row.get("study") or "", backend)


@functools.cache
def _drawing_sources(paper: str) -> tuple[Path, ...]:
    """Return the sources, beside its script, that decide what is drawn of the paper's records."""
    study, library = sources.SOURCES / "spectile_study", sources.SOURCES / "spectile"
    package = library / PAPERS[paper].package
    names = ("stats.py", "claims.py", "rows.py", "names.py", "record.py", "record.schema.yaml")
    derived = [study / f"bench/{name}" for name in names]
    shared = [path for path in study.glob("figures/*.py") if path.stem not in provenance.PAPERS or path.stem == paper]
    return tuple(sorted([*derived, *shared, study / "bench/columns.yaml", *package.glob("bounds.py")]))


def check_config(config: Config, study: Path) -> None:
    """Raise :class:`SheetError` with one sentence if the configuration has a wrong key or value."""
    schema = sheets.load_schema(study / "workflow/schemas/config.schema.yaml")
    sheets.validate(config, schema, "the configuration")
    recorded = study / "results/recorded"
    if config["source"] == "recorded" and not (recorded / str(config["machine"])).is_dir():
        names = sorted(path.name for path in recorded.glob("*") if path.is_dir())
        raise sheets.SheetError(
            f"results/recorded holds no machine {config['machine']!r}: "
            f"choose one with --config source=recorded machine=NAME, of {', '.join(names)}"
        )


def check_matrices(rows: Mapping[str, sheets.Row], table: Path, sheet: Path) -> None:
    """Raise :class:`SheetError` if a row misspells a matrix of the table.

    Other names pass: the collection may have them.  Names that differ in their digits alone are different matrices.
    """
    wanted = {str(row["matrix"]): case for case, row in rows.items() if row.get("matrix")}
    if not wanted:
        return
    try:
        pinned = read_table(table)
    except (OSError, ValueError) as error:
        raise sheets.SheetError(_naming(table, error)) from None
    known = {name for key in pinned for name in (key, key.partition("/")[2])}
    for name, case in wanted.items():
        if own.is_own(name):
            if why := own.refusal(name):
                raise sheets.SheetError(f"{sheet}: the matrix {name} of the case {case} {why}")
            continue
        if name in known or is_family(name):
            continue
        near = difflib.get_close_matches(name, sorted(known), n=3, cutoff=0.85)
        near = [each for each in near if _without_digits(each) != _without_digits(name)]
        if near:
            raise sheets.SheetError(
                f"{sheet}: the case {case} names the matrix {name!r}, which is not known; did you mean {near[0]}? "
                f"If not, add it to {table}"
            )


def _naming(path: Path, error: Exception) -> str:
    """Return what is wrong with a file; readers of tables leave out its name where they do not know it."""
    return str(error) if str(path) in str(error) else f"{path} cannot be read: {error}"


def _without_digits(name: str) -> str:
    return re.sub(r"\d", "", name)


def check_device(wanted: str) -> None:
    """Raise :class:`SheetError` if a CUDA device is asked for and this machine has none that can be used."""
    if wanted != "cuda":
        return
    from spectile.core import device

    if not device.available():
        raise sheets.SheetError(
            "device=cuda was asked for and this machine has no CUDA device that can be used: "
            "choose device=cpu or device=auto, or submit the jobs with a profile of a cluster"
        )


def check_elements(rows: Mapping[str, sheets.Row], known: list[Element], sheet: Path, schema: Path) -> None:
    """Raise :class:`SheetError` if a row names an element that no script draws and the schema does not list."""
    undrawn = sheets.load_schema(schema)["properties"]["element"].get("undrawn", ())
    names = {"none", *undrawn, *(element.name for element in known)}
    for case, row in rows.items():
        unknown = sorted(set((row.get("element") or "none").split(",")) - names)
        if unknown:
            raise sheets.SheetError(
                f"{sheet}: the case {case} names the element {unknown[0]!r}, which no script draws; "
                f"elements are {', '.join(sorted(names))}"
            )
