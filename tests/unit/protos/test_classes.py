"""Messages and services made from descriptors at run time: what protoc's own code would be, in a pool of their own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import snapline.protos
from snapline.protos import checkpoint_pb2, client_pb2, client_pb2_grpc, cluster_pb2, job_pb2
from snapline.protos.message_classes import POOL

PROTOS = sorted(p.stem for p in Path(snapline.protos.__path__[0]).glob("*.proto"))


@pytest.mark.parametrize("stem", PROTOS)
def test_each_file_has_a_module_with_all_its_messages_enums_and_services(stem):
    """By the names that protoc's own code has."""
    module = importlib.import_module(f"snapline.protos.{stem}_pb2")
    file = module.DESCRIPTOR
    values = [value.name for enum in file.enum_types_by_name.values() for value in enum.values]
    for name in [*file.message_types_by_name, *file.enum_types_by_name, *values]:
        assert hasattr(module, name), name
    for name in file.services_by_name:
        services = importlib.import_module(f"snapline.protos.{stem}_pb2_grpc")
        for made in (f"{name}Stub", f"{name}Servicer", f"add_{name}Servicer_to_server"):
            assert hasattr(services, made), made


def test_messages_and_enums_behave_as_generated_ones():
    """Fields, nested messages, maps, names of values, and the bytes of the wire."""
    envelope = cluster_pb2.Envelope(leader_session_id="s")
    envelope.messages.add().trigger_checkpoint.checkpoint_id = 7
    again = cluster_pb2.Envelope.FromString(envelope.SerializeToString())
    assert (envelope, 7) == (again, again.messages[0].trigger_checkpoint.checkpoint_id)
    assert isinstance(again.messages[0].trigger_checkpoint, checkpoint_pb2.TriggerCheckpoint)
    assert "PARTITIONING_HASH" == job_pb2.Partitioning.Name(job_pb2.PARTITIONING_HASH)
    assert "snapline.protos.cluster_pb2" == cluster_pb2.Envelope.__module__
    table = cluster_pb2.LeaderTable(job_masters={"job": cluster_pb2.LeaderInformation(address="there:1")})
    assert "there:1" == cluster_pb2.LeaderTable.FromString(table.SerializeToString()).job_masters["job"].address


def test_the_pool_of_the_process_is_left_to_others():
    """A job has a file and a message of ours by name in protobuf's default pool, and both work beside each other."""
    program = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
file = descriptor_pb2.FileDescriptorProto(name="snapline/protos/checkpoint.proto", package="snapline.v1", syntax="proto3")
file.message_type.add(name="TriggerCheckpoint").field.add(name="theirs", number=1, type=9, label=1)
pool = descriptor_pool.Default()
pool.AddSerializedFile(file.SerializeToString())
from snapline.protos.checkpoint_pb2 import TriggerCheckpoint
theirs = message_factory.GetMessageClass(pool.FindMessageTypeByName("snapline.v1.TriggerCheckpoint"))
print(TriggerCheckpoint(checkpoint_id=3).checkpoint_id, theirs(theirs="mine").theirs)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert ("3 mine\n", "") == (done.stdout, done.stderr)


def test_nothing_of_ours_is_in_the_default_pool():
    """Also after everything was imported."""
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("snapline.v1.Envelope")
    assert "snapline.v1.Envelope" == POOL.FindMessageTypeByName("snapline.v1.Envelope").full_name


def test_a_method_that_a_servicer_does_not_have_is_unimplemented():
    """As with gRPC's own generated servicers; the details name it."""

    class OnlyLists(client_pb2_grpc.ClientServiceServicer):
        def ListJobs(self, request, context):
            return client_pb2.ListJobsResponse(jobs=[client_pb2.JobOverview(job_id="a")])

    server = grpc.server(ThreadPoolExecutor(1))
    client_pb2_grpc.add_ClientServiceServicer_to_server(OnlyLists(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = client_pb2_grpc.ClientServiceStub(channel)
            assert ["a"] == [job.job_id for job in stub.ListJobs(client_pb2.ListJobsRequest()).jobs]
            with pytest.raises(grpc.RpcError) as refused:
                stub.CancelJob(client_pb2.CancelJobRequest(job_id="a"))
        assert (grpc.StatusCode.UNIMPLEMENTED, "CancelJob is not served here") == (
            refused.value.code(),
            refused.value.details(),
        )
    finally:
        server.stop(None).wait()


def test_a_file_whose_imports_are_unknown_is_refused():
    """Protobuf says so; a generated module therefore imports those of its file first."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", dependency=["snapline/protos/cluster.proto"])
    with pytest.raises(TypeError):
        descriptor_pool.DescriptorPool().AddSerializedFile(file.SerializeToString())
    assert cluster_pb2.Envelope is message_factory.GetMessageClass(POOL.FindMessageTypeByName("snapline.v1.Envelope"))
