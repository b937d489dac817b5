"""The CPU's fused passes, one token at a time, through Numba: what lies between two matrix products is read once.

A token is a row of float32 in a core's first cache, and every step runs along its channels. The first four stages of
the Hadamard transform pair values that lie in one vector, which a compiler does not find by itself: they are written
as shuffles, in LLVM's own vectors of 16, which it then cuts to what the machine has. The order of additions is that of
`kernels.hadamard`. bfloat16 comes and goes as int16 of the same bits; all arithmetic is float32.

All of it is one file because Numba's cache looks at the file of the function that was asked for, and at no other.

Every pass is called with a team and its operands, contiguous arrays: `_on_team` shares the rows out. Its loop does rows
first .. last of them with z, float32 memory for one token. A product comes as its sums (M, N), int32, float32 or
bfloat16, with a scale per token (M,), a scale per row of the weight and an offset (N,), float32. What a pass makes for
the next product depends on `form`: INT8 is codes int8 (M, K), NVFP4 is values (M, K), E2M1 value times block scale,
both with token_scale (M,); PLAIN is the values themselves. Values are float32 or bfloat16, which holds NVFP4 exactly.
In every form absmax and abssum (M,) are max|x| and Σ|x| of a token before its rotation. `cpu_fused.py` calls.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import populate_array

from kernels.formats import BLOCK, E2M1_MAX, E4M3_MAX, INT8_MAX, ROUNDING_MAGIC, SMALLEST_AMAX

PLAIN, INT8, NVFP4 = 0, 1, 2

_F, _I, _U = np.float32, np.int32, np.uintp
_VECTOR = 16
_MAGNITUDE = _I(0x7FFFFFFF)
_EXPONENT = _I(0x7F800000)
# A number below 2^22 added to this has its nearest integer in the low bits of the sum.
_INTEGER_MAGIC = _F(1.5 * 2.0**23)
_MAGIC_BITS = _I(0x4B400000)
_TINY, _TOP, _STEP = _F(SMALLEST_AMAX), _F(INT8_MAX), _F(1.0 / INT8_MAX)
_NAN = _F(np.nan)
# 2^-6, the smallest normal E4M3 number: below it the spacing stays the same.
_SMALLEST_E4M3 = _I(0x3C800000)
# Rounds to three mantissa bits when multiplied by the power of two at or below the value.
_E4M3_MAGIC = _F(1.5 * 2.0**20)
_E4M3_TOP, _E2M1_TOP, _NVFP4_STEP = _F(E4M3_MAX), _F(E2M1_MAX), _F(1.0 / (E2M1_MAX * E4M3_MAX))

# Sums may be split over vector lanes, in an order fixed at compile time; NaN and Inf keep their meaning. No GIL: rows
# are shared out. Only compiled code calls the parts, so they need no wrappers for Python and no cache of their own.
_OPTIONS = dict(nogil=True, fastmath={"reassoc"}, error_model="numpy")
_part = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)
_entry = njit(cache=True, **_OPTIONS)
# Where a large number is added and taken away again in order to round: no such pair may cancel.
_in_order = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, nogil=True, error_model="numpy")

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


@intrinsic
def _as_bits(typing_context, value):
    """float32 -> the int32 of the same bits."""
    return types.int32(types.float32), lambda context, builder, signature, values: builder.bitcast(values[0], _I32)


@intrinsic
def _as_float(typing_context, value):
    """int32 -> the float32 of the same bits."""
    return types.float32(types.int32), lambda context, builder, signature, values: builder.bitcast(values[0], _F32)


@intrinsic
def _wide(typing_context, value):
    """float32 as it is; int32 as a number; int16, the bits of a bfloat16, as the float32 it stands for."""
    if value == types.float32:
        return types.float32(value), lambda context, builder, signature, values: values[0]
    if value == types.int32:
        return types.float32(value), lambda context, builder, signature, values: builder.sitofp(values[0], _F32)

    def generate(context, builder, signature, values):
        return builder.bitcast(builder.shl(builder.zext(values[0], _I32), ir.Constant(_I32, 16)), _F32)

    return types.float32(types.int16), generate


def _taken(builder, counter, index: int):
    """What counter[index], an int64, was before this added one to it, whoever else does."""
    place = builder.gep(counter, [ir.Constant(_I64, index)])
    return builder.atomic_rmw("add", place, ir.Constant(_I64, 1), "monotonic")


@intrinsic
def _on_team(typing_context, team, loop, operands):
    """loop(first, last, *operands, z) for all rows, on the threads of a team, and z of each thread's own.

    team: (GOMP_parallel's address or 0, threads, rows, rows at a time, taken, work). taken: int64 (2,), zeros: how many
    came and how many parts were taken; work: float32 (threads, size of z). With address 0 whoever calls is one of the
    team: it may call from several threads with the same `taken`. No thread but the caller touches Python.
    """
    inner = loop.get_call_type(typing_context, (types.int64, types.int64, *operands, team[5].copy(ndim=1)), {})

    def generate(context, builder, signature, values):
        result = loop.dispatcher.get_compile_result(inner)
        context.add_linking_libs([result.library])
        kinds = *team, *operands
        packs = (values[0], len(team)), (values[2], len(operands))
        parts = [part for pack, count in packs for part in cgutils.unpack_tuple(builder, pack, count)]
        # A row of an array counts its owners; threads that share a count would fetch it from each other at each row.
        parts = [_unowned(context, builder, kind, part) for kind, part in zip(kinds, parts)]
        held = cgutils.alloca_once(builder, ir.LiteralStructType([part.type for part in parts]))
        for index, part in enumerate(parts):
            builder.store(part, cgutils.gep_inbounds(builder, held, 0, index))
        bytes_ = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [bytes_])
        body = ir.Function(builder.module, kind, f"{builder.function.name}.team")
        body.linkage = "internal"
        _write_body(context, body, held.type, kinds, inner, result.fndesc)
        address, threads = parts[:2]
        data = builder.bitcast(held, bytes_)
        with builder.if_else(cgutils.is_null(builder, address)) as (alone, together):
            with alone:
                builder.call(body, [data])
            with together:
                fork = ir.FunctionType(ir.VoidType(), [kind.as_pointer(), bytes_, _I32, _I32])
                call = builder.inttoptr(address, fork.as_pointer())
                builder.call(call, [body, data, builder.trunc(threads, _I32), ir.Constant(_I32, 0)])
        return context.get_dummy_value()

    return types.none(team, loop, operands), generate


def _unowned(context, builder, kind, value):
    if not isinstance(kind, types.Array):
        return value
    array = context.make_array(kind)(context, builder, value)
    array.meminfo = cgutils.get_null_value(array.meminfo.type)
    return array._getvalue()


def _write_body(context, body, held, kinds, inner, loop) -> None:
    """What each thread of a team does: take parts until none is left."""
    builder = ir.IRBuilder(body.append_basic_block())
    pointer = builder.bitcast(body.args[0], held)
    parts = [builder.load(cgutils.gep_inbounds(builder, pointer, 0, index)) for index in range(len(kinds))]
    _, _, rows, step, taken, work = parts[:6]
    counter = context.make_array(kinds[4])(context, builder, taken).data
    rooms = context.make_array(kinds[5])(context, builder, work)
    size = cgutils.unpack_tuple(builder, rooms.shape, 2)[1]
    z = context.make_array(inner.args[-1])(context, builder)
    here = builder.gep(rooms.data, [builder.mul(_taken(builder, counter, 0), size)])
    four = ir.Constant(_I64, 4)
    populate_array(z, here, shape=[size], strides=[four], itemsize=four, meminfo=None)
    test, work_on, done = (body.append_basic_block() for _ in range(3))
    builder.branch(test)
    builder.position_at_end(test)
    first = builder.mul(_taken(builder, counter, 1), step)
    builder.cbranch(builder.icmp_signed("<", first, rows), work_on, done)
    builder.position_at_end(work_on)
    last = builder.add(first, step)
    last = builder.select(builder.icmp_signed("<", last, rows), last, rows)
    context.call_internal_no_propagate(builder, loop, inner, [first, last, *parts[6:], z._getvalue()])
    builder.branch(test)
    builder.position_at_end(done)
    builder.ret_void()


@_part
def _rounded_bfloat16(value):
    bits = _as_bits(value)
    nearest = (bits + _I(0x7FFF) + ((bits >> _I(16)) & _I(1))) >> _I(16)
    return np.int16(0x7FC0) if value != value else np.int16(nearest)


def _put(out, place, value):
    """out[place] = value, rounded to bfloat16 where `out` holds int16; in compiled code only."""
    raise NotImplementedError


@overload(_put, jit_options=_OPTIONS)
def _put_compiled(out, place, value):
    if out.dtype == types.float32:

        def store(out, place, value):
            out[place] = value
    else:

        def store(out, place, value):
            out[place] = _rounded_bfloat16(value)

    return store


def _butterflies(builder, vectors: list, block: int) -> list:
    """Hadamard stages of spans 1, 2, 4 … block / 2 on vectors of 16, each (a, b) -> (a + b, a - b)."""
    span = 1
    while span < min(_VECTOR, block):
        swap = ir.Constant(ir.VectorType(_I32, _VECTOR), [lane ^ span for lane in range(_VECTOR)])
        sign = ir.Constant(ir.VectorType(_F32, _VECTOR), [-1.0 if lane & span else 1.0 for lane in range(_VECTOR)])
        nothing = ir.Constant(vectors[0].type, ir.Undefined)
        vectors = [
            builder.fadd(builder.shuffle_vector(vector, nothing, swap), builder.fmul(vector, sign))
            for vector in vectors
        ]
        span *= 2
    while span < block:
        step = span // _VECTOR
        for first in range(0, len(vectors), 2 * step):
            for low in range(first, first + step):
                a, b = vectors[low], vectors[low + step]
                vectors[low], vectors[low + step] = builder.fadd(a, b), builder.fsub(a, b)
        span *= 2
    return vectors


def _rotation(block: int):
    """Compiled code's (z, start): `block` values of the float32 array z, from `start` on, in place and unnormalized."""

    @intrinsic
    def rotation(typing_context, z, start):
        def generate(context, builder, signature, values):
            array = context.make_array(signature.args[0])(context, builder, values[0])
            pointer = ir.VectorType(_F32, _VECTOR).as_pointer()
            places = []
            for index in range(block // _VECTOR):
                offset = builder.add(values[1], ir.Constant(values[1].type, index * _VECTOR))
                places.append(builder.bitcast(builder.gep(array.data, [offset]), pointer))
            vectors = [builder.load(place, align=4) for place in places]
            for place, vector in zip(places, _butterflies(builder, vectors, block)):
                builder.store(vector, place, align=4)
            return context.get_dummy_value()

        return types.none(z, types.uintp), generate

    return rotation


@intrinsic
def _turn_pairs(typing_context, z, out, start):
    """out = (-z[1], z[0], -z[3], z[2], …) for the 16 values of the float32 array z from `start` on."""

    def generate(context, builder, signature, values):
        pointer = ir.VectorType(_F32, _VECTOR).as_pointer()
        source, target = (
            context.make_array(kind)(context, builder, value) for kind, value in zip(signature.args[:2], values[:2])
        )
        here, there = (builder.bitcast(builder.gep(array.data, [values[2]]), pointer) for array in (source, target))
        vector = builder.load(here, align=4)
        swap = ir.Constant(ir.VectorType(_I32, _VECTOR), [lane ^ 1 for lane in range(_VECTOR)])
        sign = ir.Constant(ir.VectorType(_F32, _VECTOR), [1.0 if lane & 1 else -1.0 for lane in range(_VECTOR)])
        turned = builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), swap)
        builder.store(builder.fmul(turned, sign), there, align=4)
        return context.get_dummy_value()

    return types.none(z, out, types.uintp), generate


