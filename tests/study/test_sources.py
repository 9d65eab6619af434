"""What of the sources a case runs decides which records stand when a source is edited."""

import importlib
import inspect
import json
import os
import sys
import tempfile
from types import SimpleNamespace

import pytest

from spectile.core.compile import Unit
from spectile_study import plan
from spectile_study.bench import provenance, reached, record, sheets, sources
from spectile_study.bench.case import Context, Method, Problem
from spectile_study.bench.measure import Job, measure_case
from spectile_study.bench.measure.checks import check_method

from .recorded import ROOT
from .test_plan import configured, named

TREE = {
    "spectile/__init__.py": "",
    "spectile/core/__init__.py": "",
    "spectile/core/shared.py": "def used(): return LIMIT\ndef other(): return 2\nLIMIT = 1\n",
    "spectile/core/ptx.cuh": "int p;\n",
    "spectile/kpm/__init__.py": "from spectile.kpm.api import dos\nfrom spectile.kpm.greens import other\n",
    "spectile/kpm/greens.py": "def other(): return 3\n",
    "spectile/kpm/api.py": """
from spectile.core import shared
def dos(backend):
    if backend == "cuda":
        from spectile.kpm.cuda.engine import run
    else:
        from spectile.kpm.cpu.engine import run
    return run(shared.used())
""",
    "spectile/kpm/cpu/__init__.py": "",
    "spectile/kpm/cpu/engine.py": """
try:
    import numba
except ImportError:
    numba = None
def run(x): return x
""",
    "spectile/kpm/cuda/__init__.py": "",
    "spectile/kpm/cuda/engine.py": """
from .sliced import launch
_WAYS = {'sliced': launch}
def run(x): return _WAYS[x]
""",
    "spectile/kpm/cuda/sliced/__init__.py": "",
    "spectile/kpm/cuda/sliced/launch.py": "UNIT = ('sliced/kernel.cu',)\n",
    "spectile/kpm/cuda/sliced/kernel.cu": '#include "sums.cuh"\nint a;\n',
    "spectile/kpm/cuda/csr/kernel.cu": '#include "number.cuh"\nint b;\n',
    "spectile/kpm/cuda/sums.cuh": '#include "ptx.cuh"\nint c;\n',
    "spectile/kpm/cuda/number.cuh": "int d;\n",
    "spectile/evd/__init__.py": "",
    "spectile/evd/kernel.cu": "int e;\n",
    "spectile_study/__init__.py": "",
    "spectile_study/bench/measure/case.py": "def measure_methods(): return 1\n",
    "spectile_study/cases/kpm/build.py": """
from spectile_study.cases.kpm import step, table
def build(row): return STUDIES[row]()
STUDIES = {"step": step.step, "table": table.table}
""",
    "spectile_study/cases/kpm/step.py": "from spectile import kpm\ndef step(): return kpm.dos\n",
    "spectile_study/cases/kpm/table.py": """
def table(): return ['-m', 'spectile_study.cases.kpm.ranks', 'ranks/start.py']
""",
    "spectile_study/cases/kpm/ranks/__init__.py": "a = 1\n",
    "spectile_study/cases/kpm/ranks/start.py": "b = 1\n",
}
SLICED = "spectile/kpm/cuda/sliced/kernel.cu"
STEP = provenance.Case("kpm", "step", "cuda")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Return a function that changes files of a tree of the test's own, which stands in the place of the sources."""
    folder = tmp_path / "tree"
    monkeypatch.setattr(sources, "SOURCES", folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def change(**changed):
        for name, text in changed.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        reached.forget()
        return folder

    change(**TREE)
    yield change
    reached.forget()


@pytest.mark.parametrize(
    ("name", "old", "new", "edited"),
    [
        # Its kernel, what that includes and what that includes.
        (SLICED, "int a", "long a", [f"kernel {SLICED}"]),
        ("spectile/kpm/cuda/sums.cuh", "int c", "long c", [f"kernel {SLICED}"]),
        ("spectile/core/ptx.cuh", "int p", "long p", [f"kernel {SLICED}"]),
        # Another kernel, what that includes, another system's.
        ("spectile/kpm/cuda/csr/kernel.cu", "int b", "long b", []),
        ("spectile/kpm/cuda/number.cuh", "int d", "long d", []),
        ("spectile/evd/kernel.cu", "int e", "long e", []),
        # What its call comes to, through a package, a module's attribute, a branch, a table and a relative import.
        ("spectile/kpm/api.py", "run(", "1 + run(", ["sources"]),
        ("spectile/core/shared.py", "LIMIT = 1", "LIMIT = 2", ["sources"]),
        ("spectile/core/shared.py", "return LIMIT", "return LIMIT + 1", ["sources"]),
        ("spectile/kpm/cuda/engine.py", "'sliced':", "'ell':", ["sources"]),
        ("spectile/kpm/cuda/sliced/launch.py", "('sliced", "(1, 'sliced", ["sources"]),
        ("spectile/kpm/cpu/engine.py", "return x", "return -x", ["sources"]),
        ("spectile/kpm/cpu/engine.py", "numba = None", "numba = 1", ["sources"]),
        # Its driver, and what measures.
        ("spectile_study/cases/kpm/step.py", "kpm.dos", "[kpm.dos]", ["sources"]),
        ("spectile_study/cases/kpm/build.py", "STUDIES[row]()", "STUDIES[row](1)", ["sources"]),
        ("spectile_study/bench/measure/case.py", "return 1", "return 2", ["sources"]),
        # Beside it: another function of the same files, another study's driver.
        ("spectile/core/shared.py", "return 2", "return 3", []),
        ("spectile/kpm/greens.py", "return 3", "return 4", []),
        ("spectile_study/cases/kpm/table.py", "'-m'", "'-c'", []),
        ("spectile_study/cases/kpm/build.py", '"table": table.table', '"other": table.table', []),
        ("spectile_study/cases/kpm/ranks/start.py", "b = 1", "b = 2", []),
        # Text and layout.
        ("spectile/kpm/api.py", "def dos(backend):", 'def dos(backend):\n    """Text."""\n\n    # more', []),
        (SLICED, "int a;", "int  a; // more", []),
    ],
)
def test_a_record_stands_while_what_it_ran_does(tree, name, old, new, edited):
    facts = provenance.ran(STEP, [SLICED])
    assert provenance.edited(facts, STEP) == []
    assert TREE[name].count(old) == 1
    tree(**{name: TREE[name].replace(old, new)})
    assert provenance.edited(facts, STEP) == edited


def test_what_was_found_is_kept_for_other_processes(tree, monkeypatch):
    """Files that are damaged are made again, and the latest contents of the sources alone have one."""

    def files():
        return sorted((tree().parent / f"spectile-digests-{os.getuid()}").iterdir())

    facts = provenance.ran(STEP, [SLICED])
    (kept,) = files()
    reached.forget()
    with monkeypatch.context() as patched:
        patched.setattr(reached, "find", None)
        assert provenance.ran(STEP, [SLICED]) == facts
    for damaged in (b"", b'{"a": 1', b"[1]", b"\xff"):
        kept.write_bytes(damaged)
        reached.forget()
        assert provenance.ran(STEP, [SLICED]) == facts
    monkeypatch.setattr(reached, "FILES", 3)
    for number in range(5):
        tree(**{SLICED: f"int a{number};\n"})
        provenance.ran(STEP, [SLICED])
    assert len(files()) == 3


def test_processes_that_a_driver_starts_count(tree):
    table = provenance.Case("kpm", "table", "cpu")
    for name in ("ranks/__init__.py", "ranks/start.py"):
        tree(**TREE)
        facts = provenance.ran(table, [])
        tree(**{f"spectile_study/cases/kpm/{name}": "c = 2\n"})
        assert provenance.edited(facts, table) == ["sources"]


def test_on_a_cpu_nothing_of_a_device_counts(tree):
    step = provenance.Case("kpm", "step", "cpu")
    facts = provenance.ran(step, [])
    changed = {name: text + "int z;\n" for name, text in TREE.items() if name.endswith((".cu", ".cuh"))}
    tree(**changed, **{"spectile/kpm/cuda/engine.py": "def run(x): return 2\n"})
    assert facts["kernels"] == {} and provenance.edited(facts, step) == []
    tree(**{"spectile/kpm/cpu/engine.py": "def run(x): return 2\n"})
    assert provenance.edited(facts, step) == ["sources"]


def test_where_no_launch_was_seen_every_kernel_of_the_system_counts(tree):
    facts = provenance.ran(STEP, [])
    of_kpm = [name for name in TREE if name.startswith("spectile/kpm") and name.endswith((".cu", ".cuh"))]
    assert sorted(facts["kernels"]) == sorted([*of_kpm, "spectile/core/ptx.cuh"])
    tree(**{"spectile/kpm/cuda/csr/kernel.cu": "int z;\n"})
    assert provenance.edited(facts, STEP) == ["kernel spectile/kpm/cuda/csr/kernel.cu"]
    assert provenance.ran(STEP, ["elsewhere/kernel.cu"])["kernels"] == STEP.kernels()


def test_a_renamed_file_keeps_records_and_another_program_of_the_same_files_does_not(tree):
    facts = provenance.ran(STEP, [SLICED])
    folder = tree()
    (folder / "spectile/kpm/cuda/sliced").rename(folder / "spectile/kpm/cuda/ell")
    (folder / "spectile/kpm/cuda/sums.cuh").rename(folder / "spectile/kpm/cuda/total.cuh")
    (folder / "spectile/core/shared.py").rename(folder / "spectile/core/common.py")
    tree(
        **{
            "spectile/kpm/api.py": TREE["spectile/kpm/api.py"].replace(
                "core import shared", "core import common as shared"
            ),
            "spectile/kpm/cuda/engine.py": TREE["spectile/kpm/cuda/engine.py"].replace(".sliced", ".ell"),
            "spectile/kpm/cuda/ell/kernel.cu": TREE[SLICED].replace("sums", "total"),
            "spectile/kpm/cuda/ell/launch.py": "UNIT = ('ell/kernel.cu',)\n",
        }
    )
    assert provenance.edited(facts, STEP) == []
    both = "from spectile.core.common import used, other\ndef dos(): return used(other)\n"
    tree(**{"spectile/kpm/api.py": both})
    facts = provenance.ran(STEP, [])
    tree(**{"spectile/kpm/api.py": both.replace("used, other", "other as used, used as other")})
    assert provenance.edited(facts, STEP) == ["sources"]


@pytest.mark.parametrize("failing", [False, True])
def test_a_record_names_the_kernels_that_were_launched_for_it(tmp_path, monkeypatch, failing):
    """What failed may have ended before the kernel that it would have needed: then every kernel counts."""
    units: set[Unit] = set()
    launch = SimpleNamespace(launched=lambda: units, forget_launches=units.clear)

    def run():
        units.add(Unit("spectile.kpm.cuda", ("sliced/kernel.cu", "spectile.core:elements.cuh"), ()))
        return 1

    def build(row, context):
        method = Method(
            "spectile", run, lambda _: {"error_fro_rel": float(failing)}, {"error_fro_rel": 0.5}, clock="none"
        )
        return Problem([method])

    units.add(Unit("spectile.kpm.cuda", ("csr/kernel.cu",), ()))  # of an earlier case
    monkeypatch.setitem(sys.modules, "spectile.core.launch", launch)
    monkeypatch.setitem(sys.modules, "spectile_study.cases.kpm.build", SimpleNamespace(build=build))
    monkeypatch.setattr("spectile_study.bench.measure.checks.raise_if_device_lost", lambda device, error: None)
    monkeypatch.setattr("spectile_study.bench.measure.case.require_gpus", lambda row, device: None)
    monkeypatch.setattr(provenance, "device_name", lambda device: "a device")
    monkeypatch.setattr(provenance, "_gpu_facts", dict)
    job = Job(
        "kpm", {"case": "a", "study": "step"}, "test", "cuda", "", str(tmp_path), 1, 1, 3, 0, 1.0, planned="1" * 64
    )
    made = measure_case(job, {}, lambda name, limit: None)
    record.check(made, "the record")
    known = made["provenance"]
    launched = {"spectile/kpm/cuda/sliced/kernel.cu", "spectile/core/elements.cuh"}
    assert set(known["kernels"]) == (set(STEP.kernels()) if failing else launched)
    assert known["planned"] == "1" * 64 and provenance.edited(known, STEP) == []


def test_a_record_without_kernels_is_of_other_sources(tree):
    assert provenance.edited({"digest": "0" * 64}, STEP) == ["sources"]


def test_program_leaves_out_comments_and_layout_and_notices_code(tmp_path):
    code = 'def f(x):\n    """Doc."""\n    return x + 1\n'
    cuda = '__global__ void k() { /* a */ int i = 0; // b\n }\n#line 1 "a//b"'
    names = [("a.py", code, code.replace("Doc", "Other") + "# comment\n", (code.replace("+", "-"),))]
    changed = (cuda.replace("0", "1"), cuda.replace("a//b", "a//c"))
    names += [("a.cu", cuda, cuda.replace("/* a */", "\n").replace("i = 0", "i=\\\n0"), changed)]
    for name, text, cosmetic, others in names:
        path = tmp_path / name
        programs = []
        for version in (text, cosmetic, *others):
            path.write_text(version)
            programs.append(sources.template(path))
        assert programs[0] == programs[1]
        assert programs[0] not in programs[2:]


def test_every_name_of_ours_that_a_definition_uses_is_found():
    """What the search does not find it could not count."""
    lost = set()
    for name in reached._paths():
        module = reached._module(name)
        for statement in (each for statements in module.defined.values() for each in statements):
            names, imports = reached.looked_at(statement)
            own = module.aliases(imports)
            for dotted in names:
                root, _, rest = dotted.partition(".")
                for path in own.get(root, set()) | module.imported.get(root, set()):
                    whole = f"{path}.{rest}".strip(".")
                    if whole.startswith(reached._PACKAGES) and not reached.find(whole) and "__" not in rest:
                        lost.add((name, whole))
    assert lost == set()


CALLS = [("kpm", "threads_16x16x10_1"), ("evd", "drivers_2_values"), ("spamm", "thresholds_1024")]


@pytest.mark.parametrize(("paper", "case"), CALLS)
def test_what_a_case_calls_is_reached(tmp_path, paper, case):
    """Of a function that is called and was not found, an edit would keep the record."""
    row = sheets.read_sheet(ROOT / f"config/{paper}.tsv", ROOT / f"workflow/schemas/{paper}.schema.yaml")[case]
    build = importlib.import_module(f"spectile_study.cases.{paper}.build").build
    home, called = str(sources.SOURCES), set()

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(home):
            called.add((code.co_filename, code.co_qualname.partition(".")[0]))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        problem = build(row, Context("cpu", tmp_path, 1, 1, ROOT))
        for method in problem.methods:
            if isinstance(method, Method):
                check_method(method, "cpu")
    finally:
        sys.setprofile(before)
    known = {str(path): name for name, path in reached._paths().items()}
    of = provenance.Case(paper, row.get("study") or "", "cpu")
    found = set(reached.reached(of.drivers(), of.study, of.backend))
    names = {(known[path], name) for path, name in called if not name.startswith("<")}
    assert len(names) > 10 and names - found == set()


def test_snakemake_is_told_the_digest_of_a_standing_record_and_another_of_a_stale_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = plan.Plan(configured(run="paper", device="cuda"), ROOT)
    step = next(name for name, row in made.cases("kpm").items() if row["study"] == "step")
    wildcards = named("kpm", case=step)
    now = made.sources_digest(wildcards)
    path = tmp_path / made.record("kpm", step)
    path.parent.mkdir(parents=True)

    def recorded(**changed):
        kernel = "spectile/kpm/cuda/sliced/kernel.cu"
        facts = provenance.ran(STEP, [kernel]) | {"planned": "1" * 64} | changed
        path.write_text(
            json.dumps({"paper": "kpm", "case": step, "backend": "cuda", "params": {}, "provenance": facts})
        )
        return made.sources_digest(wildcards)

    assert recorded() == "1" * 64  # whatever else of the sources is not as it was
    assert recorded(digest="2" * 64) == now
    assert recorded(kernels={"spectile/kpm/cuda/sliced/kernel.cu": "3" * 64}) == now
    assert recorded(planned=now) == now
