"""What security costs: other benchmarks, with everything on and with nothing, in pairs.

Everything on is TLS on every port with certificates of both sides, a token, and signed storage; digests of state files
and the validation of what comes in are always on. Each pair runs the same benchmark twice, the order turned from pair
to pair, and the figure is how much more CPU, or time, it took with everything on.

    python -m benchmarks.secured keyed_sum --pairs 3 -- --seconds 6 --parallelism 2
    python -m benchmarks.secured latency --pairs 3 -- --rate 10000 --seconds 6
    python -m benchmarks.secured coordinator --pairs 3 -- --subtasks 1000 --task-managers 10 --checkpoints 10
    python -m benchmarks.secured failover --pairs 3 -- --trials 2 --cut-off-trials 0
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cluster import fail, report, versions
from snapline.commands.security_commands import make_certificates
from snapline.dataflow.errors import SnaplineError

FIGURES = {
    "keyed_sum": ("cpu_us_per_event", "events_per_s"),
    "latency": ("latency_ms.p50", "latency_ms.p99"),
    "coordinator": ("results.0.trigger_to_complete_ms.median", "results.0.coordinator_cpu_us_per_subtask.median"),
    "failover": ("leader_kill.output_gap_ms.median", "taskmanager_kill.output_gap_ms.median"),
}
"""What is compared of each benchmark: where it stands in the JSON that it prints."""


def settings_of_a_secure_cluster(directory: Path) -> Path:
    """Certificates, a token and a secret of the storage, and the settings file that names them, for all processes."""
    settings = make_certificates(directory, ["127.0.0.1"], days=1)[0]
    lines = [line for line in settings.read_text().splitlines() if "exchange.hostname" not in line]
    everybody = directory / "snapline.toml"
    everybody.write_text("\n".join([*lines, '"security.ssl.exchange.hostname" = "localhost"', ""]))
    return everybody


def run(benchmark: str, arguments: list[str], settings: Path | None) -> dict[str, float]:
    """Run the benchmark once, with the settings of a secure cluster or with nothing (None); return its figures by their
    place."""
    environment = {key: value for key, value in os.environ.items() if key != "SNAPLINE_CONFIG"}
    if settings is not None:
        environment["SNAPLINE_CONFIG"] = str(settings)
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--json", *arguments]
    printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    return {place: _find(json.loads(printed.splitlines()[-1]), place) for place in FIGURES[benchmark]}


def _find(found: Any, place: str) -> float:
    for key in place.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return float(found)


def main() -> int:
    """Print the ratios of all pairs."""
    usage = "python -m benchmarks.secured BENCHMARK [--pairs N] [--json] [-- OPTIONS OF THE BENCHMARK]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__)
    parser.add_argument("benchmark", choices=sorted(FIGURES))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen, others = parser.parse_known_args()
    arguments = [each for each in others if each != "--"]
    ratios: dict[str, list[float]] = {name: [] for name in FIGURES[chosen.benchmark]}
    try:
        with tempfile.TemporaryDirectory() as directory:
            secure = settings_of_a_secure_cluster(Path(directory))
            for pair in range(chosen.pairs):
                order = [secure, None] if pair % 2 else [None, secure]
                runs = {settings: run(chosen.benchmark, arguments, settings) for settings in order}
                for name, found in ratios.items():
                    found.append(runs[secure][name] / runs[None][name])
    except (SnaplineError, subprocess.CalledProcessError) as error:
        return fail(error)
    figures = {
        f"{name}, on / off": f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})"
        for name, each in ratios.items()
    }
    report(
        f"{chosen.benchmark} with everything on", {**versions(), "pairs": chosen.pairs, **figures}, as_json=chosen.json
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
