"""Requests that no page of the dashboard sends: each is answered clearly, reads nothing, changes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.dashboard.conftest import Asker, served
from trainkit.plugins.dashboard import security
from trainkit.plugins.dashboard.access import Access

SECRET = b"the content of a file that nobody may read"
BIG = security.MAX_BODY + 1
NO_HTTP = b"Invalid HTTP request received."


def fingerprint(root: Path) -> dict[str, str]:
    """What is in a folder, by path: a digest of each file."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def place(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A secret outside the experiments, to which links in a trial's folder lead."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "secret.txt").write_bytes(SECRET)
    trial = next(path for path in (root / "first one").iterdir() if path.is_dir())
    links = {"file-link": folder / "secret.txt", "folder-link": folder, "loop": trial / "loop"}
    for name, target in links.items():
        (trial / name).symlink_to(target)
    os.mkfifo(trial / "pipe")
    yield trial
    (trial / "pipe").unlink()
    for name in links:
        (trial / name).unlink()


def said(ask: Asker, data: bytes) -> bytes:
    """Return all that the server answers to these bytes, until it closes the connection."""
    with socket.create_connection(ask.address, timeout=60) as connection:
        with contextlib.suppress(OSError):  # it has answered, and reads no more
            connection.sendall(data)
        parts = []
        try:
            while part := connection.recv(65536):
                parts.append(part)
        except ConnectionResetError:  # what it did not read is thrown away with the connection
            pass
    return b"".join(parts)


def head(ask: Asker, line: str, *more: str, host: str | None = None, token: str | None = None) -> bytes:
    """Return a request with everything right but for what is given otherwise; '' leaves a header out."""
    port = ask.address[1]
    token = ask.server.token if token is None else token
    lines = [line, f"Host: 127.0.0.1:{port}" if host is None else host]
    lines.append(f"Authorization: Bearer {token}" if token else "")
    lines += more
    if not any(each.startswith("Connection") for each in more):
        lines.append("Connection: close")
    return "\r\n".join([each for each in lines if each]).encode("latin-1") + b"\r\n\r\n"


GET, POST = "GET /api/experiments HTTP/1.1", "POST /api/experiments/first%20one/stop HTTP/1.1"
NOTE = "PUT /api/experiments/first%20one/note HTTP/1.1"
FILES = "GET /api/experiments/first%20one/trials/TRIAL/files"

