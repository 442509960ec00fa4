"""How Kafka is reached, and what its errors mean for a user.

Decides the settings of librdkafka that the connectors need to be right and that a user may not change, that a password
never stands in a message, and the one line for each way in which a cluster is out of reach. It does not know topics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from snapline.dataflow.api.user_metrics import Counter
from snapline.dataflow.errors import ConnectorError

METADATA_SECONDS = 15.0
"""So long the driver waits for a broker at submission."""
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
Settings = Mapping[str, str | int | float | bool]


def library() -> Any:
    """confluent-kafka, or a line that says how to get it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConnectorError("Kafka needs confluent-kafka: pip install 'snapline[kafka]'") from error
    return confluent_kafka


def checked(settings: Settings | None, reserved: Mapping[str, str], connector: str) -> dict[str, Any]:
    """The user's settings. Raises ConnectorError for one that is not theirs, with the way to say it."""
    given = dict(settings or {})
    for name, instead in reserved.items():
        if name in given:
            raise ConnectorError(f"{connector}: {name} is not to be set; {instead}")
    return given


def how_to_reach(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that a consumer needs as well as a producer."""
    reaching = ("security.", "sasl.", "ssl.", "enable.ssl.", "oauth_cb")
    return {name: value for name, value in settings.items() if name.startswith(reaching)}


class AskedTopicIds:
    """What Kafka called topics when they were created, beside their names, which come again when one is deleted and
    created anew: asked for now, and answered while the caller goes on."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, Any], topics: Sequence[str]) -> None:
        from confluent_kafka.admin import AdminClient

        kafka = library()
        self._admin = AdminClient({**how_to_reach(settings), "bootstrap.servers": bootstrap_servers, "log_level": 0})
        self._asked = self._admin.describe_topics(kafka.TopicCollection(list(topics)), request_timeout=METADATA_SECONDS)

    @property
    def is_answered(self) -> bool:
        """Whether `answer` has no need to wait."""
        return all(answer.done() for answer in self._asked.values())

    def answer(self) -> dict[str, str]:
        """The ids by topic. Nothing of a cluster that has none (before 2.8), does not tell them, or is away."""
        found = {}
        for topic, answer in self._asked.items():
            with contextlib.suppress(library().KafkaException):
                found[topic] = str(answer.result().topic_id)
        return {topic: topic_id for topic, topic_id in found.items() if topic_id != NO_TOPIC_ID}


class CredentialsRefused(ConnectorError):
    """The brokers refuse the credentials of the client, so that waiting does not help."""


class ClusterHealth:
    """What librdkafka reports from its own threads, kept until a reader or writer asks."""

    def __init__(self, bootstrap_servers: str, errors: Counter | None = None) -> None:
        """`errors` counts what is reported."""
        self._bootstrap_servers = bootstrap_servers
        self._errors = errors
        self.down = False
        """All brokers were out of reach when something was last heard of them."""
        self.topic_missing = False
        """Some topic was not there when it was last asked for, which may be for a moment only."""
        self._refused: str | None = None
        self._fatal: str | None = None

    def on_error(self, error: Any) -> None:
        """Take an error from librdkafka's `error_cb`, on whatever thread."""
        if self._errors is not None:
            self._errors.inc()
        kafka_error = library().KafkaError
        code = error.code()
        if code == kafka_error._ALL_BROKERS_DOWN:  # noqa: SLF001 - its public name
            self.down = True
        elif code == kafka_error.UNKNOWN_TOPIC_OR_PART:
            self.topic_missing = True
        elif code == kafka_error._AUTHENTICATION:  # noqa: SLF001
            self._refused = refused(self._bootstrap_servers, error)
        elif error.fatal():
            self._fatal = f"Kafka at {self._bootstrap_servers}: {error.str()}"

    def check(self) -> None:
        """Raises what cannot be cured by waiting."""
        if self._refused is not None:
            raise CredentialsRefused(self._refused)
        if self._fatal is not None:
            raise ConnectorError(self._fatal)


def refused(bootstrap_servers: str, error: Any) -> str:
    """Say that the brokers refuse the credentials of this client."""
    reason = error.str().rpartition(": ")[2]
    return (
        f"Kafka at {bootstrap_servers} refuses the credentials ({reason}); check sasl.mechanism, sasl.username and sasl.password "
        "in settings="
    )


def out_of_reach(bootstrap_servers: str, why: str) -> ConnectorError:
    """Say that no broker answers at these addresses, and why."""
    return ConnectorError(
        f"no Kafka broker answers at {bootstrap_servers} ({why}); check the address, that the cluster runs, and security.protocol"
    )


class Metadata:
    """What the driver asks of a cluster before a job starts; a context manager."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, Any]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._health = ClusterHealth(bootstrap_servers)
        self.library = library()
        own = {
            "bootstrap.servers": bootstrap_servers, "group.id": "snapline-metadata", "enable.auto.commit": False,
            "error_cb": self._health.on_error, "log_level": 0,
        }  # fmt: skip
        try:
            self.consumer = self.library.Consumer({"socket.timeout.ms": 10_000, **settings, **own})
        except self.library.KafkaException as error:
            raise ConnectorError(f"Kafka: {error.args[0].str()}") from error

    def __enter__(self) -> Metadata:
        """Return the connection itself, which the end of the block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection at the end of the block."""
        self.consumer.close()

    def partitions(self, topic: str, connector: str) -> list[int]:
        """Numbers of a topic's partitions. Raises ConnectorError when it is not there, or no broker is."""
        found = self.ask(lambda: self.consumer.list_topics(topic, METADATA_SECONDS)).topics[topic]
        if found.error is not None:
            raise ConnectorError(
                f"{connector}: topic {topic!r} cannot be read: {found.error.str()}; create it first, or correct its name"
                if found.error.code() == self.library.KafkaError.UNKNOWN_TOPIC_OR_PART
                else f"{connector}: topic {topic!r}: {found.error.str()}"
            )
        return sorted(found.partitions)

    def ask(self, question: Any) -> Any:
        """The answer, or the one line that says why there is none."""
        try:
            return question()
        except self.library.KafkaException as error:
            self.consumer.poll(0)  # hands over what was reported
            self._health.check()
            raise out_of_reach(self._bootstrap_servers, error.args[0].str()) from error
