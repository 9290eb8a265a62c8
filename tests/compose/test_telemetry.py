"""What leaves a server by itself: spans over OTLP to a collector on loopback, and lines on standard error."""

import json
import logging
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from loopwright.compose.config import LogConfig, TelemetryConfig
from loopwright.compose.logs import open_log
from loopwright.compose.otel_spans import open_spans
from loopwright.core.events import RanTokens
from loopwright.core.origin import Origin, begin_span
from loopwright.runtime.observation import Ended
from loopwright.runtime.run_span import RunSpan
from loopwright.runtime.timeline import Stretch


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The package's, as it was afterwards."""
    logger = logging.getLogger("loopwright")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    last_resort = logging.lastResort
    yield logger
    logging.lastResort = last_resort
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_spans_reach_a_collector_at_the_latest_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setenv("COLLECTOR_KEY", "hunter2")
    ended = Ended(1.0, 3.0, None, 0.5, (Stretch("decode", 1.0, 2.0),), RanTokens())
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        config = TelemetryConfig(otlp_endpoint=endpoint, otlp_headers={"authorization": "Bearer ${COLLECTOR_KEY}"})
        with open_spans(config) as spans:
            assert spans is not None
            context = begin_span(Origin(), 1.0)
            spans.ended(RunSpan(context, "run", "", "", "agent", "tiny", False, "ok", 1e9, ended))
        server.shutdown()
        thread.join()
    ((path, authorization, body),) = taken
    assert (path, authorization) == ("/v1/traces", "Bearer hunter2")
    assert b"invoke_agent agent" in body
    assert bytes.fromhex(context.trace_id) in body


def test_without_an_endpoint_nothing_is_exported() -> None:
    with open_spans(TelemetryConfig()) as spans:
        assert spans is None


def test_the_log_is_lines_of_json_or_of_text_from_a_level_on(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(LogConfig(format="json", level="info"))
    logger.info("the run is over", extra={"told": {"run": "r1", "tenant": "", "seconds": 0.5}})
    logger.debug("not this")
    open_log(LogConfig())
    logger.info("nor this")
    logger.warning("a worker died", extra={"told": {"worker": "runtime-0"}})
    first, second = capsys.readouterr().err.splitlines()
    line = json.loads(first)
    assert line.pop("at").endswith("+00:00")
    assert line == {"level": "info", "log": "loopwright", "message": "the run is over", "run": "r1", "seconds": 0.5}
    assert second == "a worker died (worker=runtime-0)"


def test_warnings_of_other_packages_are_lines_of_json_too(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log(LogConfig(format="json"))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own: a server has none
    other = logging.getLogger("opentelemetry.exporter")
    other.warning("nobody answers at %s", "127.0.0.1:4318")
    other.info("not this")
    (line,) = (json.loads(one) for one in capsys.readouterr().err.splitlines())
    assert (line["level"], line["log"]) == ("warning", "opentelemetry.exporter")
    assert line["message"] == "nobody answers at 127.0.0.1:4318"
