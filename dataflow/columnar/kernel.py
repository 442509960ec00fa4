"""How Snapline declares its numeric loops: `@kernel(signature, ...)`, in types that stand here, without numba.

Rules that every kernel keeps:

* signatures are eager: a kernel is compiled for exactly these, or loaded from numba's cache;
* a process that hosts TaskManagers says `compile_kernels_at_once`: there a kernel is compiled when its module is
  imported, never inside the first batch, so the latency of a batch is bounded. Any other process, a driver or a local
  run, loads numba and a kernel when the kernel is called first, because most jobs need a few of them or none;
* `nogil`, never `parallel`: tasks run on threads of their own and worker processes are forked;
* input arrays are declared read-only (`RO` types), because Arrow buffers are; contiguous, because that is what is fast;
* nothing is allocated in a kernel, so it cannot fail halfway.

What numba makes of a function is the business of `kernel_compiler`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from snapline.dataflow.columnar.uncompiled import Uncompiled

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


class KernelType(str):
    """A type in numba's words; called with the types of arguments, the signature of a function that returns it."""

    __slots__ = ()

    def __call__(self, *arguments: KernelType) -> KernelType:
        """The signature with these arguments."""
        return KernelType(f"{self}({', '.join(arguments)})")


def _array(dtype: str, *, readonly: bool = False) -> KernelType:
    return KernelType(f"Array({dtype}, 1, 'C', readonly={readonly})")


BOOL = KernelType("boolean")
I32, I64, U64 = KernelType("int32"), KernelType("int64"), KernelType("uint64")
VOID = KernelType("void")
U8s, U16s, U32s, U64s = (_array(t) for t in ("uint8", "uint16", "uint32", "uint64"))
I32s, I64s, F64s, BOOLs = (_array(t) for t in ("int32", "int64", "float64", "boolean"))
"""Arrays that a kernel writes."""
RO_U8s, RO_U16s, RO_U32s, RO_U64s = (_array(t, readonly=True) for t in ("uint8", "uint16", "uint32", "uint64"))
RO_I32s, RO_I64s, RO_F64s, RO_BOOLs = (_array(t, readonly=True) for t in ("int32", "int64", "float64", "boolean"))
"""Arrays that a kernel only reads; writable ones are accepted, too."""


class _Compilation:
    """When kernels of this process are compiled."""

    def __init__(self) -> None:
        self.is_at_once = False
        self.pending: list[Uncompiled] = []
        """Kernels that nobody has compiled so far, maybe with some that were called since."""


_COMPILATION = _Compilation()


def compile_kernels_at_once() -> None:
    """From now on kernels of this process are compiled when their module is imported, those that are there already
    now."""
    _COMPILATION.is_at_once = True
    while _COMPILATION.pending:
        _ = _COMPILATION.pending.pop().compiled


def kernel(*signatures: KernelType) -> Callable[[FunctionT], FunctionT]:
    """Compile for exactly these signatures, once it is called or at once; cached on disk where that is possible."""

    def decorate(function: FunctionT) -> FunctionT:
        def compile_now() -> Any:
            from snapline.dataflow.columnar.kernel_compiler import compiled

            made = compiled(function, signatures)
            function.__globals__[function.__name__] = made  # later calls find it there, without a detour
            return made

        if _COMPILATION.is_at_once:
            made: FunctionT = compile_now()
            return made
        waiting: Any = Uncompiled(compile_now)
        _COMPILATION.pending.append(waiting)
        result: FunctionT = waiting
        return result

    return decorate


def inlined(function: FunctionT) -> FunctionT:
    """A function for use inside kernels only; compiled with them."""

    def prepare() -> Any:
        from snapline.dataflow.columnar.kernel_compiler import prepared

        return prepared(function)

    result: Any = Uncompiled(prepare)
    made: FunctionT = result
    return made


def _intrinsic(name: str) -> Any:
    def find() -> Any:
        from snapline.dataflow.columnar import kernel_compiler

        return getattr(kernel_compiler, name)

    return Uncompiled(find)


load_u64 = _intrinsic("load_u64")
"""`load_u64(bytes, i)`: the eight bytes at `i`, little endian."""
load_u32 = _intrinsic("load_u32")
"""`load_u32(bytes, i)`: the four bytes at `i`, little endian, as uint64."""
store_u64 = _intrinsic("store_u64")
"""`store_u64(bytes, i, value)`: eight bytes at `i`, little endian."""
load_u64_at = _intrinsic("load_u64_at")
"""`load_u64_at(address)`: the eight bytes at this address of memory, which the caller keeps alive."""
prefetch_at = _intrinsic("prefetch_at")
"""`prefetch_at(address)`: ask for the cache line at this address, and go on."""
prefetch = _intrinsic("prefetch")
"""`prefetch(array, i)`: ask for the cache line of element `i`, and go on."""


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
