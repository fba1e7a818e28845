"""Create a bucket on an S3 server if it does not exist: the chart's Job, in plain Python.

Running it again changes nothing. The request is signed with AWS Signature Version 4; the keys come from the
environment, so that no argument contains them.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

LIMIT = 300.0
REGION = "us-east-1"


def signed(endpoint: str, bucket: str, access: str, secret: str, now: datetime.datetime) -> urllib.request.Request:
    """Build the request that creates the bucket."""
    url = f"{endpoint}/{bucket}"
    host, body = urllib.parse.urlsplit(url).netloc, hashlib.sha256(b"").hexdigest()
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    names = "host;x-amz-content-sha256;x-amz-date"
    headers = f"host:{host}\nx-amz-content-sha256:{body}\nx-amz-date:{stamp}\n"
    canonical = f"PUT\n/{bucket}\n\n{headers}\n{names}\n{body}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in (day, REGION, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    return urllib.request.Request(
        url,
        method="PUT",
        headers={
            "x-amz-content-sha256": body,
            "x-amz-date": stamp,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}",
        },
    )


def main() -> int:
    """Try until the server answers and has the bucket; return 0 if it has."""
    endpoint, bucket = os.environ["ENDPOINT"], os.environ["BUCKET"]
    until = time.monotonic() + LIMIT
    while True:
        now = datetime.datetime.now(datetime.UTC)
        try:
            request = signed(endpoint, bucket, os.environ["ACCESS_KEY"], os.environ["SECRET_KEY"], now)
            urllib.request.urlopen(request, timeout=10).close()
            sys.stdout.write(f"bucket {bucket} was created\n")
            return 0
        except urllib.error.HTTPError as error:
            if error.code == 409:
                sys.stdout.write(f"bucket {bucket} exists\n")
                return 0
            problem = f"{error.code} {error.read(500).decode(errors='replace')}"
            if error.code < 500:
                sys.stderr.write(f"bucket {bucket}: {endpoint} answered {problem}\n")
                return 1
        except OSError as error:
            problem = str(error)
        if time.monotonic() > until:
            sys.stderr.write(f"bucket {bucket}: {endpoint} did not create it in {LIMIT:.0f} s: {problem}\n")
            return 1
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
