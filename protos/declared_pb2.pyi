from snapline.protos import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DeclaredJob(_message.Message):
    __slots__ = ("job_id", "name", "configuration", "operators", "savepoint_restore")
    class ConfigurationEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    SAVEPOINT_RESTORE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    name: str
    configuration: _containers.ScalarMap[str, str]
    operators: _containers.RepeatedCompositeFieldContainer[DeclaredOperator]
    savepoint_restore: _job_pb2.SavepointRestoreSettings
    def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., configuration: _Optional[_Mapping[str, str]] = ..., operators: _Optional[_Iterable[_Union[DeclaredOperator, _Mapping]]] = ..., savepoint_restore: _Optional[_Union[_job_pb2.SavepointRestoreSettings, _Mapping]] = ...) -> None: ...

class DeclaredOperator(_message.Message):
    __slots__ = ("uid", "inputs", "parallelism", "source", "sink", "select", "with_columns", "filter", "aggregate", "join", "union", "function", "watermarks", "external")
    UID_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SINK_FIELD_NUMBER: _ClassVar[int]
    SELECT_FIELD_NUMBER: _ClassVar[int]
    WITH_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    UNION_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    uid: str
    inputs: _containers.RepeatedScalarFieldContainer[str]
    parallelism: int
    source: DeclaredSource
    sink: DeclaredConnector
    select: DeclaredColumns
    with_columns: DeclaredColumns
    filter: DeclaredExpression
    aggregate: DeclaredAggregation
    join: DeclaredJoin
    union: DeclaredUnion
    function: DeclaredFunction
    watermarks: DeclaredWatermarks
    external: DeclaredExternal
    def __init__(self, uid: _Optional[str] = ..., inputs: _Optional[_Iterable[str]] = ..., parallelism: _Optional[int] = ..., source: _Optional[_Union[DeclaredSource, _Mapping]] = ..., sink: _Optional[_Union[DeclaredConnector, _Mapping]] = ..., select: _Optional[_Union[DeclaredColumns, _Mapping]] = ..., with_columns: _Optional[_Union[DeclaredColumns, _Mapping]] = ..., filter: _Optional[_Union[DeclaredExpression, _Mapping]] = ..., aggregate: _Optional[_Union[DeclaredAggregation, _Mapping]] = ..., join: _Optional[_Union[DeclaredJoin, _Mapping]] = ..., union: _Optional[_Union[DeclaredUnion, _Mapping]] = ..., function: _Optional[_Union[DeclaredFunction, _Mapping]] = ..., watermarks: _Optional[_Union[DeclaredWatermarks, _Mapping]] = ..., external: _Optional[_Union[DeclaredExternal, _Mapping]] = ...) -> None: ...

class DeclaredConnector(_message.Message):
    __slots__ = ("name", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DeclaredValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DeclaredValue, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: _containers.MessageMap[str, DeclaredValue]
    def __init__(self, name: _Optional[str] = ..., options: _Optional[_Mapping[str, DeclaredValue]] = ...) -> None: ...

class DeclaredSource(_message.Message):
    __slots__ = ("connector", "columns", "watermarks")
    CONNECTOR_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    connector: DeclaredConnector
    columns: _containers.RepeatedCompositeFieldContainer[DeclaredField]
    watermarks: DeclaredWatermarks
    def __init__(self, connector: _Optional[_Union[DeclaredConnector, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[DeclaredField, _Mapping]]] = ..., watermarks: _Optional[_Union[DeclaredWatermarks, _Mapping]] = ...) -> None: ...

class DeclaredField(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ...) -> None: ...

class DeclaredFields(_message.Message):
    __slots__ = ("fields",)
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.RepeatedCompositeFieldContainer[DeclaredField]
    def __init__(self, fields: _Optional[_Iterable[_Union[DeclaredField, _Mapping]]] = ...) -> None: ...

class DeclaredWatermarks(_message.Message):
    __slots__ = ("column", "max_out_of_orderness_ms", "idle_timeout_ms")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    MAX_OUT_OF_ORDERNESS_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    column: str
    max_out_of_orderness_ms: int
    idle_timeout_ms: int
    def __init__(self, column: _Optional[str] = ..., max_out_of_orderness_ms: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ...) -> None: ...

class DeclaredValue(_message.Message):
    __slots__ = ("bool_value", "int_value", "double_value", "string_value", "bytes_value", "timestamp_us", "list", "object", "columns", "options")
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BYTES_VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    bool_value: bool
    int_value: int
    double_value: float
    string_value: str
    bytes_value: bytes
    timestamp_us: int
    list: DeclaredValues
    object: DeclaredConnector
    columns: DeclaredFields
    options: DeclaredOptions
    def __init__(self, bool_value: _Optional[bool] = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., string_value: _Optional[str] = ..., bytes_value: _Optional[bytes] = ..., timestamp_us: _Optional[int] = ..., list: _Optional[_Union[DeclaredValues, _Mapping]] = ..., object: _Optional[_Union[DeclaredConnector, _Mapping]] = ..., columns: _Optional[_Union[DeclaredFields, _Mapping]] = ..., options: _Optional[_Union[DeclaredOptions, _Mapping]] = ...) -> None: ...

class DeclaredValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[DeclaredValue]
    def __init__(self, values: _Optional[_Iterable[_Union[DeclaredValue, _Mapping]]] = ...) -> None: ...

class DeclaredOptions(_message.Message):
    __slots__ = ("options",)
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DeclaredValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DeclaredValue, _Mapping]] = ...) -> None: ...
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.MessageMap[str, DeclaredValue]
    def __init__(self, options: _Optional[_Mapping[str, DeclaredValue]] = ...) -> None: ...

