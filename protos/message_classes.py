"""Message classes of a .proto file, made from its descriptor when its module is imported.

What protoc generates for Python is tied to one major version of protobuf; a descriptor is understood by all of them.
The descriptors are in a pool of Snapline's own, because protobuf's default pool is one for the whole process: a job
that has a file or a message of the same name there keeps it, and we keep ours (decision 3).
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

POOL = DescriptorPool()
"""All of Snapline's .proto files that were imported."""


def define_messages(module: dict[str, Any], serialized_file: bytes) -> FileDescriptor:
    """Put the message classes, enums and enum values of a file into the globals of its module, as protoc's code does.
    The files that it imports must be defined already. Raises TypeError when they are not, or when it contradicts what
    the pool has."""
    file: FileDescriptor = POOL.AddSerializedFile(serialized_file)
    for name, enum in file.enum_types_by_name.items():
        module[name] = EnumTypeWrapper(enum)
        module.update({value.name: value.number for value in enum.values})
    for name, message in file.message_types_by_name.items():
        module[name] = message_factory.GetMessageClass(message)
        module[name].__module__ = module["__name__"]
    return file
