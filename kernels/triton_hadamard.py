"""The block Hadamard transform inside a Triton kernel.

Blocks of 128 of bfloat16 values are two 16-wide products on the tensor cores (`hadamard_128`), the
channels' bits dealt out so that the registers which a 16-byte load fills are the first product's
operand, its result the second's, and nothing moves between threads: compiled for sm_90, one
instruction a value.

For other sizes and finer inputs: Sylvester's matrix of size 16·2^s is H16 ⊗ H(2^s). The small factor acts on values that lie next
to each other in memory, so one thread holds them all: s butterfly stages of additions in its
registers, no data moves. The factor 16 is the shortest product the tensor cores take, 8 times
less arithmetic than a 128-wide one, and its ±1 matrix is computed from bit parities, so no
pointer and no load is needed. Compiled for sm_90 that is about 80 instructions a thread for 32
values and one trip through shared memory each way.
"""

import triton
import triton.language as tl

from kernels.target import interpreting

# The interpreter multiplies bfloat16 operands as the integers that hold their bits.
MATRIX_TYPE = tl.constexpr(tl.float32 if interpreting() else tl.bfloat16)


@triton.jit
def sylvester_16(PARTED: tl.constexpr):
    """(16, 16) int32 of +1 and −1: entry (i, j) is the parity of the common bits of i and j.

    PARTED: column c holds what belongs to the index with c's bits in the order 2, 1, 3, 0.
    """
    index = tl.arange(0, 16)
    column = index
    if PARTED:
        column = (index & 1) | ((index & 2) << 1) | ((index & 4) << 1) | ((index & 8) >> 2)
    bits = index[:, None] & column[None, :]
    return 1 - 2 * _parity(bits)


@triton.jit
def _parity(bits):
    """1 where an odd number of the four bits are set: bit n of 0x6996 is the parity of n."""
    return (0x6996 >> bits) & 1


@triton.jit
def butterfly(z):
    """One stage over the last axis (length 2) of (n, ..., 2), which then becomes the second."""
    a, b = tl.split(z)
    return tl.join(a + b, a - b)


