"""Transactions of Kafka seen from outside their producer: to end one that another process began, to list what is open,
to abort it.

Decides what the answers mean. A transaction is named by transactional id, producer id and epoch; an id is used for one
transaction only, so these three can never name another. To commit one again that is committed is no error, so a
committable may come as often as it likes. One that Kafka has aborted (it was open for too long, or somebody began a new
one with its id) is lost, and said to be. Librdkafka cannot resume a transaction, so EndTxn is sent as it is, built from
kafka-python's schema classes; up to version 4, whose answer leaves the epoch as it was.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snapline.connectors.kafka.connection import CredentialsRefused, Metadata, how_to_reach, out_of_reach
from snapline.dataflow.errors import ConnectorError

PATIENCE_SECONDS = 60.0
"""A coordinator that does not answer is asked again for so long; then the task fails, and its restore commits again."""
PAUSE_SECONDS = 0.1
BOOTSTRAP_MS = 3_000
ABORT_TIMEOUT_MS = 60_000
SEPARATOR = ":"
NUMBER = re.compile("[0-9]{1,18}")
"""In names of up to 32,767 letters, which anybody may have given to a transaction: Python makes no number of so many
digits."""
CONVERTED = {
    "security.protocol": "security_protocol", "sasl.mechanism": "sasl_mechanism", "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username", "sasl.password": "sasl_plain_password", "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile", "ssl.key.location": "ssl_keyfile", "ssl.key.password": "ssl_password",
}  # fmt: skip
"""Settings of librdkafka that say how a cluster is reached, and kafka-python's names for them."""
UNVERIFIED = "enable.ssl.certificate.verification"
RETRIABLE = frozenset({14, 15, 16, 51, 5, 6, 7, 13})
"""Coordinator loading, not available, or elsewhere; concurrent transactions; leaders and connections."""
ENDED_OTHERWISE = frozenset({47, 48, 90})
UNKNOWN = frozenset({49, 59, 105})
log = logging.getLogger(__name__)


