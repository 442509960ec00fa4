"""The state of a program outside, as operator state: named lists of elements.

Decides which states a program may have; how they are dealt out when the number of tasks changes is the business of any
operator state. An element that goes where its rows go is written with its key group before it, in a list that every
task gets whole, and of which each keeps the key groups that are its own. The bytes of an element mean nothing here. An
element that a program has uploaded is a file of the checkpoint, below the directory that the program was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from snapline.dataflow.ids import OperatorID
from snapline.dataflow.snapshot.digest_sizes import digests_size
from snapline.dataflow.snapshot.handles import (
    ByteStreamStateHandle,
    OperatorStateEntry,
    OperatorStateHandle,
    OperatorStateMode,
    OperatorSubtaskState,
    SegmentStateHandle,
    TaskStateSnapshot,
)
from snapline.dataflow.urls import is_absolute, is_file_url, path_of_file_url
from snapline.protos import external_pb2 as pb

RESERVED_PREFIX = "snapline:"
"""How no state of a program may be named: such lists are ours."""
BY_KEY_PREFIX = f"{RESERVED_PREFIX}by-key:"
"""How the names of lists begin whose elements have a key group."""
_KEY_GROUP_BYTES = 4
ELEMENT_OVERHEAD_BYTES = 16
"""What a state and an element count for besides their bytes, so that a million empty ones are not free."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")

_MODES = {
    pb.REDISTRIBUTION_SPLIT: OperatorStateMode.SPLIT_DISTRIBUTE,
    pb.REDISTRIBUTION_UNION: OperatorStateMode.UNION,
    pb.REDISTRIBUTION_BROADCAST: OperatorStateMode.BROADCAST,
}
_REDISTRIBUTIONS = {mode: number for number, mode in _MODES.items()}


class StateRefused(Exception):
    """The state is none that a program may have; one line."""


def size_of(states: Iterable[pb.NamedState]) -> int:
    """How many bytes the states count for."""
    return sum(
        len(state.name)
        + ELEMENT_OVERHEAD_BYTES
        + sum(len(element) + ELEMENT_OVERHEAD_BYTES for element in state.elements)
        + sum(len(each.file) + len(each.digests) + ELEMENT_OVERHEAD_BYTES for each in state.uploaded)
        for state in states
    )


def check_states(
    states: Sequence[pb.NamedState], max_bytes: int, key_groups: range = range(0), *, may_upload: bool = False
) -> None:
    """Raises StateRefused for states that a program may not have; `key_groups`: those of its rows, if they have
    keys."""
    size = size_of(states)
    if size > max_bytes:
        raise StateRefused(
            f"its state has {size} bytes, and {max_bytes} are allowed (external.state.max-bytes of the coordinator): keep less, or "
            + ("upload it" if may_upload else "keep it in a store of your own, and its version here")
        )
    names: set[str] = set()
    for state in states:
        if not state.name or state.name in names:
            raise StateRefused(f"a state has no name of its own: {state.name[:80]!r}")
        names.add(state.name)
        if state.name.startswith(RESERVED_PREFIX):
            raise StateRefused(
                f"state {state.name[:80]!r} begins with {RESERVED_PREFIX!r}, as no state of a program may"
            )
        for each in state.uploaded:
            _check_uploaded(state.name[:80], each, may_upload=may_upload)
        if state.redistribution == pb.REDISTRIBUTION_BY_KEY:
            _check_key_groups(state, key_groups)
        elif state.redistribution not in _MODES:
            raise StateRefused(f"state {state.name[:80]!r} has the unknown redistribution {state.redistribution}")


def _check_uploaded(name: str, element: pb.UploadedElement, *, may_upload: bool) -> None:
    if not may_upload:
        raise StateRefused(
            f"state {name!r} names file {element.file[:80]!r}, and this task was given no place for files: send it"
        )
    if _FILE_NAME.fullmatch(element.file) is None:
        raise StateRefused(
            f"state {name!r} names file {element.file[:80]!r}: say its name below upload_location, of letters, digits, _, - and ."
        )
    if element.offset < 0 or element.size < 0:
        raise StateRefused(f"state {name!r}: the place of an element in file {element.file!r} is negative")
    if element.digests and len(element.digests) != digests_size(element.size):
        raise StateRefused(
            f"state {name!r}: an element of {element.size} bytes in file {element.file!r} has {len(element.digests)} bytes of "
            f"digests, not {digests_size(element.size)}"
        )


def _check_key_groups(state: pb.NamedState, key_groups: range) -> None:
    if not key_groups:
        raise StateRefused(f"state {state.name[:80]!r} is redistributed by key, and the rows of this task have no keys")
    if len(state.key_groups) != len(state.elements):
        raise StateRefused(
            f"state {state.name[:80]!r} has {len(state.elements)} elements and {len(state.key_groups)} key groups"
        )
    foreign = next((each for each in state.key_groups if each not in key_groups), None)
    if foreign is not None:
        raise StateRefused(
            f"state {state.name[:80]!r} has an element of key group {foreign}, and this task has "
            f"{key_groups.start} to {key_groups.stop - 1}: use the key groups that came with its rows"
        )


