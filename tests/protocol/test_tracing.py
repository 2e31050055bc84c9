"""OpenTelemetry: spans leave for a collector when one is configured, and hold nothing of what was said."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from tests.serving import BOUND, answer, client, environment_with, serving

pytestmark = pytest.mark.anyio


class Collector(TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.port = 0
        self._news = threading.Condition()
        self._sent: list[ExportTraceServiceRequest] = []

    def Export(  # the name is gRPC's
        self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> ExportTraceServiceResponse:
        with self._news:
            self._sent.append(request)
            self._news.notify_all()
        return ExportTraceServiceResponse()

    def text_with(self, words: str) -> str:
        """All that was sent, once these words are in it."""
        with self._news:
            found = self._news.wait_for(lambda: words in str(self._sent), BOUND)
            assert found, f"no {words} in {self._sent}"
            return str(self._sent)


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a free port."""
    with ThreadPoolExecutor(2) as threads:
        server, collecting = grpc.server(threads), Collector()
        add_TraceServiceServicer_to_server(collecting, server)  # type: ignore[no-untyped-call]  # generated
        collecting.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield collecting
        server.stop(None).wait(BOUND)


async def test_a_call_is_a_span_without_content(collector: Collector, tmp_path: Path, model_folder: Path) -> None:
    environment = environment_with({"port": 0, "data_dir": tmp_path, "model_dir": model_folder})
    environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_SDK_DISABLED": "false",
    }
    with serving(tmp_path, environment=environment, ready=False) as server:
        async with client(server.url, "team-a") as session:
            await answer(session, "retain", content="a-canary-in-the-content")
        sent = collector.text_with("tools/call")

    assert "retain" in sent
    assert "canary" not in sent
