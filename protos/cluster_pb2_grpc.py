"""Services of snapline/protos/cluster.proto; written by make protos. Types: cluster_pb2_grpc.pyi."""

from snapline.protos import cluster_pb2
from snapline.protos.service_classes import define_services

define_services(globals(), cluster_pb2.DESCRIPTOR)
