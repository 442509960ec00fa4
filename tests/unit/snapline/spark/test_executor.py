"""What cannot work on an executor is said once, with the way out, and not tried again."""

from __future__ import annotations

import pytest

from snapline.spark.executor import TaskManagerLaunch, derive_token, run
from snapline.spark.pool import _judge


def test_another_python_version_is_unusable():
    """Byte code of functions does not travel between versions."""
    (outcome,) = run(TaskManagerLaunch("tm-0", "127.0.0.1:1", 1, (3, 8)))
    assert outcome.kind == "unusable"
    assert "the driver runs 3.8" in outcome.detail and "PYSPARK_PYTHON" in outcome.detail


def test_a_missing_spark_secret_is_unusable(monkeypatch: pytest.MonkeyPatch):
    """With spark.authenticate, the token is derived on both sides."""
    import sys

    monkeypatch.delenv("_SPARK_AUTH_SECRET", raising=False)
    launch = TaskManagerLaunch("tm-0", "127.0.0.1:1", 1, sys.version_info[:2], token_from_spark=True)
    (outcome,) = run(launch)
    assert (outcome.kind, "_SPARK_AUTH_SECRET" in outcome.detail) == ("unusable", True)
    assert derive_token("a") != derive_token("b")


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("... ModuleNotFoundError: No module named 'snapline'", "unusable", "'/bin/py' cannot import Snapline"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has ...", "unusable", "of another version than the driver's"),
        ("Py4JJavaError\nPython worker exited unexpectedly (crashed)", "failed", "Python worker exited unexpectedly"),
        ("", "failed", "RuntimeError"),
    ],
)
def test_what_spark_says_about_a_python_worker(text, kind, said):
    """A worker that was killed is replaced; a Python that will never do is not."""
    found, detail = _judge(RuntimeError(text), "/bin/py")
    assert found == kind
    assert said in detail
