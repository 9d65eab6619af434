"""The walks of CONTRIBUTING: the files exist in that order, hold what the walk names, and are no more than promised."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text().partition("## Three walks")[2].partition("\n## ")[0]
#: Title of a walk -> most files, and an example of the parts of a path that the walk leaves open.
WALKS = {
    "Adding a precision to SpAMM": (5, {}),
    "Following one `spgemm` call to the kernel and back": (6, {}),
    "Adding a figure": (3, {"<paper>": "evd", "<element>": "fig9"}),
}


def steps(title):
    """Return path and text of each step."""
    section = TEXT.partition(f"### {title}\n")[2].partition("\n### ")[0]
    return re.findall(r"^\d\. `([^`]+)`: (.*?)(?=^\d\. |\n\n|\Z)", section, flags=re.MULTILINE | re.DOTALL)


def filled(path, example):
    for part, value in example.items():
        path = path.replace(part, value)
    return ROOT / path


def test_every_walk_is_known():
    assert re.findall(r"^### (.*)$", TEXT, flags=re.MULTILINE) == list(WALKS)


@pytest.mark.parametrize("title", WALKS)
def test_files_hold_what_the_walk_names(title):
    most, example = WALKS[title]
    walk = steps(title)
    assert 2 <= len({path for path, _ in walk}) == len(walk) <= most
    for path, text in walk:
        source = filled(path, example).read_text()
        names = re.findall(r"`(\w+)(?:\(\w*\))?`", text)
        assert [name for name in names if not re.search(rf"\b{name}\b", source)] == [], path


def test_each_file_of_the_spgemm_walk_is_reached_from_one_before():
    (first, _), *rest = steps("Following one `spgemm` call to the kernel and back")
    sources = (ROOT / first).read_text()
    for path, _ in rest:
        module = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        ways = (
            rf"from {package} import [^\n]*\b{name}\b",
            rf"from {module} import",
            rf"\b{re.escape(Path(path).name)}\b",
        )
        assert any(re.search(way, sources) for way in ways), path
        sources += (ROOT / path).read_text()


def test_a_figure_is_a_script_a_caption_and_a_word_in_the_sheet():
    for paper in ("spamm", "tsparse", "evd", "kpm"):
        scripts = {path.stem for path in (ROOT / "workflow/scripts" / paper).glob("*.py")}
        captions = {path.stem for path in (ROOT / "workflow/report" / paper).glob("*.rst")}
        head, *rows = (ROOT / f"config/{paper}.tsv").read_text().splitlines()
        column = head.split("\t").index("element")
        named = {name for row in rows for name in row.split("\t")[column].split(",")}
        assert scripts == captions and scripts <= named


# The kernel of the precision that the test below adds: TF32 products of float32, whose operands the tensor core rounds.
KERNEL = """#elif PRECISION == TF32
template <int M0, int M1, int N0, int N1>
__device__ __forceinline__ void multiply(const Element* a, const Element* b, Sums& sum) {
  const int lane = threadIdx.x % 32;
  const float* rows = a + lane / 4 * kPitchA + lane % 4;
  const float* columns = b + lane % 4 * kPitchB + lane / 4;
#pragma unroll
  for (int k = 0; k < kStageK; k += 8) {
#pragma unroll
    for (int j = 4 * N0; j < 4 * N1; ++j) {
      unsigned fragment_b[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) fragment_b[e] = __float_as_uint(columns[(k + 4 * e) * kPitchB + 8 * j]);
#pragma unroll
      for (int i = 2 * M0; i < 2 * M1; ++i) {
        unsigned fragment_a[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          fragment_a[e] = __float_as_uint(rows[(16 * i + e % 2 * 8) * kPitchA + k + e / 2 * 4]);
        mma_tf32(sum[i][j], fragment_a, fragment_b);
      }
    }
  }
}
"""
ROW = '    "tf32": Precision("float32", "float32", "float32", 2.0**-24, 2.0**-10, 2.0**-126, on_cpu=False),\n'
EDITS = {
    "src/spectile/nearsparse/types.py": [
        ("PrecisionName = Literal[", 'PrecisionName = Literal["tf32", '),
        ("PRECISIONS = {\n", "PRECISIONS = {\n" + ROW),
    ],
    "src/spectile/nearsparse/cuda/tuning.py": [
        (
            '    "tf32x3": Portable(',
            '    "tf32": Portable(4, (4, 8), _TF32_TILE, _TF32_TILE),\n    "tf32x3": Portable(',
        ),
        ('"tf32x3": 125e12', '"tf32": 250e12, "tf32x3": 125e12'),
    ],
    "src/spectile/nearsparse/cuda/kernels/fragments.cuh": [
        ("#define FP32 3\n", "#define FP32 3\n#define TF32 4\n"),
        ("#elif PRECISION == TF32X3\n", KERNEL + "#elif PRECISION == TF32X3\n"),
    ],
}
CHECK = """
import importlib.util
import numpy as np
import spectile
from spectile.core.devices import TABLE
from spectile.nearsparse.cuda.choose import Problem, launches
from spectile.nearsparse.cuda.tuning import rates
from spectile.nearsparse.cuda.units import UNITS

for device in TABLE.values():
    for n in (1, 100, 4096):
        shapes = launches(Problem(m=n, k=n, n=n, precision="tf32"), device)
        assert all(shape.refusal(device) is None for shape in shapes)
    assert rates(device).executed["tf32"] > rates(device).executed["tf32x3"]
one = np.eye(64, dtype=np.float32)
try:
    spectile.spamm(one, one, tau=0.0, precision="tf32", backend="cpu")
except ValueError as error:
    assert "'tf32' needs CUDA" in str(error)
units = [unit for unit in UNITS if unit.defines.get("PRECISION") == "4"]
print(len(units) > 0 and (importlib.util.find_spec("cupy") is None or len(units[0].cubin("sm_80")) > 0))
"""


def test_a_precision_is_added_by_the_walk(tmp_path):
    shutil.copytree(ROOT / "src/spectile", tmp_path / "spectile", ignore=shutil.ignore_patterns("__pycache__"))
    assert EDITS.keys() <= {path for path, _ in steps("Adding a precision to SpAMM")}
    for name, edits in EDITS.items():
        path = tmp_path / name.removeprefix("src/")
        text = path.read_text()
        for old, new in edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        path.write_text(text)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{CHECK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