def _vector_at(context, builder, kind, array, start, lane):
    """Pointer to the 16 values of an array from `start` on, as one vector of `lane`s."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [start]), ir.VectorType(lane, _VECTOR).as_pointer())


def _splat(lane, value) -> ir.Constant:
    return ir.Constant(ir.VectorType(lane, _VECTOR), [value] * _VECTOR)


def _spread(builder, value):
    """A number as a vector of 16 of it."""
    nothing = ir.Constant(ir.VectorType(value.type, _VECTOR), ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_I32, _VECTOR), [0] * _VECTOR))


def _choose(builder, comparison: str, a, b):
    """Of two vectors, a where `a comparison b` holds and b elsewhere, lane by lane."""
    compare = builder.icmp_signed if a.type.element == _I32 else builder.fcmp_ordered
    return builder.select(compare(comparison, a, b), a, b)


@intrinsic
def _largest_of_block(typing_context, z, start):
    """The largest magnitude, as bits, of the 16 values of the float32 array z from `start` on."""

    def generate(context, builder, signature, values):
        place = _vector_at(context, builder, signature.args[0], values[0], values[1], _I32)
        largest = builder.and_(builder.load(place, align=4), _splat(_I32, int(_MAGNITUDE)))
        nothing = ir.Constant(largest.type, ir.Undefined)
        for span in (8, 4, 2, 1):
            swap = ir.Constant(largest.type, [lane ^ span for lane in range(_VECTOR)])
            largest = _choose(builder, ">", largest, builder.shuffle_vector(largest, nothing, swap))
        return builder.extract_element(largest, ir.Constant(_I32, 0))

    return types.int32(z, types.uintp), generate


@intrinsic
def _round_block(typing_context, z, start, factor, worth, out):
    """out = the E2M1 value nearest to z · factor, times worth, for 16 values of the float32 array z from `start` on.

    out: a float32 array, or int16 for bfloat16, which must hold the result exactly. See `formats.round_e2m1`.
    """
    exact = out.dtype == types.float32

    def generate(context, builder, signature, values):
        place = _vector_at(context, builder, signature.args[0], values[0], values[1], _F32)
        x = builder.fmul(builder.load(place, align=4), _spread(builder, values[2]))
        words = ir.VectorType(_I32, _VECTOR)
        unit = builder.and_(builder.bitcast(x, words), _splat(_I32, int(_EXPONENT)))
        unit = _choose(builder, "<", _choose(builder, ">", unit, _splat(_I32, 0x3F800000)), _splat(_I32, 0x40800000))
        magic = builder.fmul(builder.bitcast(unit, x.type), _splat(_F32, ROUNDING_MAGIC))
        x = builder.fsub(builder.fadd(x, magic), magic)
        x = _choose(builder, ">", _choose(builder, "<", x, _splat(_F32, E2M1_MAX)), _splat(_F32, -E2M1_MAX))
        x = builder.fmul(x, _spread(builder, values[3]))
        lane = _F32 if exact else ir.IntType(16)
        if not exact:
            x = builder.trunc(builder.lshr(builder.bitcast(x, words), _splat(_I32, 16)), ir.VectorType(lane, _VECTOR))
        target = _vector_at(context, builder, signature.args[4], values[4], values[1], lane)
        builder.store(x, target, align=4 if exact else 2)
        return context.get_dummy_value()

    return types.none(z, types.uintp, types.float32, types.float32, out), generate


_rotate16, _rotate32, _rotate64, _rotate128 = (_rotation(block) for block in (16, 32, 64, 128))


@_part
def _rotate(z, size, block):
    for start in range(0, size, block):
        if block == 128:
            _rotate128(z, _U(start))
        elif block == 64:
            _rotate64(z, _U(start))
        elif block == 32:
            _rotate32(z, _U(start))
        elif block == 16:
            _rotate16(z, _U(start))


@_in_order
def _round_nvfp4(z, size, norm, peak, out):
    """A token's rotated values, to be multiplied by `norm`, after which their maximum is `peak` -> E2M1 values times
    E4M3 block scales. Both are in units of the token's scale."""
    to_scale = _F(1) / (peak if peak > _TINY else _TINY) * _E4M3_TOP
    for index in range(size // BLOCK):
        start = _U(index) * _U(BLOCK)
        scale = _as_float(_largest_of_block(z, start)) * norm * to_scale
        scale = scale if scale < _E4M3_TOP else _E4M3_TOP
        exponent = _as_bits(scale) & _EXPONENT
        magic = _as_float(exponent if exponent > _SMALLEST_E4M3 else _SMALLEST_E4M3) * _E4M3_MAGIC
        scale = (scale + magic) - magic
        factor = to_scale * _E2M1_TOP / scale * norm if scale > _F(0) else _F(0)
        _round_block(z, start, factor, scale, out)


@_part
def _finish(z, size, block, form, row, codes, values, token_scale, absmax, abssum):
    """A token's float32 values -> statistics, and what `form` says for a product: values as they are, or after a
    rotation by `block` (1: none), which uses z up, INT8 codes or NVFP4 values, and their scale."""
    total, largest = _F(0), _I(0)
    for c in range(size):
        # As integers, magnitudes order like floats and NaN is larger than everything.
        largest = max(largest, _as_bits(z[c]) & _MAGNITUDE)
        total += abs(z[c])
    absmax[row], abssum[row] = _as_float(largest), total
    if form == PLAIN:
        target = values[row]
        for c in range(size):
            _put(target, c, z[c])
        return
    if block > 1:
        _rotate(z, size, block)
        largest = _I(0)
        for c in range(size):
            largest = max(largest, _as_bits(z[c]) & _MAGNITUDE)
    norm = _F(1.0 / math.sqrt(block))
    peak = _as_float(largest) * norm if largest < _EXPONENT else _NAN
    if form == NVFP4:
        token_scale[row] = peak * _NVFP4_STEP
        _round_nvfp4(z, size, norm, peak, values[row])
        return
    factor = _F(1) / (peak if peak > _TINY else _TINY) * _TOP * norm
    token_scale[row] = peak * _STEP
    for c in range(size):
        codes[row, c] = np.int8(_as_bits(z[c] * factor + _INTEGER_MAGIC))


# The one place where a product and a sum may round together: the code of a value does not hang on it.
@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **{**_OPTIONS, "fastmath": {"reassoc", "contract"}})
def _gelu(x):
    """GELU in its tanh form, as x · sigmoid(2u) with u = √(2/π)·(x + 0.044715·x³); off by less than 1e-6."""
    # -2u as a power of two: the whole part goes to the exponent, the rest through a polynomial.
    t = x * (_F(-2.0 * math.sqrt(2.0 / math.pi) / math.log(2.0)) * (_F(1) + _F(0.044715) * x * x))
    t = t if t < _F(126) else _F(126)
    t = t if t > _F(-126) else _F(-126)
    whole = _as_bits(t + _INTEGER_MAGIC) - _MAGIC_BITS
    rest = t - _F(whole)
    power = _F(1.5403530393381609e-4)
    power = power * rest + _F(1.3333558146428443e-3)
    power = power * rest + _F(9.618129107628477e-3)
    power = power * rest + _F(5.550410866482158e-2)
    power = power * rest + _F(2.402265069591007e-1)
    power = power * rest + _F(6.931471805599453e-1)
    power = power * rest + _F(1)
    # Far below zero the bounded power is too small for the largest numbers; there GELU is a zero, of -Inf not a number.
    return x * _F(0) if x < _F(-20) else x / (_F(1) + power * _as_float((whole << _I(23)) + _I(0x3F800000)))


