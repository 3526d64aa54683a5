"""As much of S3's API as replication uses, in memory, whose puts take as long as one says.

``python -m benchmarks.object_store MS`` serves on a free port of loopback and prints its URL.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


class _Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    put_s = 0.0
    objects: dict[str, bytes] = {}  # noqa: RUF012 - of the whole process
    lock = threading.Lock()

    def do_PUT(self) -> None:
        data = self._body()
        time.sleep(self.put_s)
        with self.lock:
            taken = self._key in self.objects
            if not taken:
                self.objects[self._key] = data
        self._reply(HTTPStatus.PRECONDITION_FAILED if taken else HTTPStatus.OK, b"", data)

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        if "list-type" in asked:
            self._list(asked)
            return
        data = self.objects.get(self._key)
        if data is None:
            self._reply(HTTPStatus.NOT_FOUND, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._reply(HTTPStatus.OK, data, data)

    def _list(self, asked: dict[str, list[str]]) -> None:
        bucket = urlsplit(self.path).path.strip("/")
        prefix, after = asked.get("prefix", [""])[0], asked.get("start-after", [""])[0]
        with self.lock:
            keys = [key.removeprefix(f"{bucket}/") for key in self.objects]
        found = sorted(key for key in keys if key.startswith(prefix) and key > after)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>0</Size><ETag>e</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in found
        )
        page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._reply(HTTPStatus.OK, page.encode())

    def do_POST(self) -> None:  # deletes many
        bucket = urlsplit(self.path).path.strip("/")
        keys = [key.decode() for key in re.findall(rb"<Key>(.*?)</Key>", self._body())]
        for key in keys:
            self.objects.pop(f"{bucket}/{key}", None)
        rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._reply(HTTPStatus.OK, f"<DeleteResult>{rows}</DeleteResult>".encode())

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _reply(self, status: HTTPStatus, body: bytes, tagged: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("etag", f'"{md5(tagged, usedforsecurity=False).hexdigest()}"')
        self.send_header("last-modified", _DATE)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base says
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # servers open many connections at once


@contextmanager
def object_store(put_ms: int) -> Iterator[str]:
    """A bucket's URL; the environment leads there meanwhile."""
    command = [sys.executable, "-m", "benchmarks.object_store", str(put_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
        os.environ.update(AWS_ENDPOINT_URL=endpoint, AWS_REGION="us-east-1", **keys)
        try:
            yield "s3://bucket/nexo"
        finally:
            process.kill()


def main(put_ms: int) -> None:
    """Serve until killed."""
    _Objects.put_s = put_ms / 1000
    server = _Server(("127.0.0.1", 0), _Objects)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
