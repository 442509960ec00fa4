"""Stubs and servicers of the services of a .proto file, made from its descriptor when its module is imported.

They have the names and the behaviour of those that gRPC's own generator writes, and their types are the ones that it
writes (`x_pb2_grpc.pyi`); but they are tied to no version of grpcio, as generated code is (decision 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor


def define_services(module: dict[str, Any], file: FileDescriptor) -> None:
    """Put `XStub`, `XServicer` and `add_XServicer_to_server` of every service X into the globals of the file's
    module."""
    for name, service in file.services_by_name.items():
        for made in (_stub(service), _servicer(service), _adding(service)):
            made.__module__ = module["__name__"]
            module[made.__name__] = made
        module[f"{name}Stub"].__doc__ = f"Calls {service.full_name} through a channel."


def _shape(method: MethodDescriptor) -> str:
    """Which of gRPC's four kinds of calls it is, for example `unary_stream`."""
    return f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"


def _stub(service: ServiceDescriptor) -> type:
    """A class with one attribute for each method: what calls it."""

    def __init__(self: Any, channel: Any) -> None:  # noqa: N807
        for method in service.methods:
            call = getattr(channel, _shape(method))(
                f"/{service.full_name}/{method.name}",
                request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
                _registered_method=True,
            )
            setattr(self, method.name, call)

    return type(f"{service.name}Stub", (), {"__init__": __init__})


def _servicer(service: ServiceDescriptor) -> type:
    """A base class whose methods refuse; a servicer has its own instead."""
    methods = {method.name: _unimplemented(method.name) for method in service.methods}
    return type(f"{service.name}Servicer", (), {"__doc__": f"Serves {service.full_name}.", **methods})


def _unimplemented(name: str) -> Callable[..., NoReturn]:
    def refuse(_self: Any, _request: Any, context: Any) -> NoReturn:
        context.set_code(grpc.StatusCode.UNIMPLEMENTED)
        context.set_details(f"{name} is not served here")
        raise NotImplementedError(f"{name} is not served here")

    refuse.__name__ = name
    return refuse


def _adding(service: ServiceDescriptor) -> Callable[[Any, Any], None]:
    """The function that has a server hand calls of the service to a servicer."""

    def add(servicer: Any, server: Any) -> None:
        handlers = {
            method.name: getattr(grpc, f"{_shape(method)}_rpc_method_handler")(
                getattr(servicer, method.name),
                request_deserializer=message_factory.GetMessageClass(method.input_type).FromString,
                response_serializer=message_factory.GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        server.add_registered_method_handlers(service.full_name, handlers)

    add.__name__ = f"add_{service.name}Servicer_to_server"
    return add