HEADS: dict[str, tuple[int, str, dict[str, str], tuple[str, ...]]] = {
    # status, line, what differs, further headers
    "no token": (403, GET, {"token": ""}, ()),
    "a wrong token": (403, GET, {"token": "x" * 32}, ()),
    "a token that is not ASCII": (403, GET, {"token": "\xff\xfe"}, ()),
    "two tokens, one of them right": (403, GET, {}, ("Authorization: Bearer wrong",)),
    "a token in the address": (403, "GET /api/experiments?token=TOKEN HTTP/1.1", {"token": ""}, ()),
    "a post without a token": (403, POST, {"token": ""}, ("Content-Length: 0",)),
    "a stream without a token": (403, "GET /api/stream HTTP/1.1", {"token": ""}, ()),
    "a name that was made to lead here": (403, GET, {"host": "Host: evil.example"}, ()),
    "a name that ends like ours": (403, GET, {"host": "Host: localhost.evil.example"}, ()),
    "a name and a password": (403, GET, {"host": "Host: localhost@evil.example"}, ()),
    "no name": (400, GET, {"host": ""}, ()),
    "two names": (400, GET, {}, ("Host: evil.example",)),
    "another site's page": (403, GET, {}, ("Origin: http://evil.example",)),
    "another site's post": (403, POST, {}, ("Origin: http://evil.example", "Content-Length: 0")),
    "a page without a site": (403, POST, {}, ("Origin: null", "Content-Length: 0")),
    "a page of another port": (403, POST, {}, ("Origin: http://127.0.0.1:1", "Content-Length: 0")),
    "two sites, one of them right": (403, GET, {}, ("Origin: http://HOST", "Origin: http://evil.example")),
    "a fetch by another site": (403, GET, {}, ("Sec-Fetch-Site: cross-site",)),
    "what a browser asks first": (
        403,
        "OPTIONS /api/experiments HTTP/1.1",
        {"token": ""},
        ("Origin: http://evil.example",),
    ),
    "a path out of the root": (404, "GET /api/experiments/..%2f..%2fetc HTTP/1.1", {}, ()),
    "a path out of the static files": (404, "GET /static/..%2f..%2fserver.py HTTP/1.1", {}, ()),
    "a file above the trial": (404, f"{FILES}/..%2f..%2fexperiment.sqlite HTTP/1.1", {}, ()),
    "a file of the system": (404, f"{FILES}/%2fetc%2fpasswd HTTP/1.1", {}, ()),
    "two slashes": (404, f"{FILES}//etc/passwd HTTP/1.1", {}, ()),
    "a link that leads out": (404, f"{FILES}/file-link HTTP/1.1", {}, ()),
    "a folder that leads out": (404, f"{FILES}/folder-link/secret.txt HTTP/1.1", {}, ()),
    "a pipe that nobody writes": (404, f"{FILES}/pipe HTTP/1.1", {}, ()),
    "SQL in a name": (404, "GET /api/experiments/first%20one/trials/'%20OR%201=1-- HTTP/1.1", {}, ()),
    "SQL in a column": (404, "GET /api/experiments/first%20one/trials?sort=last;DROP HTTP/1.1", {}, ()),
    "a number without end": (
        400,
        f"GET /api/experiments/first%20one/trials?limit={'9' * 500} HTTP/1.1",
        {},
        (),
    ),
    "a text of 20,000 characters": (
        400,
        f"GET /api/experiments/first%20one/trials?search={'a' * 20_000} HTTP/1.1",
        {},
        (),
    ),
    "an address of another server": (404, "GET http://evil.example/api/experiments HTTP/1.1", {}, ()),
    "a method that removes": (405, "DELETE /api/experiments/first%20one HTTP/1.1", {}, ()),
    "headers of 40,000 bytes": (431, GET, {}, (f"X-Long: {'a' * 40_000}",)),
    "a length that is none": (400, POST, {}, ("Content-Length: \xb2",)),
    "two lengths": (400, POST, {}, ("Content-Length: 0", "Content-Length: 5")),
    "a length of a gigabyte": (413, NOTE, {}, ("Content-Length: 1000000000",)),
    "a coding that is unknown": (400, NOTE, {}, ("Transfer-Encoding: gzip",)),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_hostile_head(ask: Asker, root: Path, place: Path, name: str) -> None:
    status, line, differs, more = HEADS[name]
    trial_id = "_".join(place.name.split("_")[-2:])
    words = {"TOKEN": ask.server.token, "TRIAL": trial_id, "HOST": f"127.0.0.1:{ask.address[1]}"}

    def filled(text: str) -> str:
        return re.sub("TOKEN|TRIAL|HOST", lambda found: words[found[0]], text)

    before = fingerprint(root)
    reply = said(ask, head(ask, filled(line), *map(filled, more), **differs))
    first, _, rest = reply.partition(b"\r\n")
    assert int(first.split()[1]) == status, reply[:500]
    body = rest.partition(b"\r\n\r\n")[2]
    assert SECRET not in reply and b"root:" not in reply and b"SQLite format" not in reply
    assert b'"error":' in body or (status == 400 and body == NO_HTTP), body
    assert fingerprint(root) == before
    assert ask.get("/status")["read_only"] is False  # it is alive


BODIES: list[tuple[str, int, bytes]] = [
    ("no JSON", 400, b"{"),
    ("a list", 400, b"[1]"),
    ("no number", 400, b'{"text": NaN}'),
    ("bytes that are no text", 400, b"\xff\xfe"),
    ("brackets without end", 400, b"[" * 50_000),
    ("a field too many", 400, b'{"text": "a", "path": "/etc"}'),
    ("a field of another type", 400, b'{"text": {"$gt": ""}}'),
    ("nothing", 400, b""),
    ("too much", 413, b'{"text": "' + b"a" * BIG + b'"}'),
    ("more than is kept", 409, b'{"text": "' + b"a" * 30_000 + b'"}'),
]


@pytest.mark.parametrize(("status", "body"), [each[1:] for each in BODIES], ids=[each[0] for each in BODIES])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_hostile_body(ask: Asker, root: Path, status: int, body: bytes, chunked: bool) -> None:
    before = fingerprint(root)
    if chunked:
        parts = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
        data = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        request = head(ask, NOTE, "Transfer-Encoding: chunked") + data
    else:  # one that is too long is refused by its head: what is sent of it all the same may undo the answer
        request = head(ask, NOTE, f"Content-Length: {len(body)}") + (b"" if status == 413 else body)
    reply = said(ask, request)
    assert int(reply.split()[1]) == status and b'"error":' in reply, reply[:500]
    assert fingerprint(root) == before and ask.get("/status")


def test_two_requests_in_one_are_two(ask: Asker) -> None:
    """A body that looks like a request is none, and one after a refusal is not read."""
    inner, told = head(ask, GET), b'"name":"first one"'
    assert told in said(ask, inner)
    outer = head(ask, NOTE, f"Content-Length: {len(inner)}", "Connection: close")
    assert said(ask, outer + inner).count(b"HTTP/1.1 ") == 1
    refused = head(ask, NOTE, f"Content-Length: {len(inner)}", token="wrong")
    assert said(ask, refused + inner).count(b"HTTP/1.1 ") == 1
    # Lengths of both kinds: the two ends might take different ones.
    both = head(ask, NOTE, "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + inner
    assert told not in said(ask, both)


def test_a_refusal_names_no_origin_and_sets_no_cookie(ask: Asker) -> None:
    for reply in (said(ask, head(ask, GET, "Connection: close")), said(ask, head(ask, GET, token=""))):
        names = [line.partition(b":")[0].lower() for line in reply.partition(b"\r\n\r\n")[0].split(b"\r\n")]
        assert b"set-cookie" not in names and b"server" not in names
        assert not [name for name in names if name.startswith(b"access-control-")]
        for needed in (b"content-security-policy", b"x-content-type-options", b"referrer-policy"):
            assert names.count(needed) == 1
        assert b"cache-control: no-store" in reply.lower()


def test_who_sends_too_slowly_is_cut_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "REQUEST_S", 0.5)
    with served(root) as ask:
        assert said(ask, b"") == b""
        assert said(ask, b"GET /api/exp") == b""
        reply = said(ask, head(ask, NOTE, "Content-Length: 20") + b'{"te')
        assert reply.startswith(b"HTTP/1.1 408 ") and b"was incomplete" in reply
        # After an answer, the next request has as long.
        first = head(ask, "GET /api/status HTTP/1.1", "Connection: keep-alive")
        assert said(ask, first + b"GET /api").count(b"HTTP/1.1 200") == 1
        assert ask.get("/status")


def test_who_reads_too_slowly_is_cut_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "READ_S", 0.5)
    with served(root) as ask, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(ask.address)
        slow.sendall(head(ask, "GET /static/plotly.min.js HTTP/1.1", "Connection: keep-alive") * 5)
        time.sleep(3)
        size = 0
        with contextlib.suppress(ConnectionResetError):
            while part := slow.recv(65536):
                size += len(part)
        assert 0 < size < 5 * 1_000_000
        assert ask.get("/status")


