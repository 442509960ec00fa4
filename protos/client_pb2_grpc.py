"""Services of snapline/protos/client.proto; written by make protos. Types: client_pb2_grpc.pyi."""

from snapline.protos import client_pb2
from snapline.protos.service_classes import define_services

define_services(globals(), client_pb2.DESCRIPTOR)
