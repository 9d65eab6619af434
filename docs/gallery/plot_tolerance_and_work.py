"""
The acceptable error, and the work that remains
===============================================

The speed-up of a near-sparse product is at most one over the share of tile products that are left.
``spamm_threshold`` tells this share for a given error without multiplying anything; here for matrices that decay at
different rates.
"""

import matplotlib.pyplot as plt
import numpy as np

import spectile

site = np.arange(1024)
apart = np.abs(site[:, None] - site)
wanted = np.logspace(-1, -10, 10)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for length in (2, 8, 32):
    a = np.exp(-apart / length)
    shares = [spectile.spamm_threshold(a, a, rtol_factors=each).valid_ratio for each in wanted]
    left.loglog(wanted, shares, marker="o", label=f"decays over {length} entries")
    results = [spectile.spamm(a, a, rtol_factors=each) for each in wanted[::3]]
    errors = [np.linalg.norm(each.c - a @ a) / np.linalg.norm(a) ** 2 for each in results]
    right.loglog(wanted[::3], errors, marker="o", label=f"decays over {length} entries")
left.invert_xaxis()
left.set(xlabel="rtol_factors", ylabel="share of the tile products")
left.legend()
right.loglog(wanted, wanted, color="black", linewidth=0.8, label="what was asked")
right.invert_xaxis()
right.set(xlabel="rtol_factors", ylabel="error over ‖A‖‖A‖")
right.legend()
plt.show()
