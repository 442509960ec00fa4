"""Apache Kafka: topics as sources and as targets."""

from snapline.connectors.kafka.kafka_source import KafkaSource

__all__ = ["KafkaSource"]