@pytest.mark.parametrize("begun", [False, True], ids=["silent", "without-their-body"])
def test_slow_connections_keep_nobody_out(root: Path, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    monkeypatch.setattr(security, "REQUEST_S", 600.0)
    with served(root) as ask, contextlib.ExitStack() as stack:
        held = []
        for _ in range(300):
            each = stack.enter_context(socket.create_connection(ask.address, timeout=60))
            held.append(each)
            if begun:
                with contextlib.suppress(OSError):
                    each.sendall(head(ask, "GET / HTTP/1.1", "Content-Length: 5"))
        assert said(ask, head(ask, GET)).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert held[0].recv(1) == b"", "the oldest were cut off"


def test_it_listens_where_it_was_told(root: Path) -> None:
    with served(root, host="0.0.0.0") as ask:
        assert ask.server.address.startswith("http://127.0.0.1:")
        token = f"Authorization: Bearer {ask.server.token}"
        for name, status in (("192.168.0.1", 200), (socket.gethostname(), 200), ("evil.example", 403)):
            reply = said(ask, f"{GET}\r\nHost: {name}\r\n{token}\r\nConnection: close\r\n\r\n".encode())
            assert int(reply.split()[1]) == status, (name, reply[:300])
    with served(root, host="127.0.0.2") as ask:
        assert ask.get("/status"), "its own address"
    access = Access("t", "::1")
    assert access.knows_host("[::1]:80") and access.knows_host("LOCALHOST") and not access.knows_host("[::2]")