def converted(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings for kafka-python. Raises ConnectorError for ways to prove who one is that only librdkafka has."""
    for name, value in settings.items():
        if (
            name.startswith(("sasl.", "ssl."))
            and name not in CONVERTED
            and name != "ssl.endpoint.identification.algorithm"
        ) or (name == UNVERIFIED and str(value).lower() != "true"):
            raise ConnectorError(
                f"KafkaSink: {name} cannot be used with guarantee='exactly_once', whose commits take another way to the cluster; "
                "use SASL PLAIN or SCRAM, or TLS with files, or guarantee='at_least_once'"
            )
    found = {CONVERTED[name]: value for name, value in settings.items() if name in CONVERTED}
    if "security_protocol" in found:
        found["security_protocol"] = str(found["security_protocol"]).upper()
    if settings.get("ssl.endpoint.identification.algorithm") == "none":
        found["ssl_check_hostname"] = False
    return found


def require_protocol() -> None:
    """Raise ConnectorError where the library is missing that commits go through, with the way to get it."""
    try:
        import kafka.protocol.producer  # noqa: F401
    except ImportError as error:
        raise ConnectorError(
            "KafkaSink commits with guarantee='exactly_once' through kafka-python, which is not there: pip install 'snapline[kafka]' on every "
            "machine, or use guarantee='at_least_once'"
        ) from error


@dataclass(frozen=True, slots=True)
class TransactionName:
    """`<prefix>:<job>:<sink's uid>:<subtask>:<attempt>:<number>`; a name is used once."""

    prefix: str
    job: str
    uid: str
    subtask: int
    attempt: str
    number: int

    def __str__(self) -> str:
        parts = (self.prefix, self.job, self.uid, self.subtask, self.attempt, self.number)
        return SEPARATOR.join(str(part) for part in parts)

    @classmethod
    def parse(cls, text: str, prefix: str, uid: str) -> TransactionName | None:
        """None when it is of another prefix or sink, or was not made by us."""
        if not text.startswith(prefix + SEPARATOR):
            return None
        parts = text[len(prefix) + 1 :].rsplit(SEPARATOR, 3)
        if len(parts) != 4 or not NUMBER.fullmatch(parts[1]) or not NUMBER.fullmatch(parts[3]):
            return None
        job, _, named = parts[0].partition(SEPARATOR)
        return cls(prefix, job, uid, int(parts[1]), parts[2], int(parts[3])) if named == uid else None

    def follows(self, other: TransactionName) -> bool:
        """Whether this is of a later attempt of the same execution graph: one that has taken the other's place."""
        graph, _, number = self.attempt.partition("_")
        known, _, earlier = other.attempt.partition("_")
        return graph == known and NUMBER.fullmatch(number) is not None and int(number) > int(earlier)


class TransactionLost(ConnectorError):
    """Rows that were pre-committed are not in Kafka, and cannot be brought there any more."""


class Transactions:
    """A connection to the coordinators, opened when it is first needed."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, Any]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._settings = settings
        self._reading = how_to_reach(settings)
        self._admin: Any = None

    def commit(self, transactional_id: str, producer_id: int, epoch: int, rows: int, checkpoint_id: int) -> None:
        """Once or again. Raises TransactionLost when it was aborted, and ConnectorError when nobody answers."""
        from kafka.protocol.producer import EndTxnRequest

        def request() -> Any:
            return EndTxnRequest(
                transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True,
                max_version=4,
            )  # fmt: skip

        code = self._ask_coordinator(transactional_id, request)
        if code == 0:
            return
        what = f"{rows} rows of checkpoint {checkpoint_id} (transaction {transactional_id})"
        if code in ENDED_OTHERWISE:
            raise TransactionLost(
                f"KafkaSink: {what} are lost: Kafka aborted the transaction before it was committed, because it was open for longer "
                "than transaction_timeout_ms, or because another job with this transactional_id_prefix runs. Write them again from "
                "their source, or go on without them with on_lost_transaction='report'. Where a job went on after the savepoint that "
                "holds them, and failed before its next checkpoint, it has written them again: start from a later snapshot of it"
            )
        if code in UNKNOWN:
            raise TransactionLost(
                f"KafkaSink: whether {what} were committed is not known any more: Kafka forgets a transaction some days after its "
                "end (transactional.id.expiration.ms), and this state is older. Look whether they are there, and go on with "
                "on_lost_transaction='report'"
            )
        raise ConnectorError(f"KafkaSink: {what} could not be committed: Kafka answers with error {code}")

    def open_ones(self) -> Sequence[str]:
        """Transactional ids with an open transaction. Nothing from a cluster that cannot tell (before Kafka 3.0)."""
        from kafka import errors

        try:
            listed = self._patiently(lambda admin: admin.list_transactions(state_filters=["Ongoing"]))
        except (errors.UnsupportedVersionError, errors.IncompatibleBrokerVersion):
            log.warning(
                "KafkaSink: this Kafka cannot list transactions; what lost attempts left open ends by its timeout"
            )
            return ()
        return [one.transactional_id for rows in listed.values() for one in rows]

    def abort(self, transactional_id: str) -> None:
        """Whoever began the open transaction is fenced."""
        from kafka.protocol.producer import InitProducerIdRequest

        def request() -> Any:
            return InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=ABORT_TIMEOUT_MS, max_version=4
            )

        code = self._ask_coordinator(transactional_id, request)
        if code:
            raise ConnectorError(
                f"KafkaSink: transaction {transactional_id} could not be aborted: Kafka answers {code}"
            )

    def close(self) -> None:
        """Close the connection to the broker."""
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close()

    def _ask_coordinator(self, transactional_id: str, request: Callable[[], Any]) -> int:
        """The code of the answer; asked again while the coordinator moves or is busy."""
        from kafka.protocol.metadata import CoordinatorType

        async def exchange(admin: Any) -> int:
            node = await admin._find_coordinator_id(transactional_id, CoordinatorType.TRANSACTION)  # noqa: SLF001
            answer = await admin._manager.send(request(), node_id=node)  # noqa: SLF001
            return int(answer.error_code)

        return int(self._patiently(lambda admin: admin._manager.run(exchange, admin), RETRIABLE))  # noqa: SLF001

    def _patiently(self, ask: Callable[[Any], Any], retriable: frozenset[int] = frozenset()) -> Any:
        from kafka import errors

        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = ask(self._connected(errors))
                if not (isinstance(answer, int) and answer in retriable):
                    return answer
                why = f"error {answer}"
            except (errors.UnsupportedVersionError, errors.IncompatibleBrokerVersion):
                raise
            except (errors.KafkaError, OSError) as error:
                why = str(error) or type(error).__name__
            self.close()  # the next connection finds the coordinator anew
            if time.monotonic() >= deadline:
                raise out_of_reach(self._bootstrap_servers, f"for {PATIENCE_SECONDS:.0f} s; {why}")
            time.sleep(PAUSE_SECONDS)

    def _connected(self, errors: Any) -> Any:
        if self._admin is None:
            from kafka import KafkaAdminClient

            made = []

            def client(**configuration: Any) -> Any:
                made.append(KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**configuration))
                return made[0]

            try:
                self._admin = KafkaAdminClient(
                    bootstrap_servers=self._bootstrap_servers.split(","), client_id="snapline-sink", kafka_client=client,
                    request_timeout_ms=10_000, bootstrap_timeout_ms=BOOTSTRAP_MS, reconnect_backoff_max_ms=200,
                    **converted(self._settings),
                )  # fmt: skip
            except errors.KafkaError:
                for one in made:  # it leaves its thread behind
                    one.close()
                    one._manager._net.stop()  # noqa: SLF001
                self._require_credentials()
                raise
        return self._admin

    def _require_credentials(self) -> None:
        """Librdkafka tells wrong credentials from brokers that are away."""
        try:
            with Metadata(self._bootstrap_servers, self._reading) as cluster:
                cluster.ask(lambda: cluster.consumer.list_topics(timeout=BOOTSTRAP_MS / 1000))
        except CredentialsRefused:
            raise
        except ConnectorError:
            return
