"""One colour and one marker for each method, and for what else figures tell apart: the only place with colours."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Look(NamedTuple):
    """Colour, marker and name of a method or series: the same in every figure."""

    color: str
    marker: str
    label: str


# Okabe and Ito's palette, and hues of Paul Tol's: distinguishable with colour vision deficiencies and in print.
BLUE, SKY, GREEN, ORANGE, VERMILION, PINK = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
WINE, FOREST, OLIVE, INDIGO, PURPLE, BROWN = "#882255", "#117733", "#999933", "#332288", "#AA4499", "#661100"
PALE_BLUE, PALE_PURPLE = "#9CC9E6", "#D9A9CF"
#: The papers' own numbers, words on a figure, lines of reference, hatched slots, and panels without marks.
PAPER, GREY, REFERENCE, SLOT, PALE_GREY = "#555555", "#666666", "#999999", "#cccccc", "#f4f4f4"

LOOKS = {
    # Ours and the vendors', in several papers.
    "spectile": Look(BLUE, "o", "spectile"),
    "blas": Look(VERMILION, "s", "BLAS"),
    "cublas": Look(VERMILION, "s", "cuBLAS"),
    "called_dense": Look(VERMILION, "s", "cuBLAS as called"),
    "cusparse": Look(VERMILION, "s", "cuSPARSE"),
    "cupyx": Look(VERMILION, "s", "CuPy"),
    "cusolver": Look(VERMILION, "s", "cuSOLVER"),
    "cusolver_mg": Look(VERMILION, "s", "cuSOLVERMg"),
    "devices": Look(BLUE, "o", "GPUs:"),
    "lapack": Look(VERMILION, "s", "LAPACK"),
    "scipy": Look(VERMILION, "s", "SciPy"),
    # EVD.
    "spectile_two_stage": Look(SKY, "v", "spectile, two stages"),
    "cusolver_one_stage": Look(VERMILION, "s", "cuSOLVER, one stage"),
    "cusolver_two_stage": Look(ORANGE, "D", "cuSOLVER, two stages"),
    "lapack_mrrr": Look(ORANGE, "D", "LAPACK, MRRR"),
    "spectile_device": Look(PALE_BLUE, "o", "spectile, device's own time"),
    "cupy": Look(OLIVE, "P", "CuPy"),
    "magma": Look(PURPLE, "^", "MAGMA, two stages"),
    # tSparse: the paper's method, ours by rows, the vendor's and the paper's rivals.
    "tasks_float16": Look(PINK, "h", "tSparse (TCU)"),
    "tasks_csr_float16": Look("#E8C9DA", "h", "tSparse from CSR to CSR"),
    "tasks_nontcu": Look(BROWN, "p", "nonTCU"),
    "tasks_float32": Look("#A8698A", "^", "tSparse float32"),
    "tasks_float64": Look("#B05C8C", "D", "tSparse float64"),
    "spectile_float16": Look(BLUE, "o", "spectile float16"),
    "spectile_tf32": Look(SKY, "s", "spectile tf32"),
    "spectile_float32": Look(GREEN, "^", "spectile float32"),
    "spectile_float64": Look(WINE, "D", "spectile float64"),
    "cusparse_float32": Look(VERMILION, "s", "cuSPARSE float32"),
    "cusparse_float64": Look(ORANGE, "^", "cuSPARSE float64"),
    "cusp": Look(WINE, "X", "CUSP"),
    "bhsparse": Look(ORANGE, "<", "bhSPARSE"),
    "rmerge2": Look(FOREST, "^", "RMerge2"),
    "nsparse": Look(OLIVE, "v", "Nsparse"),
    "ac_spgemm": Look(INDIGO, "P", "AC-SpGEMM"),
    "speck": Look(PURPLE, "*", "spECK"),
    "opsparse": Look(GREEN, "d", "OpSparse"),
    # KPM.
    "spmm": Look(ORANGE, "P", "cuSPARSE SpMM and one fused update"),
    "naive": Look(VERMILION, "X", "naive (library calls)"),
    "aug_spmv": Look(ORANGE, "P", "aug_spmv()"),
    "aug_spmmv": Look(BLUE, "s", "aug_spmmv()"),
    "aug_spmmv_sell": Look(SKY, "v", "aug_spmmv(), SELL-32"),
    "aug_spmmv_star": Look(OLIVE, "*", "aug_spmmv()*"),
    "spmmv": Look(FOREST, "^", "SpMMV alone"),
    "aug_spmmv_nodots": Look(PINK, "p", "without dot products"),
    "aug_spmmv_table": Look(BROWN, "d", "repeated values or rows once"),
    "aug_spmmv_mixed": Look(WINE, "h", "stored in complex64"),
    "aug_spmmv_cpu_gpu": Look(BROWN, "d", "aug_spmmv(), CPU and GPU"),
    "stencil": Look(GREEN, ">", "no stored matrix"),
    "as_called_stored": Look(BLUE, "D", "kpm_dos as called, stored matrix"),
    "as_called_free": Look(INDIGO, "D", "kpm_dos as called, no matrix"),
    "blocked": Look(INDIGO, "o", "no matrix, two steps"),
    "blocked_nccl": Look(WINE, "h", "no matrix, two steps, NCCL"),
    "blocked_ranks": Look(PURPLE, "p", "no matrix, two steps, one rank for each GPU"),
}
#: SpAMM: by number of GPUs, and by precision on a CPU.
GPUS = {
    1: Look(BLUE, "o", "1 GPU"),
    2: Look(GREEN, "^", "2 GPUs"),
    4: Look(ORANGE, "s", "4 GPUs"),
    8: Look(PINK, "D", "8 GPUs"),
}
#: tSparse: by precision, and paler for the kernels' own format; phases of a product in their order.
PRECISIONS = {
    name.removeprefix("spectile_"): LOOKS[name] for name in LOOKS if name.startswith(("spectile_f", "spectile_tf"))
}
KERNEL_FORMAT = {"float16": "#9CC9E6", "float64": "#D3A5BC"}
PHASES = (SKY, GREEN, ORANGE, PINK, WINE)
#: EVD: the parts of Figure 4, and the products of the band reduction on the roofline.
REDUCTION = {
    "spectile": Look(BLUE, "o", "band reduction, nb = b"),
    "cusolver_panels": Look(SKY, "s", "band reduction, cuSOLVER's panels"),
    "spectile_chasing": Look(GREEN, "^", "chasing, this device"),
    "algorithm2_chasing": Look(FOREST, "P", "Algorithm 2 in global memory, this device"),
    "spectile_cpu": Look(ORANGE, "D", "chasing, host's cores"),
}
HYBRID_REDUCTION = {
    "magma": Look(PURPLE, "^", "MAGMA's band reduction"),
    "magma_chasing": Look(PALE_PURPLE, "v", "MAGMA's chasing, host's cores"),
}
CHASING = {
    "spectile": Look(BLUE, "o", "GPU, ours"),
    "spectile_cpu": Look(ORANGE, "D", "CPU, ours"),
    "magma": Look(PURPLE, "^", "CPU, MAGMA"),
    "lapack": Look(VERMILION, "s", "CPU, LAPACK sbtrd"),
}
PANEL_PRODUCT = Look(GREEN, "^", "A W, b columns")
#: KPM: series of Figure 12, the error of a density, and a sample that the cache holds.
SCALING = {
    "square": Look(BLUE, "o", "square"),
    "bar": Look(GREEN, "^", "bar"),
    "strong": Look(VERMILION, "s", "strong"),
}
ERROR = Look(VERMILION, "", "standard error")
IN_CACHE = Look(WINE, "s", "the same kernel, sample in cache")

HUES = (GREEN, PINK, ORANGE, SKY, WINE, FOREST, OLIVE, INDIGO, PURPLE, BROWN)
_MARKERS = "osD^vPX*<>hp"


def look(method: str) -> Look:
    """Return the look of `method`: a listed one, or one derived from its name, the same in every run."""
    if method in LOOKS:
        return LOOKS[method]
    number = int(hashlib.sha256(method.encode()).hexdigest()[:8], 16)
    return Look(HUES[number % len(HUES)], _MARKERS[number % len(_MARKERS)], name(method))


def name(method: str) -> str:
    """Return how a method is called in print: ``cusparse_float32`` is cuSPARSE float32."""
    if method in LOOKS:
        return LOOKS[method].label
    library, _, variant = method.partition("_")
    return f"{LOOKS[library].label if library in LOOKS else library} {variant.replace('_', ' ')}".strip()
