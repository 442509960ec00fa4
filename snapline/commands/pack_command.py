"""`snapline pack`: an environment for executors that have nothing but Python, and the line that runs a job with it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from snapline.commands.printing import echo


@click.command()
@click.argument("names", nargs=-1)
@click.option("--requirements", "-r", multiple=True, type=click.Path(path_type=Path), help="a file with more names")
@click.option("--extra", "-e", multiple=True, help="of Snapline, such as kafka")
@click.option("--output", "-o", default="environment.tar.gz", type=click.Path(path_type=Path), show_default=True)
@click.option("--python", default="", help="of the executors; default: the one of this version on their PATH")
def pack(
    names: tuple[str, ...], requirements: tuple[Path, ...], extra: tuple[str, ...], output: Path, python: str
) -> None:
    """Pack Snapline, NAMES and all that they need, as they are installed here, for `spark-submit --archives`.

    Executors need a Python of the same version and nothing else. Nothing is downloaded. The line that runs a job with
    the archive is printed.
    """
    from snapline.packing import ENDS, distributions, requirements_in, write_archive

    wanted = [*names, *(name for file in requirements for name in requirements_in(file))]
    found = distributions(wanted, extra)
    write_archive(output, found.values(), python)
    size = output.stat().st_size
    echo(f"packed {len(found)} distributions into {output} ({size / 1_000_000:,.0f} MB); run a job with", err=True)
    alias = next(output.name.removesuffix(end) for end in ENDS if output.name.endswith(end))
    parts = [
        *("spark-submit", "--archives", f"{output}#{alias}", "--conf", f"spark.pyspark.python=./{alias}/bin/python"),
        *("--conf", f"spark.pyspark.driver.python={sys.executable}", "job.py"),
    ]
    echo(shlex.join(parts))
