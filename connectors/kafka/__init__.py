"""Apache Kafka: what its source and its sinks are made of."""
