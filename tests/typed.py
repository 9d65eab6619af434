"""What a type checker must refuse, and what it must take: `mypy` fails where an ignored error is none."""

import numpy as np

import spectile
from spectile import spmam  # type: ignore[attr-defined]  # noqa: F401

spectile.spmam  # type: ignore[attr-defined]  # noqa: B018
spectile.kpm.kpm_doss  # type: ignore[attr-defined]  # noqa: B018
spectile.eigh([[1.0]], backend="gpu")  # type: ignore[arg-type]
spectile.explain(spectile.spamm, [[1.0]], [[1.0]], tau=1e-3)[0].kernel.upper()
spectile.torch.eigh, spectile.jax.eigh  # noqa: B018
spectile.spgemm(np.eye(3), np.eye(3))  # type: ignore[arg-type]
spectile.spamm(np.eye(3), [[1.0]], tau=0.0).error_bound_rel.hex()
spectile.eigvalsh(object())  # type: ignore[arg-type]
