import pytest

from benchmarks import stats


def row(peer="ours", ms=1.0, **more):
    fields = {
        "id": "a",
        "pass": "fwd",
        "dtype": "fp32",
        "layout": "NCHW",
        "cut": "",
        "precision": "default",
        "peer": peer,
        "status": "ok",
        "wall_ms": ms,
        "wall_spread": 0.01,
    }
    return fields | more


def test_summary_of_times():
    found = stats.summarize([3.0, 1.0, 2.0, 100.0, 2.5])
    assert (found.median, found.count) == (2.5, 5)
    assert found.spread == pytest.approx(0.2)
    assert stats.summarize([4.0]) == stats.Times(4.0, 0.0, 1)
    assert stats.summarize([]) is None


def test_geomean():
    assert stats.geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert stats.geomean([]) is None


def test_limits_tell_tf32_from_float32():
    assert stats.limit("fp32", "highest") < 3e-4 < stats.limit("fp32", "default")
    assert stats.limit("bf16", "highest") == stats.limit("bf16", "default")
    assert stats.limit("bf16", "default", "db") > stats.limit("bf16", "default")
    assert stats.limit("fp32", "default", "db") == stats.limit("fp32", "default")
    short = stats.limit("fp32", "highest", "dw", 2**20)
    assert short == stats.limit("fp32", "highest")
    assert stats.limit("fp32", "highest", "dw", 2**23) == 8 * short


def test_default_meets_the_faster_of_tf32_and_strict():
    ours = row()
    peers = [row("torch", 2.0), row("torch", 1.5, precision="highest"), row("lax", 9.0)]
    best, ratio = stats.best_peer(ours, [ours, *peers])
    assert (best["precision"], ratio) == ("highest", 1.5)


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_accurate_rows_meet_strict_peers_only(precision):
    ours = row(precision=precision)
    peers = [row("torch", 0.1), row("torch", 3.0, precision="highest")]
    _, ratio = stats.best_peer(ours, peers)
    assert ratio == 3.0


def test_what_is_no_peer():
    others = [
        row("xla", 0.1),
        row("ours@cuda:simt", 0.1),
        row("torch", 0.1, status="wrong"),
        row("torch", 0.1, layout="NHWC"),
        row("torch", 0.1, **{"pass": "dx"}),
        row("torch", 0.1, cut="n1 4x4"),
        row("lax", None, status="blank"),
    ]
    assert stats.best_peer(row(), others) is None


def test_device_time_if_both_have_it():
    a, b = row(device_ms=0.5), row("torch", 2.0, device_ms=0.25)
    assert stats.same_quantity(b, a) == (0.25, 0.5, "device_ms")
    assert stats.same_quantity(row("torch", 2.0), a) == (2.0, 1.0, "wall_ms")


def test_compare():
    before = [row(ms=1.0), row("torch", 1.0), row("lax", 1.0, wall_spread=0.3)]
    after = [row(ms=1.2), row("torch", 1.02), row("lax", 1.2), row("xla", 5.0)]
    changes = {c.key[-1]: c for c in stats.compare(before, after)}
    assert {k: c.verdict for k, c in changes.items()} == {
        "ours": "slower",
        "torch": "same",
        "lax": "same",
    }
    assert changes["ours"].ratio == pytest.approx(1.2)
    (back,) = stats.compare([row(ms=1.2)], [row(ms=1.0)])
    assert back.verdict == "faster"


def test_newly_wrong():
    before = [row(), row("torch", status="error")]
    after = [row(status="wrong"), row("torch", status="error")]
    assert stats.newly_wrong(before, after) == [stats.key(row())]