class DeclaredExpression(_message.Message):
    __slots__ = ("column", "literal", "call")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    column: str
    literal: DeclaredValue
    call: DeclaredCall
    def __init__(self, column: _Optional[str] = ..., literal: _Optional[_Union[DeclaredValue, _Mapping]] = ..., call: _Optional[_Union[DeclaredCall, _Mapping]] = ...) -> None: ...

class DeclaredCall(_message.Message):
    __slots__ = ("function", "operands")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    function: str
    operands: _containers.RepeatedCompositeFieldContainer[DeclaredExpression]
    def __init__(self, function: _Optional[str] = ..., operands: _Optional[_Iterable[_Union[DeclaredExpression, _Mapping]]] = ...) -> None: ...

class DeclaredColumn(_message.Message):
    __slots__ = ("name", "expression")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    expression: DeclaredExpression
    def __init__(self, name: _Optional[str] = ..., expression: _Optional[_Union[DeclaredExpression, _Mapping]] = ...) -> None: ...

class DeclaredColumns(_message.Message):
    __slots__ = ("columns",)
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[DeclaredColumn]
    def __init__(self, columns: _Optional[_Iterable[_Union[DeclaredColumn, _Mapping]]] = ...) -> None: ...

class DeclaredAggregation(_message.Message):
    __slots__ = ("key_columns", "aggregates", "window", "allowed_lateness_ms", "passthrough")
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_LATENESS_MS_FIELD_NUMBER: _ClassVar[int]
    PASSTHROUGH_FIELD_NUMBER: _ClassVar[int]
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    aggregates: _containers.RepeatedCompositeFieldContainer[DeclaredAggregate]
    window: DeclaredWindow
    allowed_lateness_ms: int
    passthrough: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key_columns: _Optional[_Iterable[str]] = ..., aggregates: _Optional[_Iterable[_Union[DeclaredAggregate, _Mapping]]] = ..., window: _Optional[_Union[DeclaredWindow, _Mapping]] = ..., allowed_lateness_ms: _Optional[int] = ..., passthrough: _Optional[_Iterable[str]] = ...) -> None: ...