@_part
def _normalize(z, size, eps):
    """A token's float32 values in place: less their mean; returns one over their deviation."""
    mean, square = _F(0), _F(0)
    for c in range(size):
        mean += z[c]
    mean /= _F(size)
    for c in range(size):
        z[c] -= mean
        square += z[c] * z[c]
    return _F(1) / _F(math.sqrt(square / _F(size) + eps))


@_part
def _quantize_rows(first, last, x, block, form, codes, values, token_scale, absmax, abssum, z):
    """x (M, K) float32 or bfloat16 -> INT8 or NVFP4."""
    size = x.shape[1]
    for row in range(first, last):
        source = x[row]
        for c in range(size):
            z[c] = _wide(source[c])
        _finish(z, size, block, form, row, codes, values, token_scale, absmax, abssum)


@_part
def _gelu_rows(
    first, last, sums, sum_scale, row_scale, offset, block, form, codes, values, token_scale, absmax, abssum, z
):
    """GELU of a product (M, K)."""
    size = sums.shape[1]
    for row in range(first, last):
        source, scale = sums[row], sum_scale[row]
        for c in range(size):
            z[c] = _gelu(_wide(source[c]) * scale * row_scale[c] + offset[c])
        _finish(z, size, block, form, row, codes, values, token_scale, absmax, abssum)


