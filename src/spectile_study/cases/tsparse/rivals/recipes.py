"""What is built of the rivals of tSparse, and how: repositories at a commit, flags, and repairs for today's CUDA."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Repair:
    """A replacement in a file of a rival's source, for a reason of CUDA's or of the source's.

    Attributes
    ----------
    file : str
        The file, in the repository.
    old, new : str
        What stands there exactly once, and what takes its place.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Recipe:
    """Where a rival's source is, and how it is built.

    Attributes
    ----------
    title, url, commit, licence : str
        How it is called, its repository, the commit that is built, and its licence.
    includes, sources : tuple of str
        Folders of headers and further sources, in the repository.
    flags : tuple of str
        Further flags of ``nvcc``.
    repairs : tuple of Repair
        What is replaced in the source before it is compiled.
    precision : str
        In which its products are, as it is built here.
    """

    title: str
    url: str
    commit: str
    licence: str
    includes: tuple[str, ...]
    sources: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    precision: str = "float32"


#: CUB's functors Min and Max, which CUDA 13 has no more, before all else.
_MIN_AND_MAX = ("-include", "cub/iterator/transform_input_iterator.cuh")


def _in(file: str, *pairs: tuple[str, str]) -> tuple[Repair, ...]:
    return tuple(Repair(file, old, new) for old, new in pairs)


def _after(file: str, *pairs: tuple[str, str]) -> tuple[Repair, ...]:
    """Return repairs that add something behind what stands in a file."""
    return tuple(Repair(file, anchor, f"{anchor} {more}") for anchor, more in pairs)


_BHSPARSE_HEADERS = ("SpGEMM_cuda/bhsparse.h", "SpGEMM_cuda/bhsparse_cuda.h")

_AC_MULTIPLY = "source/device/Multiply.cu"
_AC_PRODUCT, _AC_COPY, _AC_MERGE = (
    f"include/device/acSpGEMM_{part}.cuh" for part in ("SpGEMM", "ChunksToCSR", "MergeMaxChunks")
)
# Two threads write the same shared words, and read them before: so long as one still reads, neither may write.
_BOTH_READ = "__syncwarp(shared_last ? 3u : 1u); tempData = remaining;"
# Eight threads of a chunk read and replace the same shared words.
_EIGHT_READ = "__syncwarp(0xFFu << (threadIdx.x & 24));"

_AC_REPAIRS = (
    *_in(
        _AC_MULTIPLY,
        # The bits above a 32-bit number were counted in 64 bits, and a shift by that many is undefined.
        ("#define LZCNT __builtin_clzll", "#define LZCNT __builtin_clz"),
        # The row offsets of C come from elsewhere in the next line; those allocated here were never freed.
        ("matrix_elements, true)", "matrix_elements, false)"),
        # One configuration is compiled, that of GPUMatrixMatrixMultiplyTraits, where the interface asks for it.
        ("template\tvoid Multiply<float>(", "extern template void Multiply<float>("),
        ("template\tvoid Multiply<double>(", "extern template void Multiply<double>("),
    ),
    *_in(
        _AC_PRODUCT,
        ("tempData = tempData - num;", f"const int remaining = tempData - num; {_BOTH_READ}"),
        ("tempData = tempData - allocData;", f"const int remaining = tempData - allocData; {_BOTH_READ}"),
    ),
    # Shared minima and maxima were lowered and raised while another warp might still set them.
    *_after(_AC_PRODUCT, ("smem.maxCol = smem.maxRow = 0;", "__syncthreads();")),
    # The head of the next chunk was written while another warp might still copy the last one.
    *_in(_AC_COPY, ("counter += gridDim.x;", "__syncthreads(); counter += gridDim.x;")),
    *_in(_AC_MERGE, ("__shfl_sync(0xFFFFFFF,", "__shfl_sync(0xFFFFFFFF,")),  # all 32 threads take part
    *_after(
        _AC_MERGE,
        ("uint32_t newcount = count - rem;", _EIGHT_READ),
        ("newchunkIndices = smem.chunkIndices[smem.indexing[wip]] + rem;", _EIGHT_READ),
        ("newchunkValues = smem.chunkValues[smem.indexing[wip]] + rem;", _EIGHT_READ),
    ),
)

_SHARED = "__CUDA_ARCH_LIST__ / 100 == 9 || __CUDA_ARCH_LIST__ / 100 == 10 ? 232448 : 101376"

_RMERGE2 = "CombBLAS/gspgemm/rmerge"
_RMERGE2_MERGE = f"{_RMERGE2}/DeviceMatrix/SpmmWarpNSorted.h"

