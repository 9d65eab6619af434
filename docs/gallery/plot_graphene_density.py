"""
Density of states of graphene, with error bars
==============================================

``kpm_dos`` multiplies the Hamiltonian by a few random vectors and never factorises it.  The trace over random vectors
has a statistical error, which the density reports at each energy.
"""

import matplotlib.pyplot as plt

import spectile
from spectile.kpm.operators.lattices import graphene

H = graphene(120, 120)  # 28,800 sites; energies in units of the hopping
density = spectile.kpm_dos(H, num_moments=256, num_vectors=8, rng=1)
print(density)

# %%
# The band is 6 wide and has two van Hove singularities at ±1; at 0 the bands touch.

fig, ax = plt.subplots()
sites = H.shape[0]
ax.fill_between(
    density.energies,
    (density.densities - 2 * density.errors) / sites,
    (density.densities + 2 * density.errors) / sites,
    alpha=0.4,
    label="two standard errors",
)
ax.plot(density.energies, density.densities / sites, label="density")
ax.set(xlabel="energy / hopping", ylabel="states per site and energy", xlim=(-3.2, 3.2), ylim=(0, 0.5))
ax.legend(loc="upper center", ncols=2)
plt.show()

# %%
# Half of all states lie below 0.

below = density.integrate(lambda energy: energy < 0)
print(f"{below / sites:.4f} of the states lie below zero")
assert abs(below / sites - 0.5) < 0.01
