"""The way out for programs' HTTP: what is dialled is what was checked, on every hop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loopwright.core.errors import BadRequest, LimitExceeded, LoopwrightError, PermissionDenied, Unavailable
from loopwright.core.outside_calls import HttpClose, HttpOpen, HttpRead, HttpRequest
from loopwright.runtime import egress, http_client
from loopwright.runtime.egress import Egress, RunEgress
from loopwright.runtime.permissions import Permissions
from system_rig import until


class Names:
    """A resolver that says what the test wrote, one answer after the other; the last one stays."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.asked: list[str] = []
        self._answers = {name.replace("_", "."): list(some) for name, some in answers.items()}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Site:
    """A real HTTP server on loopback that answers each path as told, and keeps what it was asked."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self.port = 0
        self.asked: list[bytes] = []
        self.num_connections = 0
        self.num_hung_up = 0
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = content_length(head)
                self.asked.append(head + await reader.readexactly(length))
                writer.write(self._answers[head.split()[1].decode()].replace(b"PORT", str(self.port).encode()))
                await writer.drain()
        self.num_hung_up += 1
        writer.close()


def content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


@asynccontextmanager
async def site(**answers: bytes) -> AsyncIterator[Site]:
    one = Site({f"/{name}": answer for name, answer in answers.items()})
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    async with server:
        one.port = server.sockets[0].getsockname()[1]
        yield one


def ok(body: bytes = b"fine") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def to(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Go\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@asynccontextmanager
async def way_out(*http: str, resolve: Any = None) -> AsyncIterator[RunEgress]:
    all_runs = Egress(resolve or Names())
    async with all_runs.open(Permissions(http=http)) as run:
        yield run
    await all_runs.close()


async def refusal(call: Any) -> LoopwrightError:
    with pytest.raises(LoopwrightError) as caught:
        await call
    return caught.value


def test_a_name_is_resolved_once_for_a_connection_and_the_checked_address_is_dialled() -> None:
    async def scenario() -> None:
        names = Names(app_test=[["127.0.0.1"], ["169.254.169.254"]])  # the second answer would be the attack
        async with site(a=ok()) as one, way_out("app.test:*", "127.0.0.1:*", resolve=names) as out:
            for _ in range(2):
                answer = await out.request(HttpRequest(url=f"http://app.test:{one.port}/a"))
                assert answer["body"] == b"fine"
            assert names.asked == ["app.test"]
            assert one.num_connections == 1  # kept alive: what was checked once is still where it leads
            assert b"host: app.test:%d\r\n" % one.port in one.asked[0].lower()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.0.0.1"], ["93.184.215.14", "127.0.0.1"], ["::ffff:127.0.0.1"], ["fd00::1"], ["::1"]],
)
def test_a_name_that_leads_to_a_private_address_is_refused_and_the_address_is_named(addresses: list[str]) -> None:
    async def scenario() -> None:
        async with site(a=ok()) as one:
            async with way_out("app.test:*", resolve=Names(app_test=[addresses])) as out:
                error = await refusal(out.request(HttpRequest(url=f"http://app.test:{one.port}/a")))
            assert isinstance(error, PermissionDenied)
            assert "permissions = { http = [" in error.hint
            assert str(one.port) in error.hint
            assert one.num_connections == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["169.254.169.254", "fd00:ec2::254", "fe80::1", "0.0.0.0", "100.100.100.200"])
def test_no_name_leads_to_where_clouds_keep_credentials_whatever_is_listed(address: str) -> None:
    async def scenario() -> None:
        listed = f"[{address}]:*" if ":" in address else f"{address}:*"
        async with way_out("app.test:*", listed, resolve=Names(app_test=[[address]])) as out:
            error = await refusal(out.request(HttpRequest(url="http://app.test/")))
            assert isinstance(error, PermissionDenied)
            host = f"[{address}]" if ":" in address else address
            error = await refusal(out.request(HttpRequest(url=f"http://{host}/")))
            assert isinstance(error, PermissionDenied)

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["0x7f.1", "2130706433", "127.1", "[::ffff:127.0.0.1]", "127.0.0.1."])
def test_every_spelling_of_an_address_is_that_address(host: str) -> None:
    async def scenario() -> None:
        async with site(a=ok()) as one, way_out("127.0.0.1:*") as out, way_out("example.org:*") as other:
            url = f"http://{host}:{one.port}/a"
            assert (await out.request(HttpRequest(url=url)))["body"] == b"fine"
            error = await refusal(other.request(HttpRequest(url=url)))
            assert isinstance(error, PermissionDenied)
            assert f"127.0.0.1:{one.port}" in error.hint
            assert len(one.asked) == 1

    asyncio.run(scenario())


def test_redirects_are_handed_over_unless_asked_for() -> None:
    async def scenario() -> None:
        async with site(a=to("/b"), b=ok()) as one, way_out("127.0.0.1:*") as out:
            answer = await out.request(HttpRequest(url=f"http://127.0.0.1:{one.port}/a"))
            assert (answer["status"], answer["headers"]["location"]) == (302, "/b")
            answer = await out.request(HttpRequest(url=f"http://127.0.0.1:{one.port}/a", max_redirects=1))
            assert (answer["body"], answer["url"]) == (b"fine", f"http://127.0.0.1:{one.port}/b")

    asyncio.run(scenario())


def test_every_redirect_is_checked_as_the_first_url_was() -> None:
    async def scenario() -> None:
        async with site(secret=ok(b"secret")) as inner:
            target = f"http://localhost:{inner.port}/secret"
            answers = {"a": to(target), "file": to("file:///etc/passwd"), "meta": to("http://169.254.169.254/")}
            async with site(**answers) as one, way_out("127.0.0.1:*") as out:
                for name, kind in (("a", PermissionDenied), ("file", BadRequest), ("meta", PermissionDenied)):
                    url = f"http://127.0.0.1:{one.port}/{name}"
                    error = await refusal(out.request(HttpRequest(url=url, max_redirects=5)))
                    assert isinstance(error, kind), name
            assert inner.num_connections == 0

    asyncio.run(scenario())


def test_a_loop_of_redirects_ends_at_its_limit() -> None:
    async def scenario() -> None:
        async with site(a=to("/a")) as one, way_out("127.0.0.1:*") as out:
            error = await refusal(out.request(HttpRequest(url=f"http://127.0.0.1:{one.port}/a", max_redirects=3)))
            assert isinstance(error, LimitExceeded)
            assert "more than 3 redirects" in error.message
            assert len(one.asked) == 4

    asyncio.run(scenario())


def test_credentials_stay_at_the_origin_they_were_meant_for_and_a_post_becomes_a_get() -> None:
    async def scenario() -> None:
        async with site(end=ok()) as other, site(a=to(f"http://localhost:{other.port}/end"), b=to("/c"), c=ok()) as one:
            async with way_out("127.0.0.1:*", "localhost:*") as out:
                headers = {"Authorization": "Bearer x", "Cookie": "y"}
                for name in "ab":
                    url = f"http://127.0.0.1:{one.port}/{name}"
                    await out.request(HttpRequest(method="POST", url=url, headers=headers, body=b"z", max_redirects=1))
            assert b"bearer" not in other.asked[0].lower()
            assert b"cookie" not in other.asked[0].lower()
            assert other.asked[0].startswith(b"GET /end ")
            assert b"host: localhost:%d" % other.port in other.asked[0].lower()
            assert one.asked[2].startswith(b"GET /c ")
            assert b"Bearer x" in one.asked[2]

    asyncio.run(scenario())


def test_a_307_keeps_method_and_body() -> None:
    async def scenario() -> None:
        async with site(a=to("/b", 307), b=ok()) as one, way_out("127.0.0.1:*") as out:
            url = f"http://127.0.0.1:{one.port}/a"
            await out.request(HttpRequest(method="POST", url=url, body=b"abc", max_redirects=1))
            assert one.asked[1].startswith(b"POST /b ")
            assert one.asked[1].endswith(b"abc")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"Content-Length": "7"}, "headers.content-length"),
        ({"Transfer-Encoding": "chunked"}, "headers.transfer-encoding"),
        ({"Host": "other.example"}, "headers.host"),
        ({"Connection": "upgrade"}, "headers.connection"),
        ({"X-A": "a\r\nX-B: b"}, "headers.x-a"),
        ({"X-A": "\u20ac"}, "headers.x-a"),
        ({"X A": "a"}, "headers"),
        ({"": "a"}, "headers"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused_and_named(headers: dict[str, str], field: str) -> None:
    async def scenario() -> None:
        async with site(a=ok()) as one, way_out("127.0.0.1:*") as out:
            call = HttpRequest(method="POST", url=f"http://127.0.0.1:{one.port}/a", headers=headers, body=b"abc")
            error = await refusal(out.request(call))
            assert isinstance(error, BadRequest)
            assert error.field == field
            assert one.asked == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://127.0.0.1/", "http://", "http://user:word@127.0.0.1/", "http://127.0.0.1:99999/", "http://1.2.3.4.5/",
     "http://256.1.1.1/", "http://0177.0.0.1/", "http://a b/", "http://[fe80::1%25eth0]/", "http://a%2eb/"],
)  # fmt: skip
def test_what_is_no_url_is_refused_and_nothing_is_resolved(url: str) -> None:
    async def scenario() -> None:
        names = Names()
        async with way_out("127.0.0.1:*", resolve=names) as out:
            error = await refusal(out.request(HttpRequest(url=url)))
            assert isinstance(error, BadRequest)
            assert error.field == "url"
            assert names.asked == []

    asyncio.run(scenario())


def test_the_environments_proxy_is_no_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with site(a=ok()) as proxy, site(a=ok(b"direct")) as one:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
            async with way_out(f"127.0.0.1:{one.port}") as out:
                answer = await out.request(HttpRequest(url=f"http://127.0.0.1:{one.port}/a"))
            assert answer["body"] == b"direct"
            assert proxy.num_connections == 0

    asyncio.run(scenario())


def test_a_body_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with site(a=ok(b"x" * 101)) as one, way_out("127.0.0.1:*") as out:
            error = await refusal(out.request(HttpRequest(url=f"http://127.0.0.1:{one.port}/a")))
            assert isinstance(error, LimitExceeded)
            assert "longer than 100 bytes" in error.message

    monkeypatch.setattr(http_client, "MAX_BODY_BYTES", 100)
    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"])
def test_a_server_that_speaks_nonsense_or_hangs_up_is_unavailable(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, way_out("127.0.0.1:*") as out:
            port = server.sockets[0].getsockname()[1]
            error = await refusal(out.request(HttpRequest(url=f"http://127.0.0.1:{port}/")))
            assert isinstance(error, Unavailable)

    asyncio.run(scenario())


def test_a_server_that_never_answers_is_unavailable_with_the_limit_named() -> None:
    async def scenario() -> None:
        async with site(a=b"") as one, way_out("127.0.0.1:*") as out:
            error = await refusal(out.request(HttpRequest(url=f"http://127.0.0.1:{one.port}/a", timeout_s=0.01)))
            assert isinstance(error, Unavailable)
            assert error.field == "timeout_s"

    asyncio.run(scenario())


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"  # and six bytes that never come


def test_a_stream_is_read_piece_by_piece_and_a_read_given_up_loses_nothing() -> None:
    async def scenario() -> None:
        async with site(a=HEAD, rest=b"") as one, way_out("127.0.0.1:*") as out:
            opened = await out.open(HttpOpen(url=f"http://127.0.0.1:{one.port}/a", timeout_s=0.05))
            stream = opened["stream"]
            assert opened["status"] == 200
            assert await out.read(HttpRead(stream=stream)) == {"body": b"abc", "is_end": False}
            error = await refusal(out.read(HttpRead(stream=stream)))  # in time nothing comes
            assert (type(error), error.field) == (Unavailable, "timeout_s")
            reading = asyncio.create_task(out.read(HttpRead(stream=stream)))
            await asyncio.sleep(0)
            assert isinstance(await refusal(out.read(HttpRead(stream=stream))), BadRequest)  # one at a time
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await out.close_stream(HttpClose(stream=stream))
            await out.close_stream(HttpClose(stream=stream))
            assert type(await refusal(out.read(HttpRead(stream=stream)))).__name__ == "NotFound"
            await until(lambda: one.num_hung_up == 1)

    asyncio.run(scenario())


def test_streams_have_a_limit_and_the_end_of_a_run_closes_those_that_are_open() -> None:
    async def scenario() -> None:
        async with site(a=HEAD) as one:
            async with way_out("127.0.0.1:*") as out:
                call = HttpOpen(url=f"http://127.0.0.1:{one.port}/a")
                for _ in range(http_client.MAX_STREAMS):
                    await out.open(call)
                assert isinstance(await refusal(out.open(call)), LimitExceeded)
            await until(lambda: one.num_hung_up == http_client.MAX_STREAMS)

    asyncio.run(scenario())


def test_what_was_checked_for_one_run_serves_no_other() -> None:
    async def scenario() -> None:
        names = Names(app_test=[["127.0.0.1"]])
        async with site(a=ok()) as one:
            all_runs = Egress(names)
            call = HttpRequest(url=f"http://app.test:{one.port}/a")
            async with (
                all_runs.open(Permissions(http=("app.test:*", "127.0.0.1:*"))) as first,
                all_runs.open(Permissions(http=("app.test:*",))) as second,
            ):
                await first.request(call)
                assert isinstance(await refusal(second.request(call)), PermissionDenied)
            await all_runs.close()

    asyncio.run(scenario())


def test_a_client_that_could_not_be_made_is_made_for_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError("too many open files")]
    real: Callable[[], Any] = egress._load

    def load() -> Any:
        if failures:
            raise failures.pop()
        return real()

    async def scenario() -> None:
        all_runs, call = Egress(), HttpRequest(method="GET", url="http://example.org/")
        async with all_runs.open(Permissions()) as out:
            with pytest.raises(OSError, match="too many open files"):
                await out.request(call)
            with pytest.raises(PermissionDenied):
                await out.request(call)
        await all_runs.close()

    monkeypatch.setattr(egress, "_load", load)
    asyncio.run(scenario())


def test_a_client_that_could_not_be_made_does_not_fail_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise OSError("too many open files")

    async def scenario() -> None:
        all_runs = Egress()
        async with all_runs.open(Permissions()) as out:
            with pytest.raises(OSError, match="too many open files"):
                await out.request(HttpRequest(url="http://example.org/"))
        await all_runs.close()

    monkeypatch.setattr(egress, "_load", load)
    asyncio.run(scenario())