def task_state(
    operator_id: OperatorID, states: Sequence[pb.NamedState], max_bytes: int, location: str = ""
) -> TaskStateSnapshot:
    """What is acknowledged for a program without rows. `location`: the directory of its files, as handles name it;
    empty: it may have none. Raises StateRefused."""
    check_states(states, max_bytes, may_upload=bool(location))
    if not states:
        return TaskStateSnapshot()
    entries, blob, offset, handles = [], [], 0, []
    for state in states:
        places, mode = [], _MODES[state.redistribution]
        for element in state.elements:
            places.append((offset, len(element)))
            blob.append(element)
            offset += len(element)
        entries.append(OperatorStateEntry(state.name, mode, tuple(places)))
        for each in state.uploaded:
            file = SegmentStateHandle(f"{location}/{each.file}", each.offset, each.size, digests=each.digests)
            handles.append(OperatorStateHandle(file, (OperatorStateEntry(state.name, mode, ((0, each.size),)),)))
    inline = OperatorStateHandle(ByteStreamStateHandle(b"".join(blob)), tuple(entries))
    return TaskStateSnapshot({operator_id: OperatorSubtaskState(managed_operator=(inline, *handles))})


def operator_lists(states: Iterable[pb.NamedState]) -> dict[str, tuple[OperatorStateMode, tuple[bytes, ...]]]:
    r"""The lists that hold these states, which were checked, by their names.

    >>> counts = pb.NamedState(name="n", elements=[b"7"], redistribution=pb.REDISTRIBUTION_BY_KEY, key_groups=[3])
    >>> operator_lists([counts])["snapline:by-key:n"][1]
    (b'\x00\x00\x00\x037',)
    """
    lists: dict[str, tuple[OperatorStateMode, tuple[bytes, ...]]] = {}
    for state in states:
        if state.redistribution == pb.REDISTRIBUTION_BY_KEY:
            marked = (
                group.to_bytes(_KEY_GROUP_BYTES) + element
                for group, element in zip(state.key_groups, state.elements, strict=True)
            )
            lists[BY_KEY_PREFIX + state.name] = (OperatorStateMode.UNION, tuple(marked))
        else:
            lists[state.name] = (_MODES[state.redistribution], tuple(state.elements))
    return lists


def states_of_lists(lists: Mapping[str, Sequence[bytes]], key_groups: range) -> list[pb.NamedState]:
    """What `operator_lists` has written, as far as it is this task's. How a list without key groups was redistributed
    is not known any more, and not said."""
    states = []
    for name, elements in lists.items():
        if name.startswith(BY_KEY_PREFIX):
            own = [each for each in elements if int.from_bytes(each[:_KEY_GROUP_BYTES]) in key_groups]
            states.append(
                pb.NamedState(
                    name=name.removeprefix(BY_KEY_PREFIX),
                    elements=[each[_KEY_GROUP_BYTES:] for each in own],
                    redistribution=pb.REDISTRIBUTION_BY_KEY,
                    key_groups=[int.from_bytes(each[:_KEY_GROUP_BYTES]) for each in own],
                )
            )
        else:
            states.append(pb.NamedState(name=name, elements=elements))
    return states


def named_states(state: OperatorSubtaskState, directory: str = "") -> list[pb.NamedState]:
    """What a program is given to begin with. `directory`: what relative paths of files lie below. Raises StateRefused
    for state that no program has written."""
    found: dict[str, pb.NamedState] = {}
    if state.managed_keyed or state.input_channel or state.output_channel:
        raise StateRefused("the snapshot holds state under this uid that no external task has written")
    for part in state.managed_operator:
        handle = part.handle
        for entry in part.entries:
            states = found.setdefault(
                entry.name, pb.NamedState(name=entry.name, redistribution=_REDISTRIBUTIONS[entry.mode])
            )
            if isinstance(handle, ByteStreamStateHandle):
                states.elements.extend(handle.data[offset : offset + size] for offset, size in entry.offsets)
            else:
                states.uploaded.extend(_uploaded(handle, offset, size, directory) for offset, size in entry.offsets)
    return list(found.values())


def _uploaded(handle: SegmentStateHandle, offset: int, size: int, directory: str) -> pb.UploadedElement:
    digests = handle.digests if (offset, size) == (0, handle.size) else b""  # they are those of the whole blob
    file = located(handle.path, directory)
    return pb.UploadedElement(file=file, offset=handle.offset + offset, size=size, digests=digests)


def located(path: str, directory: str) -> str:
    """The whole path of what a handle or a location of the checkpoint's names, or its URL when no mounted file system
    holds it: a program opens a path as it is, in whatever language."""
    whole = path if is_absolute(path) else f"{directory}/{path}"
    return path_of_file_url(whole) if is_file_url(whole) else whole
