"""The serving suite: its cases, and that its client reads every text of every stream."""

from loopwright.bench.serving import Load, chunks_per_s, delays_ms, measure_serving
from loopwright.bench.talking import TalkingRuns

SMALL = Load(num_streams=3, num_texts=5, num_timed_texts=2)


async def test_the_cases_are_chunks_their_floor_and_delays_at_one_stream_and_many():
    rows = await measure_serving(1, SMALL)
    assert [(row.case, row.metric) for row in rows] == [
        ("case=chunks/streams=3", "chunks_per_s"),
        ("case=chunks/streams=3", "cpu_us"),
        ("case=floor/streams=3", "chunks_per_s"),
        ("case=delay/streams=1", "p50_ms"),
        ("case=delay/streams=1", "p99_ms"),
        ("case=delay/streams=3", "p50_ms"),
        ("case=delay/streams=3", "p99_ms"),
    ]
    assert all(row.value > 0 for row in rows)


async def test_every_text_of_every_stream_is_timed():
    assert len(await delays_ms(3, 2)) == 6


async def test_a_rate_counts_chunks_that_carry_text(monkeypatch):
    taken = []

    async def next_text(self: TalkingRuns) -> str:
        taken.append(self)
        return "x"

    monkeypatch.setattr(TalkingRuns, "_next_text", next_text)
    rate, cpu_us = await chunks_per_s(SMALL)
    assert len(taken) == 15
    assert rate > 0
    assert cpu_us > 0
