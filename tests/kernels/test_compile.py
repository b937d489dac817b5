"""Every Triton kernel compiled for cards that are not here, and read for the instructions that matter.

Triton and its assembler need no GPU, so the native Blackwell path is checked by what it emits even
though none was at hand. Small tiles: the point is that each kernel compiles and what it compiles to.
"""

import importlib
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from kernels import scaled_matmul_triton  # noqa: E402
from kernels.target import interpreting  # noqa: E402

CAPABILITIES = (80, 86, 89, 90, 100, 120)
MODULES = sorted(path.stem for path in Path(scaled_matmul_triton.__file__).parent.glob("*_triton.py"))
pytestmark = pytest.mark.skipif(interpreting(), reason="the interpreter replaces the compiler")


def ptx_of(module, index, capability):
    """The PTX of a module's case."""
    return compile_case(*cases(module)[index][0], capability).asm["ptx"]


def compile_case(kernel, signature, constants, options, capability):
    """A kernel for a capability; pointers and 64-bit strides are taken as aligned."""
    place = kernel.arg_names.index
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or kind == "i64"]
    source = ASTSource(
        fn=kernel,
        signature={**signature, **dict.fromkeys(constants, "constexpr")},
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {name: value for name, value in options.items() if name != "min_cc"}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def cases(module):
    """[(case, lowest capability)] of a module: `min_cc` in the options, or a list of its own."""
    loaded = importlib.import_module(f"kernels.{module}")
    lists = (("COMPILE_CASES", 80), ("COMPILE_CASES_TMA", 90), ("COMPILE_CASES_BLACKWELL", 100))
    return [
        (case, case[3].get("min_cc", lowest)) for name, lowest in lists for case in getattr(loaded, name, [])
    ]


def first_of(module, name):
    """Index in `cases` of the first case in the list `name`."""
    loaded = importlib.import_module(f"kernels.{module}")
    wanted = getattr(loaded, name)[0]
    return next(index for index, (case, _) in enumerate(cases(module)) if case is wanted)


@pytest.fixture(scope="module")
def compiled():
    """Futures of every (module, case, capability), compiled by two processes."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield {
            (module, index, capability): pool.submit(ptx_of, module, index, capability)
            for module in MODULES
            for index, (_, lowest) in enumerate(cases(module))
            for capability in CAPABILITIES
            if capability >= lowest
        }


def test_every_kernel_has_a_case():
    for module in MODULES:
        loaded = importlib.import_module(f"kernels.{module}")
        kernels = {name for name in vars(loaded) if name.startswith("_") and name.endswith("_kernel")}
        covered = {case[0].__name__ for case, _ in cases(module)}
        own = {name for name in kernels if vars(loaded)[name].__module__ == loaded.__name__}
        assert own <= covered, f"{module} compiles {sorted(covered)} but defines {sorted(own)}"


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("module", MODULES)
def test_compiles(compiled, module, capability):
    for index, (_, lowest) in enumerate(cases(module)):
        if capability >= lowest:
            ptx = compiled[module, index, capability].result()
            assert f".target sm_{capability}" in ptx
            if capability < 89:
                assert "e4m3" not in ptx, "no E4M3 type before compute capability 8.9"


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_int8_product_uses_int8_tensor_cores(compiled, capability):
    ptx = compiled["scaled_matmul_triton", 0, capability].result()
    wanted = {
        90: r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k32\.s32\.s8\.s8",
        100: r"tcgen05\.mma\S*kind::i8|mma\.sync\.aligned\.m16n8k32\S*\.s32\.s8\.s8\.s32",
    }.get(capability, r"mma\.sync\.aligned\.m16n8k\d+\S*\.s32\.s8\.s8\.s32")
    assert re.search(wanted, ptx)


def test_tensor_memory_accelerator_feeds_hopper(compiled):
    index = first_of("scaled_matmul_triton", "COMPILE_CASES_TMA")
    ptx = compiled["scaled_matmul_triton", index, 90].result()
    assert "cp.async.bulk.tensor" in ptx and "wgmma.mma_async" in ptx


@pytest.mark.parametrize(("result", "size"), [("*bf16", 2), ("*fp32", 4)])
def test_the_tiles_chosen_for_hopper_fit_in_its_shared_memory(result, size):
    tiles = scaled_matmul_triton.tiles_for((9, 0), 2500, 3080, True, True, size)
    kernel, signature, constants, _ = scaled_matmul_triton.COMPILE_CASES_TMA[0]
    operands = {name: f"tensordesc<i8[{side}, {tiles.k}]>" for name, side in (("a", tiles.m), ("b", tiles.n))}
    sizes = {"BM": tiles.m, "BN": tiles.n, "BK": tiles.k, "PERSISTENT": tiles.persistent}
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    found = compile_case(kernel, {**signature, **operands, "c": result}, {**constants, **sizes}, options, 90)
    assert tiles.tma and found.metadata.shared <= 232448


@pytest.mark.parametrize(("capability", "instruction"), [(100, "tcgen05.mma"), (120, "mma.sync")])
def test_nvfp4_product_is_native_on_blackwell(compiled, capability, instruction):
    index = first_of("linear_w4a4_triton", "COMPILE_CASES_BLACKWELL")
    ptx = compiled["linear_w4a4_triton", index, capability].result()
    lines = [line for line in ptx.splitlines() if "kind::mxf4nvf4" in line]
    assert lines and all(instruction in line for line in lines)
