"""A small Kafka broker for tests, on kafka-python's message schemas. It is not Apache Kafka.

It speaks Kafka's protocol to any client, with true transactions: idempotent producers, a transaction coordinator,
epochs and fencing, the last stable offset, the index of aborted transactions, timeouts; consumer groups; several
partitions and nodes; SASL PLAIN; a journal that outlives a crash; crashes and errors at any request. What it leaves
out: replication, quotas, compaction, retention by time, access control lists, compression of its own (batches are kept
as producers send them), checks of a batch's CRC. Run the same tests against a real cluster with `make kafka-check
BROKERS=host:port`.
"""

from tests.services.kafka_broker.server import Fault, KafkaBroker

__all__ = ["Fault", "KafkaBroker"]
