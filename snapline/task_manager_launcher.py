"""`snapline taskmanagers`: a Spark application whose only purpose is to bring TaskManagers to a coordinator
elsewhere."""

from __future__ import annotations

import signal
import threading

from snapline.client import ClusterClient
from snapline.dataflow.config import COORDINATOR_ADDRESS, HA_TYPE, HA_ZOOKEEPER_QUORUM, LOG_LEVEL, Configuration
from snapline.runtime.logs import make_logger
from snapline.runtime.rpc.security import TOKEN_SETTINGS, Security
from snapline.session import open_spark, stop_spark
from snapline.spark.pool import PoolSettings, TaskManagerPool, TaskManagersUnavailable
from snapline.spark.worker_reports import WorkerReports

CHECK_INTERVAL_S = 0.5


def bring_task_managers(
    configuration: Configuration, *, instances: int, slots: int, release_idle: bool = False
) -> None:
    """Keep `instances` TaskManagers of `slots` slots alive until SIGINT or SIGTERM; `release_idle`: those that no job
    needs rest until one does.

    Raises TaskManagersUnavailable when Spark cannot run them.
    """
    logger = make_logger("snapline.taskmanagers", configuration.get_option(LOG_LEVEL))
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # the handler runs on the thread that waits for the event, maybe while it holds the event's lock
        signal.signal(number, lambda *_: threading.Thread(target=stopping.set, name="stop").start())
    spark = open_spark("snapline-taskmanagers")
    address = configuration.get_option(COORDINATOR_ADDRESS)
    pool = TaskManagerPool(
        spark.host,
        PoolSettings(
            coordinator_address=address,
            task_managers=instances,
            slots=slots,
            security=Security.from_configuration(configuration),
            settings={k: v for k, v in configuration.items() if k not in TOKEN_SETTINGS},
            stay_when_idle=not release_idle,
        ),
        logger,
    )
    pool.start()
    reports = WorkerReports(pool, lambda: ClusterClient.from_configuration(configuration), logger)
    reports.start()
    if configuration.get_option(HA_TYPE) == "zookeeper":
        address = f"whoever leads, as {configuration.get_option(HA_ZOOKEEPER_QUORUM)} says"
    logger.info("TaskManagers started", coordinator=address, instances=instances, slots=slots)
    try:
        while not stopping.wait(CHECK_INTERVAL_S):
            if pool.fatal_error:
                raise TaskManagersUnavailable(pool.fatal_error)
    finally:
        pool.stop()
        reports.stop()
        if spark.ours:
            stop_spark(spark)
