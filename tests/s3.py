"""An S3 server on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "sheepfold"


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3 with one empty bucket; its address."""
    pytest.importorskip("boto3")
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
    """Lead boto3 to an endpoint, with keys of no worth, and away from the person's own settings."""
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
