"""What `snapline pack` puts into an archive, and that a Python which has nothing else runs with it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from snapline.cli import cli
from snapline.packing import OF_SPARK, PackingError, distributions, requirements_in, write_archive


def test_what_is_required_comes_along_and_what_spark_has_does_not():
    """Through dependencies of dependencies; of optional ones those that were asked for."""
    plain, with_kafka = distributions([]), distributions(["polars"], ["spark", "avro"])

    assert {"snapline", "pyarrow", "llvmlite", "numpy", "mdurl"} <= set(plain)
    assert not {"fastavro", "polars", "pytest"} & set(plain)
    assert {"fastavro", "polars"} == set(with_kafka) - set(plain) - {"polars-runtime-32"}
    assert not OF_SPARK & set(with_kafka)


def test_the_extras_of_what_is_named_come_along() -> None:
    """They were left out of the archive without a word, and the job failed on the executors."""
    plain = set(distributions(["snapline"]))
    assert "fastavro" in set(distributions(["snapline[avro]>=0"])) - plain
    assert "fastavro" in set(distributions(["snapline[Avro]"])) - plain


def test_what_is_installed_as_a_link_is_not_packed_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was in the archive but its metadata, and no executor could import it."""
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "direct_url.json").write_text('{"url": "file:///mine", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(PackingError, match=r"mine is installed as a link to its source .*install it without -e"):
        distributions(["mine"])


def test_names_come_from_a_requirements_file(tmp_path: Path):
    """Versions, markers, hashes and comments are not names, and extras are; what is none is an error with its line."""
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# ours\npolars>=1  # fast\nscikit-learn[x]==1 ; python_version > '3'\\\n    --hash=sha256:0\nrich\n"
    )
    assert requirements_in(file) == ["polars", "scikit-learn[x]", "rich"]
    file.write_text("rich\n./mine.whl\n")
    with pytest.raises(PackingError, match=r"requirements.txt:2: './mine.whl' names no distribution"):
        requirements_in(file)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing-of-this-name"], "nothing-of-this-name is not installed here: pip install nothing-of-this-name"),
        (["-e", "kafak"], "snapline has no extra 'kafak'; there are "),
        (["-o", "environment.rar"], "environment.rar: of .tar.gz, .tgz Spark unpacks"),
        (["-r", "none.txt"], "cannot read none.txt: No such file"),
    ],
)
def test_what_cannot_be_packed_is_one_line(arguments: list[str], says: str):
    """Before anything is written."""
    answer = CliRunner().invoke(cli, ["pack", *arguments])
    assert says in str(answer.exception), answer.output


def test_a_bare_python_runs_with_the_archive_wherever_it_lies(tmp_path: Path):
    """Only its own standard library and what is in the archive are on its path."""
    found = distributions([])
    small = {name: each for name, each in found.items() if name in {"snapline", "click"}}
    archive = tmp_path / "environment.tgz"
    write_archive(archive, small.values(), sys.executable)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "some where", filter="data")
    program = "import click, snapline, sys; print(click.__file__, snapline.__file__)"
    launcher = tmp_path / "some where" / "bin" / "python"
    done = subprocess.run(
        [launcher, "-S", "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/bin:/usr/bin"},
        cwd=tmp_path,
    )

    packages = tmp_path / "some where" / "lib" / "site-packages"
    assert done.stdout == f"{packages}/click/__init__.py {packages}/snapline/__init__.py\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
