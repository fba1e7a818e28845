"""An expired client certificate is reported before any broker is contacted."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from e2e.standin.certificates import authority, issue
from tailrace.errors import CertificateExpired
from tailrace.kafka import certificate

NOW = datetime.datetime.now(datetime.UTC)


def _options(folder: Path, days: float) -> dict[str, str]:
    file = folder / "user.crt"
    file.write_bytes(issue(authority("clients-ca"), "tailrace-tweets", days).certificate)
    return {"ssl.certificate.location": str(file)}


def test_an_expired_certificate_is_named_with_its_expiry(tmp_path: Path) -> None:
    """The error has the file, the user and the day, and nothing of the key."""
    with pytest.raises(CertificateExpired) as caught:
        certificate.check(_options(tmp_path, -1), NOW)
    said = str(caught.value)
    assert f"{tmp_path / 'user.crt'}, the certificate of CN=tailrace-tweets, has expired" in said
    assert f"valid until {NOW - datetime.timedelta(days=1):%Y-%m-%d}" in said


def test_the_text_of_a_certificate_is_checked_as_well(tmp_path: Path) -> None:
    """The text may be given instead of a file."""
    text = Path(_options(tmp_path, -1)["ssl.certificate.location"]).read_text(encoding="utf-8")
    with pytest.raises(CertificateExpired, match=r"ssl\.certificate\.pem, the certificate of CN=tailrace-tweets"):
        certificate.check({"ssl.certificate.pem": text}, NOW)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_an_invalid_certificate_is_left_to_the_client(tmp_path: Path, content: bytes | None) -> None:
    """The client that reads it has the better message; a valid certificate is not reported either."""
    certificate.check(_options(tmp_path, 1), NOW)
    file = tmp_path / "other.crt"
    if content is not None:
        file.write_bytes(content)
    certificate.check({"ssl.certificate.location": str(file)}, NOW)
    certificate.check({}, NOW)
