"""Metrics for Prometheus, in a registry of their own: how the service is used, and the state of the
federation.

Names of clients, orders or people are in none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from expunge.errors import ExpungeError
from expunge.server.http.logs import Note
from expunge.server.service import Service
from expunge.wire.schema import time_seconds

_DAY = 86400
MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)


class Metrics:
    """What is counted, and what is asked of the service at each scrape."""

    def __init__(
        self,
        service: Service,
        held: Callable[[], float],
        expires: Callable[[], float] | None = None,
    ) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ("route", "method", "status", "outcome")
        self._requests = Counter(
            "expunge_http_requests",
            "Requests, by outcome: ok or the refusal's code.",
            labels,
            registry=registry,
        )
        self._seconds = Histogram(
            "expunge_http_request_seconds",
            "From the headers of a request to the end of its answer.",
            ("route",),
            registry=registry,
            buckets=_SECONDS,
        )
        self._phases = Histogram(
            "expunge_request_phase_seconds",
            "What the time of a client's request went into: checks, wait, solve, write.",
            ("phase",),
            registry=registry,
            buckets=_SECONDS,
        )
        self._in = Counter(
            "expunge_http_received_bytes", "Bytes of bodies received.", registry=registry
        )
        self._out = Counter("expunge_http_sent_bytes", "Bytes of bodies sent.", registry=registry)
        self.under_way = Gauge(
            "expunge_http_requests_under_way",
            "Requests that have yet to be answered.",
            registry=registry,
        )
        bodies = Gauge(
            "expunge_http_held_bytes",
            "Room given to long bodies of requests under way.",
            registry=registry,
        )
        bodies.set_function(held)
        registry.register(_Federation(service))
        if expires is not None:
            certificate = Gauge(
                "expunge_tls_certificate_expires_timestamp_seconds",
                "When the certificate in use ends.",
                registry=registry,
            )
            certificate.set_function(expires)

    def count(self, note: Note, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(note.route, note.method, str(note.status), note.code).inc()
        self._seconds.labels(note.route).observe(seconds)
        self._in.inc(note.bytes_in)
        self._out.inc(note.bytes_out)

    def count_phases(self, seconds: Mapping[str, float]) -> None:
        """Count the phases of a request that was applied."""
        for phase, value in seconds.items():
            self._phases.labels(phase).observe(value)

    def text(self) -> bytes:
        """All of them, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Federation(Collector):
    """The federation's state, queried from the service on collection."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def describe(self) -> list[Metric]:
        """Nothing: otherwise the registry would ask the service when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics, or the one that says that the store does not answer."""
        answers = GaugeMetricFamily(
            "expunge_store_answers", "Whether the server's store answers: 1 or 0."
        )
        try:
            metrics = list(self._found())
        except ExpungeError:
            answers.add_metric([], 0)
            yield answers
            return
        answers.add_metric([], 1)
        yield answers
        yield from metrics

    def _found(self) -> Iterator[Metric]:
        status, state = self._service.status(), self._service.state
        now = time_seconds(status["time"])
        oldest, erased = state.storage.journal.oldest(), state.last_erased()
        yield _gauge("expunge_samples", "Samples retained in the ledger.", status["samples"])
        yield _gauges("expunge_clients", "Clients, by status.", "status", status["clients"])
        silent = len(state.silent(state.by_clock() - _DAY))
        yield _gauge(
            "expunge_clients_silent", "Active clients that have not synced for a day.", silent
        )
        yield _gauge(
            "expunge_queue_length",
            "Requests and commands that wait to be applied.",
            status["waiting"],
        )
        yield _gauge(
            "expunge_journal_entries",
            "Messages journalled and not yet folded into the ledger.",
            status["journal"],
        )
        yield _gauge(
            "expunge_journal_oldest_seconds",
            "Age of the oldest journalled message; must stay below "
            "expunge_promised_within_seconds.",
            0 if oldest is None else max(0, now - oldest),
        )
        yield _gauge(
            "expunge_erase_within_seconds",
            "Within this time messages are to be erased.",
            state.settings.erase_within,
        )
        yield _gauge(
            "expunge_promised_within_seconds",
            "Within this time, receipts promise now, messages will be erased.",
            state.pace.span,
        )
        yield _gauge("expunge_fold_seconds", "How long the last fold took.", state.pace.took)
        yield CounterMetricFamily(
            "expunge_erasures_late",
            "Requests that were erased later than their receipts promised.",
            value=state.pace.late.requests,
        )
        yield _gauge(
            "expunge_clock_ahead_seconds",
            "How far the machine's clock has jumped ahead of the time that entries are stamped.",
            state.clock_ahead(),
        )
        yield _gauge(
            "expunge_stamps_ahead_seconds",
            "How far the log's last entry is stamped ahead of the machine's clock.",
            state.stamps_ahead(),
        )
        yield _gauge(
            "expunge_clock_ahead_of_clients_seconds",
            "How far the machine's clock is ahead of those of most clients; negative if behind.",
            self._service.clocks.ahead_of_clients(),
        )
        yield _gauge(
            "expunge_disk_free_bytes",
            "Bytes that are free on the disk of the server's folder, beside the reserve.",
            state.room.free,
        )
        yield _gauge(
            "expunge_store_writable",
            "Whether the store takes everything: 1, or 0 if its disk is full or read-only.",
            int(not state.room.problem()),
        )
        yield _gauge("expunge_log_entries", "Entries of the audit log.", status["log"])
        yield CounterMetricFamily(
            "expunge_rounds", "Rounds of requests applied.", value=status["round"]
        )
        yield _gauges("expunge_orders", "Erasure orders, by state.", "state", status["orders"])
        yield _gauge(
            "expunge_head_published",
            "Whether there is a head to publish: 1 or 0.",
            int(bool(status["head"])),
        )
        yield _gauge(
            "expunge_audit_equal",
            (
                "Whether the last audit found the ledger equal to what clients recomputed: 1 or 0; "
                "-1 before the first."
            ),
            -1 if status["audit"] is None else int(status["audit"]["result"] == "equal"),
        )
        scrubbed, since = self._service.upkeep.scrubbed, self._service.upkeep.since_scrub()
        yield _gauge(
            "expunge_scrub_damaged",
            "How much the last scrub of the store found damaged; -1 before the first.",
            -1 if scrubbed is None else scrubbed.damaged,
        )
        yield _gauge(
            "expunge_seconds_since_scrub",
            "Since the store was last scrubbed; -1 before the first scrub.",
            -1 if since is None else since,
        )
        if erased is not None:
            yield _gauge(
                "expunge_seconds_since_erasure",
                "Since a journal was last erased at rest.",
                max(0, now - erased),
            )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
