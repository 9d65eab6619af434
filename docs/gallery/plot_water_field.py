"""
A self-consistent field of PySCF without a diagonalization
==========================================================

PySCF makes the Fock matrix of two water molecules from their density, ``density_matrix`` the density from the Fock
matrix.  The energy is that of PySCF's own field.
"""

import matplotlib.pyplot as plt
import numpy as np
from pyscf import gto, scf

import spectile
from spectile.tiles import partition

water = "O 0 0 {0}; H 0 0.757 {1}; H 0 -0.757 {1}"
mol = gto.M(atom="; ".join(water.format(3.0 * k, 3.0 * k + 0.587) for k in range(2)), basis="6-31g", verbose=0)
field = scf.RHF(mol)
s, h = field.get_ovlp(), field.get_hcore()
order, rows = partition(np.diff(mol.aoslice_by_atom()[:, 2:]).ravel(), 32, positions=mol.atom_coords())

diis, density, energies = scf.diis.CDIIS(), field.get_init_guess(), []
for _ in range(30):
    potential = field.get_veff(mol, density)
    energies.append(field.energy_tot(density, h, potential))
    if len(energies) > 1 and abs(energies[-1] - energies[-2]) < 1e-8:
        break
    fock = diis.update(s, density, h + potential)
    p = spectile.density_matrix(fock, s, electrons=mol.nelectron // 2, error=1e-4, block=rows, permutation=order)
    density = 2 * p.matrix.to_dense()
print(p)
print(f"{energies[-1]:.6f} hartree after {len(energies)} cycles")

# %%
# PySCF alone, with ``eigh`` in the place of SciPy's:

field._eigh = lambda f, s, overwrite=False, x=None: spectile.eigh(f, s)
field.kernel()
print(f"{field.e_tot:.6f} hartree")
assert abs(field.e_tot - energies[-1]) < 1e-5

fig, ax = plt.subplots()
ax.semilogy(np.abs(np.array(energies) - field.e_tot), marker="o")
ax.set(xlabel="cycle", ylabel="distance from PySCF's energy / hartree")
plt.show()
