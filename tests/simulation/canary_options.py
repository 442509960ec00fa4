"""What planted bugs need to show: options that several of them share."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.options import Options


def on_machines(options: Options) -> Options:
    """State is read from the copies that TaskManagers keep on their machine, of which some are damaged."""
    faults = replace(options.faults, enabled=frozenset({"kill task manager", "damage local copies"}), mean_pause_ms=150)
    settings = {
        **options.job_settings,
        "execution.state-recovery.from-local": "true",
        "execution.checkpointing.interval": "30 ms",
        "execution.checkpointing.timeout": "20 s",
    }
    cluster = {**options.cluster_settings, "execution.checkpointing.data-inline-threshold": "0 kb"}
    return replace(
        options,
        job_settings=settings,
        cluster_settings=cluster,
        faults=faults,
        machines=1,
        pause_ms=150,
        safety_ms=5000,
    )


def nothing_is_lost(options: Options) -> Options:
    """Checkpoints are given up, and yet whatever was written must go."""
    faults = replace(options.faults, enabled=frozenset({"slow task", "break data stream"}), mean_pause_ms=300)
    cluster = {**options.cluster_settings, "execution.checkpointing.data-inline-threshold": "0 kb"}
    return replace(options, faults=faults, cluster_settings=cluster, pause_ms=150)


def task_managers_die(options: Options) -> Options:
    """They die now and then, and the job takes long enough."""
    faults = replace(options.faults, enabled=options.faults.enabled | {"kill task manager"}, mean_pause_ms=800)
    return replace(options, faults=faults, pause_ms=150)


def deposed(options: Options) -> Options:
    """Leaders are replaced while they still run."""
    faults = replace(options.faults, enabled=options.faults.enabled | {"replace coordinator"}, mean_pause_ms=800)
    return replace(options, faults=faults, coordinators=0, pause_ms=150)


def on_zookeeper(options: Options) -> Options:
    """The same, and sessions end."""
    chosen = deposed(options)
    faults = replace(chosen.faults, enabled=chosen.faults.enabled | {"expire session"})
    return replace(chosen, faults=faults, coordinators=2)
