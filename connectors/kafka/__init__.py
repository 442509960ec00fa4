"""Apache Kafka: topics as sources and as targets."""

from snapline.connectors.kafka.kafka_sink import KafkaSink
from snapline.connectors.kafka.kafka_source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource"]
