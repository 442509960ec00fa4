"""Services of snapline/protos/external.proto; written by make protos. Types: external_pb2_grpc.pyi."""

from snapline.protos import external_pb2
from snapline.protos.service_classes import define_services

define_services(globals(), external_pb2.DESCRIPTOR)
