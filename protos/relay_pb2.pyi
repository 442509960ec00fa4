from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RelayFrames(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[RelayFrame]
    def __init__(self, frames: _Optional[_Iterable[_Union[RelayFrame, _Mapping]]] = ...) -> None: ...

class RelayFrame(_message.Message):
    __slots__ = ("stream", "opened", "envelope", "ended")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    stream: int
    opened: RelayStreamOpened
    envelope: bytes
    ended: RelayStreamEnded
    def __init__(self, stream: _Optional[int] = ..., opened: _Optional[_Union[RelayStreamOpened, _Mapping]] = ..., envelope: _Optional[bytes] = ..., ended: _Optional[_Union[RelayStreamEnded, _Mapping]] = ...) -> None: ...

class RelayStreamOpened(_message.Message):
    __slots__ = ("gateway", "peer", "credential")
    class Gateway(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GATEWAY_UNSPECIFIED: _ClassVar[RelayStreamOpened.Gateway]
        GATEWAY_RESOURCE_MANAGER: _ClassVar[RelayStreamOpened.Gateway]
        GATEWAY_JOB_MASTER: _ClassVar[RelayStreamOpened.Gateway]
    GATEWAY_UNSPECIFIED: RelayStreamOpened.Gateway
    GATEWAY_RESOURCE_MANAGER: RelayStreamOpened.Gateway
    GATEWAY_JOB_MASTER: RelayStreamOpened.Gateway
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    gateway: RelayStreamOpened.Gateway
    peer: str
    credential: str
    def __init__(self, gateway: _Optional[_Union[RelayStreamOpened.Gateway, str]] = ..., peer: _Optional[str] = ..., credential: _Optional[str] = ...) -> None: ...

class RelayStreamEnded(_message.Message):
    __slots__ = ("status", "reason")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: int
    reason: str
    def __init__(self, status: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
