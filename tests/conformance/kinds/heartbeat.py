"""Adapter: scenarios of kind `heartbeat` against snapline.runtime.cores.heartbeat.

A step's `delivery` is the fate of what this side sends in it: the answer to a request, or a sender's own requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from snapline.runtime.cores.heartbeat import HeartbeatMonitor, HeartbeatSettings, HeartbeatTimer
from snapline.runtime.cores.machine import CancelTimer, StartTimer
from tests.conformance.replay import ANY, difference

LISTS = ("reported", "replies", "timeouts", "requests_sent", "unreachable")
STRICT = ("reported", "replies", "timeouts")


class Harness:
    """One monitor, its clock, and the other side as the scenario describes it."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.is_sender = {"sender": True, "receiver": False}[config["role"]]
        self.now_ms = config.get("start_ms", 10_000)
        self.timers: dict[HeartbeatTimer, tuple[int, int]] = {}
        self.armed = 0
        self.silent: set[str] = set()
        self.delivery = "ok"
        self.seen: dict[str, list[Any]] = {key: [] for key in LISTS}
        self.value: Any = None
        self.error = False
        self.monitor: HeartbeatMonitor[str] | None = None

    def construct(self) -> HeartbeatMonitor[str]:
        if self.monitor is None:
            settings = HeartbeatSettings(
                interval_ms=self.config.get("interval_ms", 10_000),
                timeout_ms=self.config["timeout_ms"],
                rpc_failure_threshold=self.config.get("failed_rpcs_until_unreachable", 2),
            )
            self.monitor = HeartbeatMonitor("conformance", settings)
            if self.is_sender:
                self.set_timers(self.monitor.start(self.now_ms))
        return self.monitor

    def payload_for(self, target: str) -> Any:
        payloads = self.config.get("payloads", {})
        return payloads.get(target, payloads.get("*"))

    def set_timers(self, effects: Iterable[StartTimer | CancelTimer]) -> None:
        """Start and stop them."""
        for effect in effects:
            assert isinstance(effect.key, HeartbeatTimer)
            if isinstance(effect, StartTimer):
                self.armed += 1
                self.timers[effect.key] = (effect.at_ms, self.armed)
            else:
                self.timers.pop(effect.key, None)

    def timer_fired(self, key: HeartbeatTimer) -> None:
        """Do what is due."""
        assert self.monitor is not None
        due = self.monitor.timer_fired(key, self.now_ms)
        for target in due.ask:
            self.seen["requests_sent"].append({"to": target, "payload": self.payload_for(target), "at": self.now_ms})
            self.delivered(target)
            if "auto_reply" in self.config and target not in self.silent and self.delivery != "unreachable":
                self.receive(target, self.config["auto_reply"])
        self.seen["timeouts"] += [{"target": target, "at": self.now_ms} for target in due.silent]
        self.set_timers(due.timers)

    def receive(self, origin: str, payload: Any) -> None:
        assert self.monitor is not None
        self.monitor.receive_heartbeat(origin, self.now_ms)
        if payload is not None and not self.monitor.is_stopped:
            self.seen["reported"].append({"from": origin, "payload": payload})

    def delivered(self, target: str) -> None:
        assert self.monitor is not None
        if self.monitor.report_delivery(target, arrived=self.delivery == "ok"):
            self.seen["unreachable"].append(target)

    def request(self, origin: str, payload: Any) -> None:
        assert self.monitor is not None
        if not self.monitor.receive_heartbeat(origin, self.now_ms):
            return
        if (answer := self.payload_for(origin)) is not None:
            self.seen["replies"].append({"to": origin, "payload": answer})
        if payload is not None:
            self.seen["reported"].append({"from": origin, "payload": payload})
        self.delivered(origin)

    def advance(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while due := [(when, key) for key, when in self.timers.items() if when[0] <= end_ms]:
            (at_ms, _), key = min(due, key=lambda item: item[0])
            self.now_ms = max(self.now_ms, at_ms)
            del self.timers[key]
            self.timer_fired(key)
        self.now_ms = end_ms

    def play(self, step: dict[str, Any]) -> None:
        self.delivery = step.get("delivery", "ok")
        if self.delivery not in ("ok", "unreachable"):
            raise NotImplementedError(f"delivery {self.delivery!r}")
        try:
            monitor = self.construct()
        except ValueError:
            self.error = True
            return
        if "monitor" in step:
            self.set_timers(monitor.monitor_target(step["monitor"], self.now_ms))
        elif "unmonitor" in step:
            self.set_timers(monitor.unmonitor_target(step["unmonitor"]))
        elif "receive" in step:
            self.receive(step["receive"]["from"], step["receive"].get("payload"))
        elif "request" in step:
            self.request(step["request"]["from"], step["request"].get("payload"))
        elif "advance" in step:
            self.advance(step["advance"])
        elif "last_heartbeat" in step:
            self.value = monitor.last_heartbeat_ms(step["last_heartbeat"])
        elif "target_goes_silent" in step:
            self.silent.add(step["target_goes_silent"])
        elif "stop" in step:
            self.set_timers(monitor.stop())


def replay(scenario: dict[str, Any]) -> list[str]:
    """Failure lines; empty when the monitor did as the scenario says."""
    harness = Harness(scenario.get("config", {}))
    failures: list[str] = []
    for number, step in enumerate(scenario["steps"]):
        harness.seen = {key: [] for key in LISTS}
        harness.value, harness.error = None, False
        harness.play(step)
        expected = {key: [] for key in STRICT} | {"error": False} | step.get("expect", {})
        got = harness.seen | {"value": harness.value, "error": harness.error}
        for key, wanted in expected.items():
            if wanted != ANY and comparable(key, wanted) != comparable(key, got[key]):
                failures.append(difference(number, key, wanted, got[key]))
    return failures


def comparable(key: str, value: Any) -> Any:
    """Without payloads that are none; what happens at one instant is a set."""
    if key not in LISTS:
        return value
    plain = [
        {name: said for name, said in item.items() if said is not None} if isinstance(item, dict) else item
        for item in value
    ]
    return sorted(plain, key=by_instant) if key in ("requests_sent", "timeouts", "unreachable") else plain


def by_instant(item: Any) -> tuple[int, str]:
    return (item["at"], str(item.get("to", item.get("target")))) if isinstance(item, dict) else (0, str(item))