@triton.jit
def hadamard_groups(x, GROUPS: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    """Hadamard transform of each run of BLOCK values, times √BLOCK (see `hadamard_norm`).

    x: float32, GROUPS·BLOCK values in any shape, channels last; BLOCK 16, 32, 64 or 128.
    Returns float32 (GROUPS, 16, BLOCK/16), in natural order: reshape it to what x was. The
    orthonormal factor is left to the caller's scale: a quantizer pays nothing for it there.
    The values enter the tensor cores as bfloat16, which rounds them by up to 2^-9; with SPLIT
    the remainder goes through a second product, leaving 2^-17 (for inputs finer than bfloat16).

    NVFP4 next reduces over runs of 16 results. A tensor core leaves the columns 2 and 4 of a
    product in neighbouring threads, 1 and 8 in one thread's registers; with 4 rows a block, a run
    then lies in threads 0, 1, 4, 5, ..., over which Triton 3.6 reduces as if they were 0 ... 7.
    Parting the columns (`sylvester_16`) keeps a run's threads neighbours.
    """
    LOW: tl.constexpr = BLOCK // 16
    if LOW == 1:
        z = tl.reshape(x, (GROUPS, 16, 1))
    elif LOW == 2:
        z = butterfly(tl.reshape(x, (GROUPS * 16, 2)))
    elif LOW == 4:
        z = tl.permute(butterfly(tl.reshape(x, (GROUPS * 16, 2, 2))), (0, 2, 1))
        z = tl.permute(butterfly(z), (0, 2, 1))
    else:
        tl.static_assert(LOW == 8)
        z = tl.permute(butterfly(tl.reshape(x, (GROUPS * 16, 2, 2, 2))), (0, 3, 1, 2))
        z = tl.permute(butterfly(z), (0, 3, 1, 2))
        z = tl.permute(butterfly(z), (0, 3, 1, 2))
    z = tl.reshape(z, (GROUPS, 16, LOW))
    high = z.to(tl.bfloat16)
    PARTED: tl.constexpr = LOW == 4
    matrix = sylvester_16(PARTED).to(MATRIX_TYPE)
    product = tl.dot(_rows_of_16(high, GROUPS, LOW), matrix)
    if SPLIT:
        rest = (z - high.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(_rows_of_16(rest, GROUPS, LOW), matrix, acc=product)
    if PARTED:
        product = tl.reshape(product, (GROUPS * LOW, 2, 4, 2))
        product = tl.permute(product, (0, 2, 1, 3))
    return tl.permute(tl.reshape(product, (GROUPS, LOW, 16)), (0, 2, 1))


@triton.jit
def hadamard_128(x, WIDTH: tl.constexpr):
    """Hadamard transform of each run of 128 of x, times √128. WIDTH is a multiple of 256.

    x: (WIDTH,), rounded to bfloat16 on entry; the result of the first product is rounded once more.
    Returns float32 (WIDTH,).

    With b_i the bits of a channel's index, a 16-byte load gives a thread b0 … b2; b3 … b7 are the
    lanes. A product's 16 rows of operand B lie in two register bits (row bits 0 and 3) and the
    lanes' bits 0 and 1, its columns in the lanes' bits 2 … 4 and a register bit: so the first product,
    batched over 256 channels, sums over b0, b3, b4, b2 with columns b5, b6, b7, b1. Transposed, its result
    has the columns' bits where a right operand wants its rows: the second sums over b5, b6, b1 and keeps b7.

    The matrices leave every bit where it was loaded, which two faults of Triton 3.6 ask for: bytes of
    registers in another order are shuffled wrongly between threads, and a reduction takes any lanes for
    neighbours. Half of a run of 16 lies in one thread, the other half in the thread beside it.
    """
    RUNS: tl.constexpr = WIDTH // 256
    z = tl.reshape(x.to(tl.bfloat16), (RUNS, 2, 2, 2, 2, 2, 2, 2, 2))
    # Of b7 … b0: rows b2, b4, b3, b0 and columns b1, b7, b6, b5.
    z = tl.reshape(tl.permute(z, (0, 6, 4, 5, 8, 7, 1, 2, 3)), (RUNS, 16, 16))
    index = tl.arange(0, 16)
    first = tl.broadcast_to(signed_matrix_16(index, index, 15)[None, :, :], (RUNS, 16, 16)).to(MATRIX_TYPE)
    second = tl.broadcast_to(signed_matrix_16(index, index, 11)[None, :, :], (RUNS, 16, 16)).to(MATRIX_TYPE)
    z = tl.dot(first, z.to(MATRIX_TYPE)).to(tl.bfloat16)
    z = tl.dot(second, tl.permute(z.to(MATRIX_TYPE), (0, 2, 1)))
    # Rows b1, b7, b6, b5; columns b2, b4, b3, b0.
    z = tl.reshape(z, (RUNS, 2, 2, 2, 2, 2, 2, 2, 2))
    return tl.reshape(tl.permute(z, (0, 2, 3, 4, 6, 7, 5, 1, 8)), (WIDTH,))


@triton.jit
def signed_matrix_16(rows, columns, MASK: tl.constexpr):
    """(16, 16) of +1, −1 and 0: Hadamard over the index bits in MASK, the identity over the others."""
    bits = rows[:, None] & columns[None, :] & MASK
    same = ((rows[:, None] ^ columns[None, :]) & (15 - MASK)) == 0
    return tl.where(same, tl.where(_parity(bits) == 0, 1.0, -1.0), 0.0)


@triton.jit
def hadamard_norm(BLOCK: tl.constexpr):
    """1/√BLOCK, the factor that makes `hadamard_groups` orthonormal; 1 for BLOCK 1."""
    norm = 1.0
    if BLOCK == 16:
        norm = 0.25
    elif BLOCK == 32:
        norm = 0.17677669529663687
    elif BLOCK == 64:
        norm = 0.125
    elif BLOCK == 128:
        norm = 0.08838834764831845
    return norm


@triton.jit
def _rows_of_16(z, GROUPS: tl.constexpr, LOW: tl.constexpr):
    return tl.reshape(tl.permute(z, (0, 2, 1)), (GROUPS * LOW, 16)).to(MATRIX_TYPE)
