"""Hosts on a private network of this machine: network namespaces, joined by a bridge, whose links can be cut and made
bad.

    with PrivateNetwork(["c1", "c2", "tm"]) as network:
        subprocess.Popen(network.on("c1", ["python", "-m", "snapline.coordinator", "--insecure", "--bind",
        f"{network.address('c1')}:6123"])) network.cut("c1") network.heal("c1")

Needs iproute2 and the right to make namespaces; `why_not` says what is missing. The test's own process is a host of it,
too: the bridge lies in this namespace. Nothing leads out.
"""

from __future__ import annotations

import itertools
import os
import shutil
import string
import subprocess
from collections.abc import Sequence
from types import TracebackType

PREFIX = "10.203.77"
"""Of a /24 that nothing here uses."""

_letters = string.ascii_lowercase
_numbers = itertools.count()


def why_not() -> str:
    """Why there can be no private network here; empty: there can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"no {tool} here: install iproute2"
    name = f"snapline-probe-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces: {done.stderr.strip() or 'ip netns add failed'} (needs root)"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


class PrivateNetwork:
    """A context manager. Hosts have the addresses .11, .12, ... in their order; this process has .1."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        # Of its own for every network: the kernel takes a namespace's links down some time after the namespace is gone.
        self._mark = f"{os.getpid() % 100_000}{_letters[next(_numbers) % len(_letters)]}"
        self._bridge = f"sl{self._mark}"

    def __enter__(self) -> PrivateNetwork:
        """Make it."""
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{PREFIX}.1/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for host in self._hosts:
                space, outer = self._space(host), self._outer(host)
                _run("ip", "netns", "add", space)
                _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
                _run("ip", "link", "set", outer, "master", self._bridge)
                _run("ip", "link", "set", outer, "up")
                _run("ip", "-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
                _run("ip", "-n", space, "link", "set", "eth0", "up")
                _run("ip", "-n", space, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove it; processes on it must have ended."""
        self._remove()

    def address(self, host: str) -> str:
        """Of the host."""
        return f"{PREFIX}.{11 + self._hosts.index(host)}"

    @property
    def own_address(self) -> str:
        """Of this process."""
        return f"{PREFIX}.1"

    def on(self, host: str, command: Sequence[str]) -> list[str]:
        """The command, to be run on the host."""
        return ["ip", "netns", "exec", self._space(host), *command]

    def cut(self, host: str) -> None:
        """Nothing gets through any more, in either direction; connections stay as they are."""
        _run("ip", "link", "set", self._outer(host), "nomaster")

    def cut_one_way(self, host: str) -> None:
        """What the host sends is lost, to an address that nobody has; it still hears the others."""
        for peer in (self.own_address, *(self.address(other) for other in self._hosts if other != host)):
            nobody = ("lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent")
            _run("ip", "-n", self._space(host), "neigh", "replace", peer, *nobody)

    def delay(self, host: str, milliseconds: int) -> None:
        """What the host sends takes so long. Raises RuntimeError when the kernel has no netem."""
        delay = f"{milliseconds}ms"
        _run("tc", "-n", self._space(host), "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", delay)

    def heal(self, host: str) -> None:
        """As at the beginning."""
        space = self._space(host)
        _run("ip", "link", "set", self._outer(host), "master", self._bridge)
        _run("ip", "-n", space, "neigh", "flush", "dev", "eth0", "nud", "permanent")
        undelayed = ["tc", "-n", space, "qdisc", "del", "dev", "eth0", "root"]
        subprocess.run(undelayed, capture_output=True, check=False)

    def _space(self, host: str) -> str:
        return f"snapline-{self._mark}-{host}"

    def _outer(self, host: str) -> str:
        return f"sl{self._mark}{host}"

    def _remove(self) -> None:
        for host in self._hosts:
            subprocess.run(["ip", "link", "del", self._outer(host)], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", self._space(host)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