@_part
def _stream_rows(
    first,
    last,
    tokens,
    plain,
    text,
    video,
    gated,
    sums,
    sum_scale,
    row_scale,
    offset,
    gates,
    text_out,
    video_out,
    normed,
    modulation,
    weight,
    bias,
    eps,
    block,
    form,
    codes,
    values,
    token_scale,
    absmax,
    abssum,
    z,
):
    """Both streams of a block: if `gated`, a gated product is added to them, and if `normed`, LayerNorm and modulation
    of what they are then become the next product's input.

    Rows count text and video together, `tokens` a sample, `plain` of them text. text, text_out (samples · plain, C) and
    video, video_out (samples · (tokens - plain), C): float32 or bfloat16. gates, modulation: float32 (samples, 6 C): of
    video shift, scale and gate, then of text.
    """
    size = text.shape[1]
    for row in range(first, last):
        sample, token = row // tokens, row % tokens
        in_text = token < plain
        place = sample * plain + token if in_text else sample * (tokens - plain) + token - plain
        source, part = (text[place], 3 * size) if in_text else (video[place], 0)
        for c in range(size):
            z[c] = _wide(source[c])
        if gated:
            target = text_out[place] if in_text else video_out[place]
            gate, update, scale = gates[sample, part + 2 * size : part + 3 * size], sums[row], sum_scale[row]
            for c in range(size):
                _put(target, c, z[c] + gate[c] * (_wide(update[c]) * scale * row_scale[c] + offset[c]))
            if normed:
                for c in range(size):
                    z[c] = _wide(target[c])
        if normed:
            shift, by = modulation[sample, part : part + size], modulation[sample, part + size : part + 2 * size]
            inverse = _normalize(z, size, eps)
            for c in range(size):
                z[c] = (z[c] * inverse * weight[c] + bias[c]) * (_F(1) + by[c]) + shift[c]
            _finish(z, size, block, form, row, codes, values, token_scale, absmax, abssum)


