"""Numbers that stay in vector registers from one iteration of a compiled loop to the next.

LLVM keeps an array in memory while a loop reads and writes it. A value of the type `Registers` holds COLUMNS
consecutive numbers as vectors of 64 bytes; the functions below can only be called in code that numba
compiles. Offsets count numbers from the beginning of a contiguous array.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic, models, register_model

BYTES = 64  # in a vector; on processors with smaller ones, LLVM uses several
# two such values, and what is read meanwhile, fit into the registers: 32 of 64 bytes, or 16 of 32
COLUMNS = 64 if binding.get_host_cpu_features().get("avx512f") else 32
SUMS = ("reassoc", "contract", "nsz")


class Registers(types.Type):
    """The type of COLUMNS numbers, or of the `count` vectors that hold part of them."""

    def __init__(self, dtype: Any, count: int = 0):
        self.dtype, self.count = dtype, count or COLUMNS * dtype.bitwidth // (8 * BYTES)
        super().__init__(name=f"Registers({dtype}, {self.count})")


@register_model(Registers)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Registers):
        super().__init__(manager, kind, ir.ArrayType(_vector(kind.dtype), kind.count))


@intrinsic
def load(typing, array, offset):
    """Return COLUMNS numbers of the array."""
    made = Registers(array.dtype)

    def write(context, builder, signature, args):
        return _join(
            builder,
            [builder.load(p, align=_align(made)) for p in _point(context, builder, made, array, *args)],
        )

    return made(array, types.int64), write


@intrinsic
def store(typing, array, offset, numbers):
    """Store COLUMNS numbers in the array."""

    def write(context, builder, signature, args):
        places = _point(context, builder, numbers, array, *args[:2])
        for place, vector in zip(places, _split(builder, args[2]), strict=True):
            builder.store(vector, place, align=_align(numbers))
        return context.get_dummy_value()

    return types.void(array, types.int64, numbers), write


@intrinsic
def zeros(typing, array):
    """Return COLUMNS zeros of the dtype of the array."""
    made = Registers(array.dtype)
    return made(array), _write_zeros(made)


@intrinsic
def no_sum(typing, array):
    """Return the value that `add_squares` starts from: a single vector of zeros."""
    made = Registers(array.dtype, 1)
    return made(array), _write_zeros(made)


@intrinsic
def add_row(typing, numbers, factor, array, offset):
    """Return numbers + factor * array[offset:]."""

    def write(context, builder, signature, args):
        places = _point(context, builder, numbers, array, *args[2:])
        factor = _spread(builder, args[1], numbers)
        pairs = zip(_split(builder, args[0]), places, strict=True)
        return _join(
            builder, [_fma(builder, factor, builder.load(p, align=_align(numbers)), n) for n, p in pairs]
        )

    return numbers(numbers, numbers.dtype, array, types.int64), write


@intrinsic
def add_product(typing, numbers, factor, others):
    """Return numbers + factor * others."""

    def write(context, builder, signature, args):
        factor = _spread(builder, args[1], numbers)
        pairs = zip(_split(builder, args[0]), _split(builder, args[2]), strict=True)
        return _join(builder, [_fma(builder, factor, other, n) for n, other in pairs])

    return numbers(numbers, numbers.dtype, others), write


@intrinsic
def add_squares(typing, sums, weight, numbers):
    """Add the weighted squares of the numbers to sums from `no_sum`; `add_up` returns their total."""

    def write(context, builder, signature, args):
        first, *rest = _split(builder, args[2])
        squares = builder.fmul(first, first, flags=SUMS)
        for vector in rest:
            squares = _fma(builder, vector, vector, squares)
        (sums,) = _split(builder, args[0])
        return _join(builder, [_fma(builder, _spread(builder, args[1], numbers), squares, sums)])

    return sums(sums, numbers.dtype, numbers), write


@intrinsic
def add_up(typing, numbers):
    """Return the sum of all numbers."""

    def write(context, builder, signature, args):
        first, *rest = _split(builder, args[0])
        for vector in rest:
            first = builder.fadd(first, vector, flags=SUMS)
        return _total(builder, first)

    return numbers.dtype(numbers), write


@intrinsic
def step_back(typing, suffix, rest, weight, value, atoms, gradients, offset):
    """Take a step of the backward pass over prefixes; return the suffix sum, the residual and a gradient.

    suffix += weight * rest, gradients[offset:] += value * suffix, and rest += value * atoms[offset:]. The
    gradient is the inner product of suffix and atom. One function for the four, because each atom is then
    read once and nothing else is held.
    """
    found = types.Tuple((suffix, rest, suffix.dtype))

    def write(context, builder, signature, args):
        sums, rests = _split(builder, args[0]), _split(builder, args[1])
        weight, value = _spread(builder, args[2], suffix), _spread(builder, args[3], suffix)
        atom_places = _point(context, builder, suffix, atoms, args[4], args[6])
        places = _point(context, builder, suffix, gradients, args[5], args[6])
        product = ir.Constant(_vector(suffix.dtype), [0.0] * _lanes(suffix.dtype))
        for i, (atom_place, place) in enumerate(zip(atom_places, places, strict=True)):
            atom = builder.load(atom_place, align=_align(suffix))
            sums[i] = _fma(builder, weight, rests[i], sums[i])
            gradient = _fma(builder, value, sums[i], builder.load(place, align=_align(suffix)))
            builder.store(gradient, place, align=_align(suffix))
            product = _fma(builder, sums[i], atom, product)
            rests[i] = _fma(builder, value, atom, rests[i])
        parts = [_join(builder, sums), _join(builder, rests), _total(builder, product)]
        return context.make_tuple(builder, found, parts)

    return found(suffix, rest, suffix.dtype, suffix.dtype, atoms, gradients, types.int64), write


# --- LLVM instructions ------------------------------------------------------------------------------


def _lanes(dtype: Any) -> int:
    return 8 * BYTES // dtype.bitwidth


def _vector(dtype: Any) -> ir.VectorType:
    return ir.VectorType(ir.FloatType() if dtype == types.float32 else ir.DoubleType(), _lanes(dtype))


def _align(kind: Registers) -> int:
    return kind.dtype.bitwidth // 8


def _point(
    context: Any, builder: Any, kind: Registers, array_type: Any, array: Any, offset: Any
) -> list[Any]:
    """Return pointers to the vectors from this offset on."""
    data = context.make_array(array_type)(context, builder, array).data
    first = builder.bitcast(builder.gep(data, [offset]), _vector(kind.dtype).as_pointer())
    return [builder.gep(first, [ir.Constant(ir.IntType(64), i)]) for i in range(kind.count)]


def _split(builder: Any, value: Any) -> list[Any]:
    return [builder.extract_value(value, i) for i in range(value.type.count)]


def _join(builder: Any, vectors: list[Any]) -> Any:
    value = ir.Constant(ir.ArrayType(vectors[0].type, len(vectors)), ir.Undefined)
    for i, vector in enumerate(vectors):
        value = builder.insert_value(value, vector, i)
    return value


def _write_zeros(kind: Registers) -> Callable[..., Any]:
    def write(context, builder, signature, args):
        return _join(builder, [ir.Constant(_vector(kind.dtype), [0.0] * _lanes(kind.dtype))] * kind.count)

    return write


def _spread(builder: Any, number: Any, kind: Registers) -> Any:
    """Return a vector that has this number everywhere."""
    vector = _vector(kind.dtype)
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, _places([0] * vector.count))


def _places(places: Sequence[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places))


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=SUMS), c, flags=SUMS)


def _total(builder: Any, vector: Any) -> Any:
    """Return the sum over a vector, by halves."""
    while (half := vector.type.count // 2) > 0:
        nothing = ir.Constant(vector.type, ir.Undefined)
        parts = [
            builder.shuffle_vector(vector, nothing, _places(range(i * half, (i + 1) * half))) for i in (0, 1)
        ]
        vector = builder.fadd(*parts, flags=SUMS)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))
