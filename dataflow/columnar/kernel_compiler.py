"""What numba makes of a kernel, and the few intrinsics that numba lacks. Loaded when the first kernel is compiled.

The cache lies where numba puts it: `NUMBA_CACHE_DIR`, next to the module, or the user's cache directory. Where none of
them is writable the kernel is compiled for this process alone; that costs seconds at the start, and is no error. A
process that has waited for the compiler for a while says so once, because the first job after an installation waits
longest. numba stamps a cache entry with the file that holds the kernel, so a function that is inlined into kernels of
other files must not change its meaning (`fmix64`, `xxh64` and the loads below are fixed by published algorithms).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import extending

from snapline.dataflow.columnar.uncompiled import Uncompiled

_njit: Any = numba.njit  # what numba makes of a function has no type that would help
_intrinsic: Any = extending.intrinsic


log = logging.getLogger("snapline.kernels")
TELL_AFTER_SECONDS = 2.0
"""After so long with the compiler a process says what it waits for."""
LOADING_SECONDS = 0.1
"""What takes less was in the cache."""
COMPILING = (
    "kernels are compiled for this machine, once after an installation: that takes up to a minute, and later processes "
    "load them (python -m snapline.taskmanager.kernels does it beforehand)"
)


KNOWN_NUMBA = (0, 68)
"""Up to this version of numba it is known which of its symbols the code of a kernel names. Code that names one that is
not there ends the process, so a later version loads kernels in its own way, which takes longer."""


class _Patience:
    """How long this process has waited for the compiler."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.is_told = False

    def tell(self) -> None:
        """Say what is waited for, once, when it has been long."""
        if self.waited_s >= TELL_AFTER_SECONDS and not self.is_told:
            self.is_told = True
            log.warning(COMPILING)


_PATIENCE = _Patience()


def compiled(function: Callable[..., Any], signatures: Sequence[str]) -> Any:
    """The kernel of a function for exactly these signatures, from the cache or compiled."""
    _PATIENCE.tell()
    began = time.monotonic()
    try:
        return _compiled(function, signatures)
    finally:
        took = time.monotonic() - began
        _PATIENCE.waited_s += took if took >= LOADING_SECONDS else 0.0


def _compiled(function: Callable[..., Any], signatures: Sequence[str]) -> Any:
    _prepare_names(function)
    options = {"nogil": True, "error_model": "numpy"}
    try:
        made = _njit(cache=True, **options)(function)
        if numba.version_info[:2] <= KNOWN_NUMBA:
            _load_without_registries(made._cache)  # noqa: SLF001 - numba has no other name for it
        for signature in signatures:
            made.compile(str(signature))
        made.disable_compile()
        return made
    except Exception:  # no writable cache directory, a full disk, a damaged entry; a defect of the kernel raises again
        return _njit([str(signature) for signature in signatures], cache=False, **options)(function)


def _load_without_registries(cache: Any) -> None:
    """Let this cache load a kernel without all that numba imports to compile one: 83 modules, of which a kernel that
    is compiled already needs none. What is not in the cache makes numba import them, as ever."""
    from numba.core.runtime.nrt import rtsys

    def load_overload(signature: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)  # the symbols that compiled code names
        return cache._load_overload(signature, target_context)  # noqa: SLF001 - the rest of what it replaces

    cache.load_overload = load_overload


def prepared(function: Callable[..., Any]) -> Any:
    """A function that kernels call, to be compiled with them."""
    _prepare_names(function)
    return _njit(nogil=True, error_model="numpy", inline="never")(function)


def _prepare_names(function: Any) -> None:
    """Put what numba can call in the place of everything uncompiled that the function names."""
    names = function.__globals__
    for name in function.__code__.co_names:
        if isinstance(names.get(name), Uncompiled):
            names[name] = names[name].compiled


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
load_u32: Any = _intrinsic(_unaligned_load(32, types.uint64))


@_intrinsic
def store_u64(typingctx: Any, array: Any, index: Any, value: Any) -> Any:  # noqa: ARG001
    """Store eight bytes at any address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        store = builder.store(args[2], _pointer(context, builder, signature.args[0], args[0], args[1], 64))
        store.align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


@_intrinsic
def load_u64_at(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
    """Load eight bytes from an address of memory."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        value = builder.load(builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        value.align = 1
        return value

    return types.uint64(types.int64), codegen


def _prefetch(builder: Any, pointer: Any) -> None:
    byte_pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], function_type)
    builder.call(function, [pointer, number(0), number(3), number(1)])  # for reading, keep in all caches, data


@_intrinsic
def prefetch_at(typingctx: Any, address: Any) -> Any:  # noqa: ARG001
    """Ask the processor for the cache line of an address, for reading."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        _prefetch(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@_intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Ask the processor for the cache line of an element, for reading."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _prefetch(builder, _pointer(context, builder, signature.args[0], args[0], args[1], 8))
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen
