"""Inputs that rules make: their receipts, and what is noticed when one is not the same any more."""

import json
from pathlib import Path

import numpy as np
import pytest

from spectile_study import make_inputs
from spectile_study.bench import provenance, sheets
from spectile_study.inputs import families, suitesparse

ROOT = Path(__file__).parents[2]


def receipt(tmp_path, kind, name, seed=1):
    path = tmp_path / f"{kind}_{name}.json"
    make_inputs.write(make_inputs.make(kind, name, tmp_path, seed), path)
    return path


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("decay", "2048"), ("lattice", "50x50x40"), ("lattice", "4x4x10")),
        *(("hamiltonian", "graphene_2000000_float32"), ("hamiltonian", "wannier_2000000_complex128")),
        *(("hermitian", "3000_complex64"), ("hermitian", "20_float64"), ("dense", "1000x7")),
    ],
)
def test_described_inputs_have_a_sample_that_is_checked(tmp_path, kind, name):
    path = receipt(tmp_path, kind, name)
    known, digest = make_inputs.checked(path, tmp_path)
    assert known == f"{kind}_{name}" and len(digest) == 64
    path.write_text(path.read_text().replace(digest, "0" * 64))
    with pytest.raises(
        make_inputs.InputChanged, match=f"the input {kind} {name} is not what .* remove .* makes it anew"
    ):
        make_inputs.checked(path, tmp_path)


def test_a_family_is_generated_once_and_read_by_its_cases(tmp_path, monkeypatch):
    path = receipt(tmp_path, "family", "cage5")
    expected = suitesparse.canonical(families.generate("cage5"))
    monkeypatch.setattr(families, "generate", lambda name: pytest.fail("a kept matrix is not generated again"))
    made = suitesparse.matrix("cage5", tmp_path)
    assert (made != expected).nnz == 0 and make_inputs.checked(path, tmp_path) is not None
    kept = tmp_path / "families/cage5.npz"
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.raises(make_inputs.InputChanged, match="the input family cage5 is not what"):
        make_inputs.checked(path, tmp_path)


def test_the_digits_network_is_kept_with_its_digest(tmp_path):
    pytest.importorskip("sklearn")
    path = receipt(tmp_path, "network", "digits", seed=3)
    known = json.loads(path.read_text())
    assert known["file"] == "digits/network_3.npz" and known["status"] == "ok"
    assert make_inputs.checked(path, tmp_path) == ("network_digits", known["sha256"])


def test_what_is_not_installed_is_absent_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECTILE_ERGO", "no-such-program")
    path = receipt(tmp_path, "ergo", "fock_ergo_3")
    known = json.loads(path.read_text())
    assert known["status"] == "absent" and "ergo is not installed" in known["reason"]
    assert make_inputs.checked(path, tmp_path) is None
    assert make_inputs.available("ergo") == "ergo: None"


@pytest.mark.parametrize("paper", provenance.PAPERS)
def test_every_case_names_inputs_that_can_be_made(paper):
    rows = sheets.read_sheet(ROOT / f"config/{paper}.tsv", ROOT / f"workflow/schemas/{paper}.schema.yaml")
    named = {each for row in rows.values() for each in make_inputs.of_case(paper, row)}
    assert {kind for kind, _ in named} <= set(make_inputs.KINDS)
    assert all(name.replace("_", "").replace("-", "").isalnum() for _, name in named)
    expected = {
        "spamm": {"decay", "water", "scf", "ergo", "network"},
        "tsparse": {"family"},
        "kpm": {"lattice", "hamiltonian"},
        "evd": {"hermitian", "dense"},
    }
    assert expected[paper] <= {kind for kind, _ in named}


def test_rows_of_a_decay_matrix_are_those_of_the_whole():
    from spectile_study.inputs import decay

    assert np.array_equal(decay.algebraic(32, 100), decay.algebraic(100)[:32])
