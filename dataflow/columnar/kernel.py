"""How Snapline compiles its numeric loops: `@kernel("signature", ...)` around numba, and the few intrinsics that numba
lacks.

Rules that every kernel keeps:

* signatures are eager: a kernel is compiled (or loaded from numba's cache) when its module is imported, never inside
  the first batch, so the latency of a batch is bounded;
* `nogil`, never `parallel`: tasks run on threads of their own and worker processes are forked;
* input arrays are declared read-only (`RO` types), because Arrow buffers are; contiguous, because that is what is fast;
* nothing is allocated in a kernel, so it cannot fail halfway.

The cache lies where numba puts it: `NUMBA_CACHE_DIR`, next to the module, or the user's cache directory. Where none of
them is writable the kernel is compiled for this process alone; that costs seconds at the start, and is no error. numba
stamps a cache entry with the file that holds the kernel, so a function that is inlined into kernels of other files must
not change its meaning (`fmix64`, `xxh64` and the loads below are fixed by published algorithms).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba import types
from numba.core import extending

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_njit: Any = numba.njit  # what numba makes of a function has no type that would help
_intrinsic: Any = extending.intrinsic


def _array(dtype: Any, *, readonly: bool = False) -> Any:
    return types.Array(dtype, 1, "C", readonly=readonly)


BOOL = types.boolean
I32, I64, U64 = types.int32, types.int64, types.uint64
VOID = types.void
U8s, U16s, U32s, U64s = (_array(t) for t in (types.uint8, types.uint16, types.uint32, types.uint64))
I32s, I64s, F64s, BOOLs = (_array(t) for t in (types.int32, types.int64, types.float64, types.boolean))
"""Arrays that a kernel writes."""
RO_U8s, RO_U16s, RO_U32s, RO_U64s = (
    _array(t, readonly=True) for t in (types.uint8, types.uint16, types.uint32, types.uint64)
)
RO_I32s, RO_I64s, RO_F64s, RO_BOOLs = (
    _array(t, readonly=True) for t in (types.int32, types.int64, types.float64, types.boolean)
)
"""Arrays that a kernel only reads; writable ones are accepted, too."""


def kernel(*signatures: Any) -> Callable[[FunctionT], FunctionT]:
    """Compile for exactly these signatures, now; cached on disk where that is possible."""

    def decorate(function: FunctionT) -> FunctionT:
        options = {"nogil": True, "error_model": "numpy"}
        try:
            return _njit(list(signatures), cache=True, **options)(function)
        except (
            Exception
        ):  # no writable cache directory, a full disk, a damaged entry; a defect of the kernel raises again
            return _njit(list(signatures), cache=False, **options)(function)

    return decorate


def inlined(function: FunctionT) -> FunctionT:
    """A function for use inside kernels only; compiled with them."""
    return _njit(nogil=True, error_model="numpy", inline="never")(function)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, bits: int) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(bits).as_pointer())


def _unaligned_load(bits: int, result: Any) -> Any:
    def load(typingctx: Any, array: Any, index: Any) -> Any:  # noqa: ARG001 - numba asks for these names
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, signature.args[0], args[0], args[1], bits)
            value = builder.load(pointer)
            value.align = 1
            return value if bits == result.bitwidth else builder.zext(value, ir.IntType(result.bitwidth))

        return result(array, types.intp), codegen

    return load


load_u64: Any = _intrinsic(_unaligned_load(64, types.uint64))
"""`load_u64(bytes, i)`: the eight bytes at `i`, little endian."""
load_u32: Any = _intrinsic(_unaligned_load(32, types.uint64))
"""`load_u32(bytes, i)`: the four bytes at `i`, little endian, as uint64."""


@_intrinsic
def store_u64(typingctx: Any, array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """`store_u64(bytes, i, value)`: eight bytes at `i`, little endian."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        store = builder.store(args[2], _pointer(context, builder, signature.args[0], args[0], args[1], 64))
        store.align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


@_intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """`prefetch(array, i)`: ask for the cache line of element `i`, and go on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], function_type)
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], 8)
        builder.call(function, [pointer, number(0), number(3), number(1)])  # for reading, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@inlined
def copy_bytes(source: Any, start: Any, target: Any, position: Any, length: Any) -> None:
    """Copy `length` bytes, eight at a time; neither side is touched beyond them."""
    done = 0
    while done + 8 <= length:
        store_u64(target, position + done, load_u64(source, start + done))
        done += 8
    while done < length:
        target[position + done] = source[start + done]
        done += 1
