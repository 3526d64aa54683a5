"""How benchmark rounds are summed up; the speed itself is no test's business."""

from pathlib import Path

import pytest

from benchmarks import charts, report
from benchmarks.harness import Bench, Contender, Measure, Outcome, Result, Row, percentile, run
from benchmarks.peers import Missing


def counting(figures: list[float], calls: list[str], name: str) -> Contender:
    def prepare(bench: Bench) -> Measure:
        left = iter([0.0, *figures])  # the first round is the warm-up

        def measure() -> float:
            calls.append(name)
            return next(left)

        return measure

    return Contender(name, prepare)


def absent(bench: Bench) -> Measure:
    raise Missing("nats-server is not installed")


def outcome(name: str, figure: float) -> Outcome:
    return Outcome(name, [figure], client_cpu_s=[0.0], server_cpu_s=[0.0])


def test_contenders_take_turns_in_alternating_order() -> None:
    calls: list[str] = []
    ours, peer = counting([1.0] * 3, calls, "ours"), counting([1.0] * 3, calls, "peer")
    run(Row("work", "op/s", ours, [peer]), rounds=3, quick=True)
    warm_up, rounds = calls[:2], calls[2:]
    assert warm_up == ["ours", "peer"]
    assert rounds == ["ours", "peer", "peer", "ours", "ours", "peer"]


def test_the_ratio_is_the_median_of_the_rounds_ratios_against_the_best_peer() -> None:
    calls: list[str] = []
    ours = counting([10, 20, 40], calls, "ours")
    slow, fast = counting([1, 1, 1], calls, "slow"), counting([5, 5, 5], calls, "fast")
    row = Row("work", "op/s", ours, [slow, fast], bar=4)
    entry = report.record("store", run(row, rounds=3, quick=True))
    assert entry["best_peer"] == "fast"
    assert entry["contenders"][2]["ratio"] == {"median": 4, "low": 2, "high": 8}
    assert entry["reached"] is True


def test_where_lower_is_better_the_best_peer_is_the_lowest_and_the_bar_a_ceiling() -> None:
    row = Row("work", "ms", _unused, [_unused, _unused], bar=1.0, lower_is_better=True)
    outcomes = [outcome("ours", 3.0), outcome("a", 2.0), outcome("b", 4.0)]
    entry = report.record("store", Result(row, outcomes))
    assert entry["best_peer"] == "a"
    assert entry["reached"] is False


def test_a_peer_may_have_a_bar_of_its_own() -> None:
    peer = Contender("rabbitmq", absent, bar=30)
    row = Row("work", "op/s", _unused, [peer])
    outcomes = [outcome("ours", 29.0), outcome("rabbitmq", 1.0)]
    assert report.record("queue", Result(row, outcomes))["reached"] is False


def test_a_missing_peer_is_named_with_its_reason(tmp_path: Path) -> None:
    row = Row("work", "op/s", counting([1.0] * 3, [], "ours"), [Contender("nats", absent)])
    entry = report.record("pubsub", run(row, rounds=3, quick=True))
    assert entry["contenders"][1] == {"name": "nats", "missing": "nats-server is not installed"}
    charts.write_svg(tmp_path / "chart.svg", [entry])
    assert "not run: nats-server is not installed" in (tmp_path / "chart.svg").read_text()


def test_the_report_is_written_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("work", "op/s", counting([1500.0] * 3, [], "ours"), limit=1000)
    entry = report.record("store", run(row, rounds=3, quick=True))
    report.print_table([entry])
    path = report.write_json(tmp_path, [entry], rounds=3, quick=True)
    assert "1.5 k op/s" in capsys.readouterr().out
    assert path.exists()
    assert (tmp_path / "latest.json").read_text() == path.read_text()


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_percentiles_come_from_sorted_values(share: float, expected: float) -> None:
    assert percentile([1, 2, 3, 4], share) == expected


_unused = Contender("unused", absent)
