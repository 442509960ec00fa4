"""Services of snapline/protos/relay.proto; written by make protos. Types: relay_pb2_grpc.pyi."""

from snapline.protos import relay_pb2
from snapline.protos.service_classes import define_services

define_services(globals(), relay_pb2.DESCRIPTOR)