@_part
def _head_rows(
    first,
    last,
    tokens,
    plain,
    sums,
    sum_scale,
    row_scale,
    offset,
    heads,
    width,
    affine,
    eps,
    cos,
    sin,
    outputs,
    z,
):
    """A product of q, k and v in one row each -> outputs (3, samples · heads · tokens, width), float32 or bfloat16.

    LayerNorm over each head's `width` (a multiple of 16) of q and k by affine (4, width): weight and bias of q, then of
    k; their pairs turn by cos and sin, (tokens - plain, width), but for the first `plain` tokens of a sample. z holds
    2 width.
    """
    turned = z[width:]
    for row in range(first, last):
        sample, token, scale = row // tokens, row % tokens, sum_scale[row]
        for which in range(3):
            for head in range(heads):
                start = (which * heads + head) * width
                stop = start + width
                source, by, add = sums[row, start:stop], row_scale[start:stop], offset[start:stop]
                target = outputs[which, (sample * heads + head) * tokens + token]
                for c in range(width):
                    z[c] = _wide(source[c]) * scale * by[c] + add[c]
                if which < 2:
                    inverse, weight, bias = _normalize(z, width, eps), affine[2 * which], affine[2 * which + 1]
                    for c in range(width):
                        z[c] = z[c] * inverse * weight[c] + bias[c]
                    if token >= plain:
                        for begin in range(0, width, _VECTOR):
                            _turn_pairs(z, turned, _U(begin))
                        by_cos, by_sin = cos[token - plain], sin[token - plain]
                        for c in range(width):
                            z[c] = z[c] * by_cos[c] + turned[c] * by_sin[c]
                for c in range(width):
                    _put(target, c, z[c])


