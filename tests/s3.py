"""An S3 server on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

BUCKET = "sheepfold"


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3 with one empty bucket; its address."""
    for needed in ("boto3", "obstore"):
        pytest.importorskip(needed)
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    import boto3

    with pytest.MonkeyPatch.context() as patch:
        lead_to(patch, f"http://{host}:{port}")
        boto3.session.Session().client("s3").create_bucket(Bucket=BUCKET)
    yield f"http://{host}:{port}"
    server.stop()


def lead_to(patch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Lead S3 clients to an endpoint, with keys of no worth, and away from the person's own settings."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "HTTP_PROXY", "http_proxy"):
        patch.delenv(name, raising=False)
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "sheepfold-test-key",
        "AWS_SECRET_ACCESS_KEY": "sheepfold-test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        patch.setenv(name, value)


class Objects:
    """The objects below an address, without the store.

    Args:
        endpoint: of the server; by default that of the environment.
    """

    def __init__(self, address: str, endpoint: str | None = None) -> None:
        import boto3

        self.bucket, _, prefix = address.removeprefix("s3://").partition("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self.client: Any = boto3.session.Session().client("s3", endpoint_url=endpoint)

    def sizes(self) -> dict[str, int]:
        """Name and size of each."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.prefix)
        found = (item for page in pages for item in page.get("Contents", ()))
        return {item["Key"].removeprefix(self.prefix): item["Size"] for item in found}

    def named(self, end: str, within: str = "") -> str:
        """The name of the one object that ends so."""
        (name,) = (name for name in self.sizes() if name.endswith(end) and within in name)
        return name

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=data)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects."""
        for name in names:
            self.client.delete_object(Bucket=self.bucket, Key=self.prefix + name)
