"""The page of integrations: what it shows runs, as in the libraries themselves; what others lack, they lack."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import spectile

PAGE = (Path(__file__).parents[3] / "docs/integrations.md").read_text(encoding="utf-8")


def test_scikit_learn_finds_what_it_finds_itself(capsys):
    decomposition = pytest.importorskip("sklearn.decomposition")
    names = {}
    for block in re.findall(r"```python requires=sklearn\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(block, names)
        if "KernelPCA" in block:
            itself = decomposition.KernelPCA(4, kernel="rbf", eigen_solver="dense").fit(names["points"])
            np.testing.assert_allclose(names["model"].eigenvalues_, itself.eigenvalues_, rtol=1e-10)
            np.testing.assert_allclose(names["model"].eigenvectors_, itself.eigenvectors_, atol=1e-8)
    assert capsys.readouterr().out == "(4,)\n[1, 1, 1]\n"
    assert len(set(names["labels"])) == 3


def test_products_of_a_graph_are_what_networkx_finds(capsys):
    networkx = pytest.importorskip("networkx")
    names = {"spectile": spectile}
    (block,) = re.findall(r"```python requires=networkx\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(block, names)
    graph = names["graph"]
    assert names["triangles"] == sum(networkx.triangles(graph).values()) // 3
    walks = networkx.to_numpy_array(graph, dtype=int) @ networkx.to_numpy_array(graph, dtype=int)
    np.testing.assert_array_equal(names["two"].toarray(), 2.0 * (walks > 0))
    assert capsys.readouterr().out == f"2.0 {names['triangles']}\n"


def test_pytorch_has_no_generalized_problem_no_part_and_nan_where_values_coincide():
    torch = pytest.importorskip("torch")
    one = torch.eye(2, dtype=torch.float64)
    with pytest.raises(TypeError):
        torch.linalg.eigh(one, one)
    with pytest.raises(TypeError):
        torch.linalg.eigh(one, subset_by_index=(0, 0))
    a = one.clone().requires_grad_()
    projector = torch.linalg.eigh(a)[1]
    assert torch.autograd.grad((projector @ projector.mT)[0, 0], a)[0].isnan().any()


def test_jax_has_no_generalized_problem_no_part_and_nan_where_values_coincide():
    jax = pytest.importorskip("jax")
    eigh, one = jax.scipy.linalg.eigh, jax.numpy.eye(2)
    with pytest.raises(NotImplementedError):
        eigh(one, one)
    with pytest.raises(NotImplementedError):
        eigh(one, eigvals=(0, 0))
    with pytest.raises(NotImplementedError, match="CPU and GPU"):
        jax.lax.linalg.eigh(one, subset_by_index=(0, 1))
    assert bool(jax.numpy.isnan(jax.grad(lambda a: (lambda v: (v @ v.T)[0, 0])(eigh(a)[1]))(one)).any())


def test_cupy_has_no_generalized_problem_and_no_part():
    cupy = pytest.importorskip("cupy")
    assert list(inspect.signature(cupy.linalg.eigh).parameters) == ["a", "UPLO"]


#: Of rows of the table: functions that libraries may have, by the modules in which they do.
ROWS = {
    "banded and tridiagonal problems": ("eig_banded", "eigvals_banded", "eigh_tridiagonal", "eigvalsh_tridiagonal"),
    "functions of matrices": ("expm", "matrix_exp", "logm", "sqrtm", "signm", "funm", "polar"),
}
MODULES = {"CuPy": ("cupy.linalg", "cupyx.scipy.linalg"), "PyTorch": ("torch.linalg",), "JAX": ("jax.scipy.linalg",)}


@pytest.mark.parametrize("library", MODULES)
@pytest.mark.parametrize("row", ROWS)
def test_the_table_names_what_the_libraries_have(row, library):
    modules = [pytest.importorskip(name, exc_type=ImportError) for name in MODULES[library]]
    lines = [[cell.strip() for cell in line.split("|")] for line in PAGE.splitlines() if line.startswith("|")]
    (title,) = (line for line in lines if library in line)
    (told,) = (line[title.index(library)] for line in lines if row in line)
    assert set(re.findall(r"`(\w+)`", told)) == {name for name in ROWS[row] for one in modules if hasattr(one, name)}