class DeclaredAggregate(_message.Message):
    __slots__ = ("name", "function", "column", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DeclaredValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DeclaredValue, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    function: str
    column: str
    options: _containers.MessageMap[str, DeclaredValue]
    def __init__(self, name: _Optional[str] = ..., function: _Optional[str] = ..., column: _Optional[str] = ..., options: _Optional[_Mapping[str, DeclaredValue]] = ...) -> None: ...

class DeclaredWindow(_message.Message):
    __slots__ = ("kind", "size_ms", "slide_ms", "offset_ms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[DeclaredWindow.Kind]
        KIND_TUMBLING_EVENT_TIME: _ClassVar[DeclaredWindow.Kind]
        KIND_SLIDING_EVENT_TIME: _ClassVar[DeclaredWindow.Kind]
        KIND_SESSION_EVENT_TIME: _ClassVar[DeclaredWindow.Kind]
        KIND_TUMBLING_PROCESSING_TIME: _ClassVar[DeclaredWindow.Kind]
        KIND_SLIDING_PROCESSING_TIME: _ClassVar[DeclaredWindow.Kind]
        KIND_SESSION_PROCESSING_TIME: _ClassVar[DeclaredWindow.Kind]
    KIND_UNSPECIFIED: DeclaredWindow.Kind
    KIND_TUMBLING_EVENT_TIME: DeclaredWindow.Kind
    KIND_SLIDING_EVENT_TIME: DeclaredWindow.Kind
    KIND_SESSION_EVENT_TIME: DeclaredWindow.Kind
    KIND_TUMBLING_PROCESSING_TIME: DeclaredWindow.Kind
    KIND_SLIDING_PROCESSING_TIME: DeclaredWindow.Kind
    KIND_SESSION_PROCESSING_TIME: DeclaredWindow.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SIZE_MS_FIELD_NUMBER: _ClassVar[int]
    SLIDE_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_MS_FIELD_NUMBER: _ClassVar[int]
    kind: DeclaredWindow.Kind
    size_ms: int
    slide_ms: int
    offset_ms: int
    def __init__(self, kind: _Optional[_Union[DeclaredWindow.Kind, str]] = ..., size_ms: _Optional[int] = ..., slide_ms: _Optional[int] = ..., offset_ms: _Optional[int] = ...) -> None: ...

class DeclaredJoin(_message.Message):
    __slots__ = ("left_key_columns", "right_key_columns", "how", "window", "interval", "as_of")
    LEFT_KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RIGHT_KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    left_key_columns: _containers.RepeatedScalarFieldContainer[str]
    right_key_columns: _containers.RepeatedScalarFieldContainer[str]
    how: str
    window: DeclaredWindow
    interval: DeclaredInterval
    as_of: DeclaredAsOf
    def __init__(self, left_key_columns: _Optional[_Iterable[str]] = ..., right_key_columns: _Optional[_Iterable[str]] = ..., how: _Optional[str] = ..., window: _Optional[_Union[DeclaredWindow, _Mapping]] = ..., interval: _Optional[_Union[DeclaredInterval, _Mapping]] = ..., as_of: _Optional[_Union[DeclaredAsOf, _Mapping]] = ...) -> None: ...

class DeclaredInterval(_message.Message):
    __slots__ = ("lower_ms", "upper_ms")
    LOWER_MS_FIELD_NUMBER: _ClassVar[int]
    UPPER_MS_FIELD_NUMBER: _ClassVar[int]
    lower_ms: int
    upper_ms: int
    def __init__(self, lower_ms: _Optional[int] = ..., upper_ms: _Optional[int] = ...) -> None: ...

class DeclaredAsOf(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeclaredUnion(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeclaredFunction(_message.Message):
    __slots__ = ("method", "name", "arguments", "columns", "key_columns")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: DeclaredValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[DeclaredValue, _Mapping]] = ...) -> None: ...
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    method: str
    name: str
    arguments: _containers.MessageMap[str, DeclaredValue]
    columns: _containers.RepeatedCompositeFieldContainer[DeclaredField]
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, method: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[_Mapping[str, DeclaredValue]] = ..., columns: _Optional[_Iterable[_Union[DeclaredField, _Mapping]]] = ..., key_columns: _Optional[_Iterable[str]] = ...) -> None: ...

class DeclaredExternal(_message.Message):
    __slots__ = ("task", "columns", "key_columns")
    TASK_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    KEY_COLUMNS_FIELD_NUMBER: _ClassVar[int]
    task: str
    columns: _containers.RepeatedCompositeFieldContainer[DeclaredField]
    key_columns: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, task: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[DeclaredField, _Mapping]]] = ..., key_columns: _Optional[_Iterable[str]] = ...) -> None: ...

class DeclaredPayload(_message.Message):
    __slots__ = ("job", "node_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    job: DeclaredJob
    node_id: int
    def __init__(self, job: _Optional[_Union[DeclaredJob, _Mapping]] = ..., node_id: _Optional[int] = ...) -> None: ...
