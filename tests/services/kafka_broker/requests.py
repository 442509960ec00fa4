"""What each request of Kafka's protocol does, and what is answered. One method a request; the state is the
cluster's."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Callable
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl

from tests.services.kafka_broker import cluster as state
from tests.services.kafka_broker.cluster import Cluster, KafkaError
from tests.services.kafka_broker.groups import Groups

VERSIONS: dict[str, tuple[int, int]] = {
    "Produce": (3, 9), "Fetch": (4, 11), "ListOffsets": (1, 6), "Metadata": (0, 12), "OffsetCommit": (2, 8),
    "OffsetFetch": (1, 7), "FindCoordinator": (0, 4), "JoinGroup": (0, 6), "Heartbeat": (0, 4), "LeaveGroup": (0, 4),
    "SyncGroup": (0, 4), "ApiVersions": (0, 3), "CreateTopics": (2, 6), "DeleteTopics": (1, 5), "DeleteRecords": (0, 2),
    "InitProducerId": (0, 4), "OffsetForLeaderEpoch": (2, 4), "AddPartitionsToTxn": (0, 3), "AddOffsetsToTxn": (0, 3),
    "EndTxn": (0, 3), "TxnOffsetCommit": (0, 3), "CreatePartitions": (0, 3), "SaslHandshake": (0, 1),
    "SaslAuthenticate": (0, 2), "DescribeTransactions": (0, 0), "ListTransactions": (0, 1),
}  # fmt: skip
"""What is spoken: lowest and highest version."""
MODULES = (admin, consumer, metadata, producer, sasl)


def message(name: str) -> Any:
    """The class of a request or response."""
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


REQUESTS = {message(f"{name}Request").API_KEY: (name, message(f"{name}Request")) for name in VERSIONS}
EARLIEST, LATEST = -2, -1


class Requests:
    """Answers for one node."""

    def __init__(self, server: Any, node: int) -> None:
        self.server = server
        self.node = node

    @property
    def cluster(self) -> Cluster:
        """Of all nodes."""
        return self.server.cluster

    @property
    def groups(self) -> Groups:
        """Of all nodes."""
        return self.server.groups

    async def answer(self, name: str, request: Any, version: int) -> Any:
        """The response, or None for none."""
        method: Callable[..., Any] = getattr(self, f"_{name}")
        response = message(f"{name}Response")
        found = method(request, version, response)
        return await found if asyncio.iscoroutine(found) else found

    # --- metadata ---------------------------------------------------------------------------------------------------

    def _ApiVersions(self, request: Any, version: int, response: Any) -> Any:
        keys = [
            response.ApiVersion(api_key=key, min_version=VERSIONS[name][0], max_version=VERSIONS[name][1])
            for key, (name, _) in REQUESTS.items()
        ]
        return response(error_code=0 if version <= VERSIONS["ApiVersions"][1] else 35, api_keys=keys)

    def _Metadata(self, request: Any, version: int, response: Any) -> Any:
        wanted = request.topics
        if wanted is None or (version == 0 and not wanted):
            names = list(self.cluster.topics)
        else:
            names = [each.name for each in wanted if each.name is not None]
        topics = []
        for name in names:
            topic = self.cluster.topics.get(name)
            if topic is None and self.server.auto_create_partitions and request.allow_auto_topic_creation:
                topic = self.cluster.create_topic(name, self.server.auto_create_partitions)
            if topic is None:
                topics.append(
                    response.MetadataResponseTopic(
                        error_code=state.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[]
                    )
                )
                continue
            partitions = []
            for index in range(len(topic.partitions)):
                leader = self.server.leader(name, index)
                partitions.append(
                    response.MetadataResponseTopic.MetadataResponsePartition(
                        error_code=0,
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=0,
                        replica_nodes=[leader],
                        isr_nodes=[leader],
                        offline_replicas=[],
                    )
                )
            topics.append(
                response.MetadataResponseTopic(error_code=0, name=name, topic_id=topic.topic_id, partitions=partitions)
            )
        live = self.server.live
        brokers = [
            response.MetadataResponseBroker(node_id=node, host="127.0.0.1", port=self.server.ports[node])
            for node in live
        ]
        return response(brokers=brokers, cluster_id="snapline-tests", controller_id=live[0], topics=topics)

    def _FindCoordinator(self, request: Any, version: int, response: Any) -> Any:
        def place(key: str) -> tuple[int, int]:
            node = self.server.coordinator(key)
            return node, self.server.ports[node]

        if version < 4:
            node, port = place(request.key)
            return response(node_id=node, host="127.0.0.1", port=port)
        found = []
        for key in request.coordinator_keys:
            node, port = place(key)
            found.append(response.Coordinator(key=key, node_id=node, host="127.0.0.1", port=port, error_code=0))
        return response(coordinators=found)

    def _CreateTopics(self, request: Any, version: int, response: Any) -> Any:
        results = []
        for each in request.topics:
            code = 0
            try:
                config = {pair.name: pair.value for pair in each.configs}
                count = each.num_partitions if each.num_partitions > 0 else 1
                self.cluster.create_topic(each.name, count, config)
            except KafkaError as error:
                code = error.code
            results.append(response.CreatableTopicResult(name=each.name, error_code=code, configs=[]))
        return response(topics=results)

    def _DeleteTopics(self, request: Any, version: int, response: Any) -> Any:
        results = []
        for name in request.topic_names:
            code = 0 if name in self.cluster.topics else state.UNKNOWN_TOPIC_OR_PARTITION
            if not code:
                self.cluster.record("no_topic", name)
            results.append(response.DeletableTopicResult(name=name, error_code=code))
        return response(responses=results)

    def _CreatePartitions(self, request: Any, version: int, response: Any) -> Any:
        results = []
        for each in request.topics:
            code = 0 if each.name in self.cluster.topics else state.UNKNOWN_TOPIC_OR_PARTITION
            if not code:
                self.cluster.record("more_partitions", each.name, each.count)
            results.append(response.CreatePartitionsTopicResult(name=each.name, error_code=code))
        self.server.wake()
        return response(results=results)

    def _DeleteRecords(self, request: Any, version: int, response: Any) -> Any:
        def one(topic: str, each: Any) -> dict[str, Any]:
            log = self._led(topic, each.partition_index)
            offset = log.end if each.offset < 0 else each.offset
            if offset > log.end:
                raise KafkaError(state.OFFSET_OUT_OF_RANGE)
            self.cluster.record("start", topic, each.partition_index, offset)
            return {"low_watermark": offset}

        part = response.DeleteRecordsTopicResult.DeleteRecordsPartitionResult
        topics = [
            response.DeleteRecordsTopicResult(
                name=t.name, partitions=[self._each(part, one, t.name, p, "partition_index") for p in t.partitions]
            )
            for t in request.topics
        ]
        return response(topics=topics)

    def _each(self, part: Any, one: Callable[[str, Any], dict[str, Any]], topic: str, asked: Any, index: str) -> Any:
        """The answer for one partition; an error is its code."""
        number = {index: getattr(asked, index)}
        try:
            return part(**number, error_code=0, **one(topic, asked))
        except KafkaError as error:
            return part(**number, error_code=error.code)

    def _led(self, topic: str, partition: int) -> state.PartitionLog:
        """The log, if this node leads it."""
        log = self.cluster.log(topic, partition)
        if self.server.leader(topic, partition) != self.node:
            raise KafkaError(state.NOT_LEADER)
        return log

    def _coordinates(self, key: str) -> None:
        if self.server.coordinator(key) != self.node:
            raise KafkaError(state.NOT_COORDINATOR)

    # --- logs -------------------------------------------------------------------------------------------------------

    def _Produce(self, request: Any, version: int, response: Any) -> Any:
        def one(topic: str, asked: Any) -> dict[str, Any]:
            self._led(topic, asked.index)
            offset = self.cluster.produce(topic, asked.index, bytes(asked.records), request.transactional_id)
            return {"base_offset": offset, "log_start_offset": self.cluster.log(topic, asked.index).start}

        part = response.TopicProduceResponse.PartitionProduceResponse
        topics = [
            response.TopicProduceResponse(
                name=t.name,
                partition_responses=[self._each(part, one, t.name, p, "index") for p in t.partition_data],
            )
            for t in request.topic_data
        ]
        self.server.wake()
        return None if request.acks == 0 else response(responses=topics)

    async def _Fetch(self, request: Any, version: int, response: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + request.max_wait_ms / 1000
        while True:
            topics, size, urgent = self._fetched(request, response)
            left = deadline - asyncio.get_running_loop().time()
            if size >= max(request.min_bytes, 1) or urgent or left <= 0:
                return response(responses=topics, session_id=0)
            await self.server.changed(left)

    def _fetched(self, request: Any, response: Any) -> tuple[list[Any], int, bool]:
        read_committed = request.isolation_level == 1
        part = response.FetchableTopicResponse.PartitionData
        size, urgent = 0, False
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                try:
                    log = self._led(topic.topic, asked.partition)
                    if not log.start <= asked.fetch_offset <= log.end:
                        raise KafkaError(state.OFFSET_OUT_OF_RANGE)
                except KafkaError as error:
                    urgent = True
                    partitions.append(
                        part(partition_index=asked.partition, error_code=error.code, high_watermark=-1, records=b"")
                    )
                    continue
                limit = log.last_stable if read_committed else log.end
                room = min(asked.partition_max_bytes, max(request.max_bytes - size, 0))
                records = log.read(asked.fetch_offset, limit, room) if not size or room else b""
                size += len(records)
                aborted = [
                    part.AbortedTransaction(producer_id=producer_id, first_offset=first)
                    for producer_id, first, last in log.aborted
                    if last >= asked.fetch_offset and first < limit
                ]
                partitions.append(
                    part(
                        partition_index=asked.partition,
                        error_code=0,
                        high_watermark=log.end,
                        last_stable_offset=log.last_stable,
                        log_start_offset=log.start,
                        records=records,
                        aborted_transactions=aborted if read_committed else None,
                    )
                )
            topics.append(response.FetchableTopicResponse(topic=topic.topic, partitions=partitions))
        return topics, size, urgent

    def _ListOffsets(self, request: Any, version: int, response: Any) -> Any:
        def one(topic: str, asked: Any) -> dict[str, Any]:
            log = self._led(topic, asked.partition_index)
            if asked.timestamp == EARLIEST:
                return {"timestamp": -1, "offset": log.start, "leader_epoch": 0}
            if asked.timestamp == LATEST:
                end = log.last_stable if request.isolation_level == 1 else log.end
                return {"timestamp": -1, "offset": end, "leader_epoch": 0}
            for batch in log.batches:
                if batch.last_offset >= log.start and not batch.is_control and batch.max_time_ms >= asked.timestamp:
                    found = batch.first_at(asked.timestamp)
                    if found is not None:
                        return {"timestamp": found[1], "offset": found[0], "leader_epoch": 0}
            return {"timestamp": -1, "offset": -1, "leader_epoch": -1}

        part = response.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
        topics = [
            response.ListOffsetsTopicResponse(
                name=t.name, partitions=[self._each(part, one, t.name, p, "partition_index") for p in t.partitions]
            )
            for t in request.topics
        ]
        return response(topics=topics)

    def _OffsetForLeaderEpoch(self, request: Any, version: int, response: Any) -> Any:
        def one(topic: str, asked: Any) -> dict[str, Any]:
            return {"leader_epoch": 0, "end_offset": self._led(topic, asked.partition).end}

        part = response.OffsetForLeaderTopicResult.EpochEndOffset
        topics = [
            response.OffsetForLeaderTopicResult(
                topic=t.topic, partitions=[self._each(part, one, t.topic, p, "partition") for p in t.partitions]
            )
            for t in request.topics
        ]
        return response(topics=topics)

    # --- transactions -----------------------------------------------------------------------------------------------

    def _InitProducerId(self, request: Any, version: int, response: Any) -> Any:
        try:
            if not request.transactional_id:
                return response(producer_id=self.cluster.new_producer_id(), producer_epoch=0)
            self._coordinates(request.transactional_id)
            if not 0 < request.transaction_timeout_ms <= self.server.transaction_max_timeout_ms:
                raise KafkaError(state.INVALID_TRANSACTION_TIMEOUT)
            producer_id, epoch = (request.producer_id, request.producer_epoch) if version >= 3 else (-1, -1)
            made = self.cluster.init_producer(
                request.transactional_id, request.transaction_timeout_ms, producer_id, epoch
            )
            self.server.wake()
            return response(producer_id=made.producer_id, producer_epoch=made.epoch)
        except KafkaError as error:
            return response(error_code=error.code, producer_id=-1, producer_epoch=-1)

    def _AddPartitionsToTxn(self, request: Any, version: int, response: Any) -> Any:
        transactional_id = request.v3_and_below_transactional_id
        asked = {(t.name, p) for t in request.v3_and_below_topics for p in t.partitions}
        code = 0
        try:
            self._coordinates(transactional_id)
            known = self._current(
                request.v3_and_below_producer_id, request.v3_and_below_producer_epoch, transactional_id, version
            )
            for topic, partition in asked:
                self.cluster.log(topic, partition)
            self.cluster.add_to_transaction(transactional_id, known, asked, set())
        except KafkaError as error:
            code = error.code
        one = response.AddPartitionsToTxnTopicResult
        part = one.AddPartitionsToTxnPartitionResult
        results = [
            one(
                name=t.name,
                results_by_partition=[part(partition_index=p, partition_error_code=code) for p in t.partitions],
            )
            for t in request.v3_and_below_topics
        ]
        return response(results_by_topic_v3_and_below=results)

    def _current(self, producer_id: int, epoch: int, transactional_id: str, version: int) -> state.Transaction:
        """As `Cluster.current`, with the code that this version knows."""
        try:
            return self.cluster.current(transactional_id, producer_id, epoch)
        except KafkaError as error:
            if error.code == state.INVALID_PRODUCER_EPOCH and version >= 2:
                raise KafkaError(state.PRODUCER_FENCED) from None
            raise

    def _AddOffsetsToTxn(self, request: Any, version: int, response: Any) -> Any:
        try:
            self._coordinates(request.transactional_id)
            known = self._current(request.producer_id, request.producer_epoch, request.transactional_id, version)
            self.cluster.add_to_transaction(request.transactional_id, known, set(), {request.group_id})
            return response(error_code=0)
        except KafkaError as error:
            return response(error_code=error.code)

    def _TxnOffsetCommit(self, request: Any, version: int, response: Any) -> Any:
        def one(topic: str, asked: Any) -> dict[str, Any]:
            self._coordinates(request.group_id)
            known = self._current(request.producer_id, request.producer_epoch, request.transactional_id, 1)
            if request.group_id not in known.groups:
                raise KafkaError(state.INVALID_TXN_STATE)
            self.cluster.log(topic, asked.partition_index)
            self.cluster.record(
                "pending_offset", request.producer_id, request.group_id, topic, asked.partition_index,
                asked.committed_offset, asked.committed_metadata or "",
            )  # fmt: skip
            return {}

        part = response.TxnOffsetCommitResponseTopic.TxnOffsetCommitResponsePartition
        topics = [
            response.TxnOffsetCommitResponseTopic(
                name=t.name, partitions=[self._each(part, one, t.name, p, "partition_index") for p in t.partitions]
            )
            for t in request.topics
        ]
        return response(topics=topics)

    def _EndTxn(self, request: Any, version: int, response: Any) -> Any:
        try:
            self._coordinates(request.transactional_id)
            self._current(request.producer_id, request.producer_epoch, request.transactional_id, version)
            self.cluster.end_transaction(
                request.transactional_id, request.producer_id, request.producer_epoch, commit=request.committed
            )
            self.server.wake()
            return response(error_code=0)
        except KafkaError as error:
            return response(error_code=error.code)

    def _DescribeTransactions(self, request: Any, version: int, response: Any) -> Any:
        found = []
        for transactional_id in request.transactional_ids:
            known = self.cluster.transactions.get(transactional_id)
            code = 0 if known is not None else state.TRANSACTIONAL_ID_NOT_FOUND
            if self.server.coordinator(transactional_id) != self.node:
                known, code = None, state.NOT_COORDINATOR
            one = response.TransactionState
            if known is None:
                found.append(one(error_code=code, transactional_id=transactional_id, topics=[]))
                continue
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(known.partitions):
                topics.setdefault(topic, []).append(partition)
            found.append(
                one(
                    error_code=0,
                    transactional_id=transactional_id,
                    transaction_state=known.state,
                    transaction_timeout_ms=known.timeout_ms,
                    transaction_start_time_ms=known.start_ms,
                    producer_id=known.producer_id,
                    producer_epoch=known.epoch,
                    topics=[one.TopicData(topic=t, partitions=p) for t, p in topics.items()],
                )
            )
        return response(transaction_states=found)

    def _ListTransactions(self, request: Any, version: int, response: Any) -> Any:
        found = [
            response.TransactionState(
                transactional_id=transactional_id, producer_id=known.producer_id, transaction_state=known.state
            )
            for transactional_id, known in self.cluster.transactions.items()
            if self.server.coordinator(transactional_id) == self.node
            and (not request.state_filters or known.state in request.state_filters)
        ]
        return response(error_code=0, unknown_state_filters=[], transaction_states=found)

    # --- groups -----------------------------------------------------------------------------------------------------

    def _OffsetCommit(self, request: Any, version: int, response: Any) -> Any:
        def one(topic: str, asked: Any) -> dict[str, Any]:
            self._coordinates(request.group_id)
            self.groups.may_commit(request.group_id, request.member_id, request.generation_id_or_member_epoch)
            self.cluster.log(topic, asked.partition_index)
            self.cluster.record(
                "offset", request.group_id, topic, asked.partition_index, asked.committed_offset,
                asked.committed_metadata or "",
            )  # fmt: skip
            return {}

        part = response.OffsetCommitResponseTopic.OffsetCommitResponsePartition
        topics = [
            response.OffsetCommitResponseTopic(
                name=t.name, partitions=[self._each(part, one, t.name, p, "partition_index") for p in t.partitions]
            )
            for t in request.topics
        ]
        return response(topics=topics)

    def _OffsetFetch(self, request: Any, version: int, response: Any) -> Any:
        if self.server.coordinator(request.group_id) != self.node:
            return response(error_code=state.NOT_COORDINATOR, topics=[])
        known = {(t, p): value for (g, t, p), value in self.cluster.offsets.items() if g == request.group_id}
        asked: dict[str, list[int]] = {}
        if request.topics is None:
            for topic, partition in sorted(known):
                asked.setdefault(topic, []).append(partition)
        else:
            asked = {t.name: list(t.partition_indexes) for t in request.topics}
        unstable = {key for pending in self.cluster.pending_offsets.values() for key in pending}
        part = response.OffsetFetchResponseTopic.OffsetFetchResponsePartition
        topics = []
        for topic, numbers in asked.items():
            partitions = []
            for number in numbers:
                offset, metadata_text = known.get((topic, number), (-1, ""))
                waits = request.require_stable and (request.group_id, topic, number) in unstable
                partitions.append(
                    part(
                        partition_index=number,
                        committed_offset=-1 if waits else offset,
                        committed_leader_epoch=-1,
                        metadata=metadata_text,
                        error_code=88 if waits else 0,
                    )
                )
            topics.append(response.OffsetFetchResponseTopic(name=topic, partitions=partitions))
        return response(topics=topics, error_code=0)

    async def _JoinGroup(self, request: Any, version: int, response: Any) -> Any:
        try:
            self._coordinates(request.group_id)
            request.API_VERSION = version
            group, member = await self.groups.join(request)
        except KafkaError as error:
            given = error.args[0] if error.code == state.MEMBER_ID_REQUIRED else request.member_id
            return response(
                error_code=error.code, generation_id=-1, protocol_name="", leader="", member_id=given, members=[]
            )
        members = []
        if member.member_id == group.leader:
            members = [
                response.JoinGroupResponseMember(
                    member_id=each.member_id, metadata=dict(each.protocols).get(group.protocol, b"")
                )
                for each in group.members.values()
            ]
        return response(
            error_code=0, generation_id=group.generation, protocol_name=group.protocol, leader=group.leader,
            member_id=member.member_id, members=members,
        )  # fmt: skip

    async def _SyncGroup(self, request: Any, version: int, response: Any) -> Any:
        try:
            self._coordinates(request.group_id)
            return response(error_code=0, assignment=await self.groups.sync(request))
        except KafkaError as error:
            return response(error_code=error.code, assignment=b"")

    def _Heartbeat(self, request: Any, version: int, response: Any) -> Any:
        try:
            self._coordinates(request.group_id)
            self.groups.heartbeat(request)
            return response(error_code=0)
        except KafkaError as error:
            return response(error_code=error.code)

    def _LeaveGroup(self, request: Any, version: int, response: Any) -> Any:
        member_ids = [request.member_id] if version < 3 else [each.member_id for each in request.members]
        self.groups.leave(request.group_id, member_ids)
        if version < 3:
            return response(error_code=0)
        members = [
            response.MemberResponse(member_id=member_id, group_instance_id=None, error_code=0)
            for member_id in member_ids
        ]
        return response(error_code=0, members=members)

    # --- who is it --------------------------------------------------------------------------------------------------

    def _SaslHandshake(self, request: Any, version: int, response: Any) -> Any:
        return response(error_code=0 if request.mechanism == "PLAIN" else 33, mechanisms=["PLAIN"])

    def _SaslAuthenticate(self, request: Any, version: int, response: Any) -> Any:
        _, user, password = bytes(request.auth_bytes).decode().split("\0")
        if self.server.users is not None and self.server.users.get(user) != password:
            text = "Authentication failed: Invalid username or password"
            return response(error_code=state.SASL_AUTHENTICATION_FAILED, error_message=text, auth_bytes=b"")
        return response(error_code=0, auth_bytes=b"")


def place_of(key: str, count: int) -> int:
    """A stable number below `count`."""
    return binascii.crc32(key.encode()) % count
