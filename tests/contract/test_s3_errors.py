"""What a real S3 server's refusals look like to a user."""

from __future__ import annotations

import pytest

from snapline.runtime.storage.object_storage import open_storage
from snapline.runtime.storage.storage_port import StorageError
from tests.services.s3 import BUCKET, S3Server

pytestmark = pytest.mark.s3


def test_a_bucket_that_does_not_exist(s3_server: S3Server) -> None:
    """The bucket is named, for reads, writes and listings."""
    storage = open_storage("s3://no-such-bucket/x", s3_server.configuration)

    for use in (lambda: storage.create("a", b"x"), lambda: storage.get("a"), lambda: storage.list("")):
        with pytest.raises(StorageError, match="there is no bucket 'no-such-bucket'; create it first"):
            use()


@pytest.mark.parametrize("wrong", ["s3.access-key", "s3.secret-key"])
def test_wrong_credentials(s3_server: S3Server, wrong: str) -> None:
    """The settings to look at are named, their values are not."""
    storage = open_storage(f"s3://{BUCKET}/x", {**s3_server.configuration, wrong: "mistaken"})

    with pytest.raises(StorageError, match=r"the store refused the credentials; check s3.access-key") as refused:
        storage.put("a", b"x")
    assert "mistaken" not in str(refused.value)


def test_settings_from_the_environment(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that other tools read work as well."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    storage = open_storage(f"s3://{BUCKET}/from-environment")

    storage.put("a", b"x")

    assert storage.list("") == [("a", 1)]
