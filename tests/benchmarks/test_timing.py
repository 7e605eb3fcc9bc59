import types

import pytest

from benchmarks import timing
from benchmarks.timing import Event


def test_schedule():
    short = timing.schedule(1e-5)
    assert short.rounds * short.calls >= 20
    assert short.calls == 200
    assert timing.schedule(1e-3) == timing.Schedule(5, 20, 10)
    assert timing.schedule(0.03) == timing.Schedule(5, 4, 10)
    # 0.38 s a call: three rounds of one call, and no trace.
    assert timing.schedule(0.38) == timing.Schedule(3, 1, 0)
    assert timing.schedule(10.0) == timing.Schedule(1, 1, 0)
    assert timing.schedule(1e-3, reps=100).traced == 50


def test_busy_counts_overlap_once():
    events = [Event("a", 0, 10), Event("b", 5, 10), Event("c", 30, 5), Event("d", 6, 2)]
    assert timing.busy(events) == 20
    assert timing.busy([]) == 0


def test_split_calls():
    events = [Event("k", 100.0 * i, 1e6 * 1e-3) for i in range(6)]
    assert timing.split_calls(events, 3) == pytest.approx([0.0011, 0.0011, 0.0011])
    assert timing.split_calls(events, 4) is None
    assert timing.split_calls([], 4) is None


def test_kernels_go_to_their_window():
    windows = [Event("0.0", 1000, 1000), Event("1.0", 3000, 1000)]
    kernels = [
        Event("before", 900, 50),
        Event("a", 1100, 100),
        Event("between", 2500, 100),
        Event("b", 3500, 100),
        Event("after", 4500, 100),
    ]
    found = timing.assign(kernels, windows)
    assert {k: [e.name for e in v] for k, v in found.items()} == {
        "0.0": ["a"],
        "1.0": ["b"],
    }


def test_windows_become_times():
    call = [Event("big", 0, 2e6), Event("small", 3e6, 1e6)]
    shifted = [Event(e.name, e.start + 1e7, e.duration) for e in call]
    windows = {"0.0": [*call, *shifted], "0.1": [*call, *shifted], "1.0": []}
    found = timing.read_windows(windows, {0: 2, 1: 2})
    assert set(found) == {0}
    assert found[0].times == [3.0] * 4
    assert (found[0].calls, found[0].kernels) == (4, 2.0)
    assert found[0].names == ["big", "small"]


def test_uneven_windows_give_a_mean():
    events = [Event("k", 1e7 * i, 1e6) for i in range(3)]
    found = timing.read_windows({"0.0": events}, {0: 2})
    assert found[0].times == [1.5]


def _plane(name, **lines):
    made = [
        types.SimpleNamespace(
            name=line,
            events=[
                types.SimpleNamespace(name=n, start_ns=s, duration_ns=d)
                for n, s, d in events
            ],
        )
        for line, events in lines.items()
    ]
    return types.SimpleNamespace(name=name, lines=made)


def test_reads_streams_and_windows_only():
    planes = [
        _plane(
            "/device:GPU:0",
            **{"Stream #13(Compute)": [("k", 5, 1)], "XLA Ops": [("k", 5, 1)]},
        ),
        _plane("/host:CPU", python=[("benchmark window 0.1", 0, 9), ("other", 0, 1)]),
        _plane("/host:metadata", x=[("benchmark window 7.7", 0, 9)]),
    ]
    kernels, windows = timing.device_events(planes)
    assert kernels == [Event("k", 5, 1)]
    assert windows == [Event("0.1", 0, 9)]


def test_a_device_time_must_fit_the_clock():
    assert timing.agree(1.0, 1.1)
    assert timing.agree(0.02, 0.1)  # dispatch is most of a short call
    assert not timing.agree(3.0, 1.0)
    assert not timing.agree(0.5, 10.0)
    assert not timing.agree(0.0, 1.0)


class _Fake:
    def __init__(self):
        self.calls = []

    def runner(self, name):
        return timing.Runner(
            compile=lambda: None,
            call=lambda i: self.calls.append((name, i)) or (i,),
            wait=lambda out: None,
        )


def test_rounds_alternate_and_inputs_rotate():
    fake = _Fake()
    plans = [timing.Schedule(2, 2, 1), timing.Schedule(1, 1, 1)]
    times = timing.interleaved_wall([fake.runner("a"), fake.runner("b")], plans, 3)
    assert fake.calls == [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("a", 0)]
    assert [len(t) for t in times] == [2, 1]


def test_a_trace_of_the_cpu_has_windows_and_no_device():
    """The real profiler: windows are found, and without a GPU nothing is made up."""
    fake = _Fake()
    plans = [timing.Schedule(1, 1, 2), timing.Schedule(1, 1, 0)]
    assert timing.traced([fake.runner("a"), fake.runner("b")], plans, 1) == {}
    assert [name for name, _ in fake.calls] == ["a"] * 6