@_part
def _scale_rows(first, last, sums, sum_scale, row_scale, offset, out, z):
    """The values of a product (M, N): out = sums · sum_scale · row_scale + offset, float32 or bfloat16."""
    for row in range(first, last):
        source, scale, target = sums[row], sum_scale[row], out[row]
        for n in range(sums.shape[1]):
            _put(target, n, _wide(source[n]) * scale * row_scale[n] + offset[n])


@_part
def _change_rows(first, last, x, y, sums, z):
    """sums[0, m] = Σ|y - x| and sums[1, m] = Σ|x| of x and y (M, C), float32 or bfloat16."""
    for row in range(first, last):
        old, new = x[row], y[row]
        change, whole = _F(0), _F(0)
        for c in range(x.shape[1]):
            value = _wide(old[c])
            change += abs(_wide(new[c]) - value)
            whole += abs(value)
        sums[0, row], sums[1, row] = change, whole


@_part
def _delta_rows(first, last, x, y, has_old, old_codes, old_scale, codes, scale, sums, z):
    """Δ = y - x of x and y (M, C), float32 or bfloat16, as codes int8 (M, C) with scale (M,), NaN for a token that is
    not finite; sums (4, M): Σ|Δ|, Σ|x| and, if has_old, Σ|Δ - old| and Σ|old| of the delta cached before."""
    size = x.shape[1]
    for row in range(first, last):
        before, after = x[row], y[row]
        change, whole = _F(0), _F(0)
        for c in range(size):
            value = _wide(before[c])
            difference = _wide(after[c]) - value
            z[c] = difference
            change += abs(difference)
            whole += abs(value)
        sums[0, row], sums[1, row] = change, whole
        if has_old:
            moved, held, step, old = _F(0), _F(0), old_scale[row], old_codes[row]
            for c in range(size):
                value = _F(old[c]) * step
                held += abs(value)
                moved += abs(z[c] - value)
            sums[2, row], sums[3, row] = moved, held
        largest = _I(0)
        for c in range(size):
            largest = max(largest, _as_bits(z[c]) & _MAGNITUDE)
        peak = _as_float(largest)
        factor = _F(1) / (peak if peak > _TINY else _TINY) * _TOP
        scale[row] = peak * _STEP if largest < _EXPONENT else _NAN
        for c in range(size):
            codes[row, c] = np.int8(_as_bits(z[c] * factor + _INTEGER_MAGIC))


@_part
def _add_delta_rows(first, last, x, codes, scale, out, z):
    """out = x + codes · scale for x and out (M, C), float32 or bfloat16."""
    for row in range(first, last):
        source, delta, step, target = x[row], codes[row], scale[row], out[row]
        for c in range(x.shape[1]):
            _put(target, c, _wide(source[c]) + _F(delta[c]) * step)


@_entry
def quantize_rows(team, operands):
    _on_team(team, _quantize_rows, operands)


@_entry
def gelu_rows(team, operands):
    _on_team(team, _gelu_rows, operands)


@_entry
def stream_rows(team, operands):
    _on_team(team, _stream_rows, operands)


@_entry
def head_rows(team, operands):
    _on_team(team, _head_rows, operands)


@_entry
def scale_rows(team, operands):
    _on_team(team, _scale_rows, operands)


@_entry
def change_rows(team, operands):
    _on_team(team, _change_rows, operands)


@_entry
def delta_rows(team, operands):
    _on_team(team, _delta_rows, operands)


@_entry
def add_delta_rows(team, operands):
    _on_team(team, _add_delta_rows, operands)