RECIPES = {
    "cusp": Recipe(
        "CUSP",
        "https://github.com/cusplibrary/cusplibrary",
        "0c79a9b840462f0dfe701baaeab632e33a9673a8",
        "Apache-2.0",
        (".",),
        flags=("--expt-extended-lambda", "--expt-relaxed-constexpr"),
        # A temporary array lost what it held at each new size: hundreds of megabytes for each slice of a product.
        repairs=_in(
            "cusp/detail/temporary_array.h",
            ("super_t::allocate(new_size);", "super_t::deallocate(); super_t::allocate(new_size);"),
        ),
    ),
    "bhsparse": Recipe(
        "bhSPARSE",
        "https://github.com/bhSPARSE/Benchmark_SpGEMM_using_CSR",
        "51a8a38341ee271af96ad5907b808eb734a1c5d9",
        "MIT",
        ("SpGEMM_cuda",),
        repairs=(
            *_in("SpGEMM_cuda/common.h", ("typedef double   value_type;", "typedef float value_type;")),
            *_in("SpGEMM_cuda/bhsparse_cuda.h", ("deviceProp.clockRate", "0")),  # CUDA 13 tells it elsewhere
            *(Repair(header, "private:", "public:") for header in _BHSPARSE_HEADERS),  # the interface sets the matrices
        ),
    ),
    "rmerge2": Recipe(
        "RMerge2",
        "https://github.com/PASSIONLab/CombBLAS",
        "f6c5e97ce70be3f5b43bc4cd934017d989e598b0",
        "CombBLAS (BSD); its own files state none",
        (_RMERGE2,),
        flags=("-D__cdecl=",),
        repairs=(
            # Blocks of up to 1,024 threads: without a bound their kernels get more registers than a block may have.
            *_in(
                _RMERGE2_MERGE,
                (
                    "__global__ void __cdecl SpmmNSortedMulLimitedCaseBlockKernel(",
                    "__global__ void __launch_bounds__(BlockSize) SpmmNSortedMulLimitedCaseBlockKernel(",
                ),
                (
                    "__global__ void __cdecl SpmmWarpPredictSizeNSortedCaseBlockKernel(",
                    "__global__ void __launch_bounds__(BlockSize) SpmmWarpPredictSizeNSortedCaseBlockKernel(",
                ),
                ("__shared__ byte s[", "__shared__ __align__(16) byte s["),  # words are kept there
            ),
        ),
    ),
    "nsparse": Recipe(
        "Nsparse",
        "https://github.com/EBD-CREST/nsparse",
        "070065c516e025a00cbdbe1b479d5144c2109a22",
        "MIT",
        ("cuda-cpp/inc",),
    ),
    "ac_spgemm": Recipe(
        "AC-SpGEMM",
        "https://github.com/GPUPeople/ACSpGEMM",
        "130832e0386735da4e6b75258e4ef59d7158b645",
        "MIT",
        ("include", "."),
        ("source/device/memory.cpp", *(f"source/{name}.cpp" for name in ("dCSR", "CSR", "COO"))),
        (
            *("--expt-extended-lambda", "--expt-relaxed-constexpr", "-D_FORCE_INLINES", "-use_fast_math"),
            *_MIN_AND_MAX,
        ),
        _AC_REPAIRS,
    ),
    "speck": Recipe(
        "spECK",
        "https://github.com/GPUPeople/spECK",
        "2f84623087d536b5ae6e71d08db754941f60667a",
        "MIT",
        ("include",),
        (
            "source/GPU/Multiply.cu",
            "source/GPU/memory.cpp",
            *(f"source/{name}.cpp" for name in ("dCSR", "CSR", "COO", "Config")),
        ),
        ("--expt-extended-lambda", "--expt-relaxed-constexpr", "-D_FORCE_INLINES", *_MIN_AND_MAX),
        (
            # What its readme asks for: the shared memory that a block may have, on Hopper and Blackwell or elsewhere.
            *_in(
                "include/Multiply.h",
                ("spECK_DYNAMIC_MEM_PER_BLOCK{49152}", f"spECK_DYNAMIC_MEM_PER_BLOCK{{{_SHARED}}}"),
            ),
            # 512 threads sort a block: without a bound they get more registers than there are, and nothing is sorted.
            *_in(
                "include/GPU/spECK_HashSpGEMM.cuh",
                (
                    "__global__ void hashSpGEMMSortingKernel(",
                    "__global__ void __launch_bounds__(THREADS) hashSpGEMMSortingKernel(",
                ),
            ),
            Repair(
                "source/GPU/Multiply.cu",
                "template void MultiplyspECK<double,",
                "extern template void MultiplyspECK<double,",  # not asked for, and half of the time of compiling
            ),
        ),
    ),
    "opsparse": Recipe(
        "OpSparse",
        "https://github.com/lorentzbf/OpSparse",
        "0134b0c5b4e20cde1956850aa22b8793ae9c14e8",
        "MIT",
        ("OpSparse", "OpSparse/inc"),
        tuple(f"OpSparse/src/{name}.cu" for name in ("Meta", "CSR", "Timings")),
        repairs=(
            # A call that failed ended the process: memory was freed that had not been allocated, or not by new.
            *_in("OpSparse/inc/Meta.h", ("Meta(){}", "Meta() : d_combined_mem(), combined_mem(), stream() {}")),
            *_in("OpSparse/src/Meta.cu", ("delete [] combined_mem;", "free(combined_mem);")),
        ),
        precision="float64",
    ),
}
