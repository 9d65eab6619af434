"""
The shape of a molecule by gradients through an eigensolver
===========================================================

``spectile.torch.eigh`` has derivatives, also where eigenvalues coincide.  The bonds of a ring of sites weaken with
length and cost energy when they are short; gradient descent finds their lengths.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import spectile.torch

n = 8
lengths = torch.tensor(np.random.default_rng(1).uniform(0.9, 1.3, n), requires_grad=True)


def energy(lengths):
    """Return the energy of electrons that hop along the bonds, and of springs."""
    hop = torch.diag(-torch.exp(1 - lengths))
    h = torch.roll(hop, 1, 1) + torch.roll(hop, 1, 1).T
    w, _ = spectile.torch.eigh(h)
    return 2 * w[: n // 2].sum() + 3 * ((lengths - 1) ** 2).sum()


history = []
for _ in range(120):
    cost = energy(lengths)
    (gradient,) = torch.autograd.grad(cost, lengths)
    history.append(lengths.detach().numpy().copy())
    with torch.no_grad():
        lengths -= 0.05 * gradient
print("largest force:", f"{gradient.abs().max():.1e}")

# %%
# With four electron pairs on eight sites, equal bonds are unstable (Peierls): long and short bonds alternate.

fig, ax = plt.subplots()
ax.plot(history)
ax.set(xlabel="step", ylabel="length of each bond")
plt.show()
