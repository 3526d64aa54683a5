"""How benchmark rounds are summed up; the speed itself is no test's business."""

import asyncio
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import (
    charts,
    compare,
    curve_charts,
    curves,
    guard,
    machine,
    profile,
    report,
    service,
)
from benchmarks.harness import (
    ROUNDS,
    Bench,
    Contender,
    Measure,
    Outcome,
    Result,
    Row,
    percentile,
    run,
)
from benchmarks.paths import PATHS, HotPath, Work
from benchmarks.peers import Missing
from tools import docs, docs_speed


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
    entry = report.record("queue", Result(row, outcomes))
    assert entry["reached"] is False
    assert report.bar_text(entry) == "≥ 30× rabbitmq"


def test_a_missing_peer_is_named_with_its_reason() -> None:
    row = Row("work", "op/s", counting([1.0] * 3, [], "ours"), [Contender("nats", absent)])
    entry = report.record("pubsub", run(row, rounds=3, quick=True))
    assert entry["contenders"][1]["missing"] == "nats-server is not installed"
    assert "not run: nats-server is not installed" in charts.speed([entry])


@pytest.mark.parametrize("good_rounds", [0, 1, 2])
def test_a_contender_that_fails_is_shown_as_failed_and_the_others_go_on(good_rounds: int) -> None:
    ours = counting([2.0] * 3, [], "ours")
    peer = counting([1.0] * good_rounds, [], "peer")  # then its figures run out
    entry = report.record("store", run(Row("work", "op/s", ours, [peer]), rounds=3))
    assert entry["contenders"][0]["rounds"] == 3
    assert entry["contenders"][1] == {"name": "peer", "failed": "StopIteration: ", "bar": None}


def test_a_row_of_ours_that_fails_has_missed_its_bar(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(bench: Bench) -> Measure:
        raise ValueError("[no] server")

    entry = report.record("store", run(Row("work", "op/s", Contender("nexo", broken), bar=2.0)))
    assert entry["reached"] is False
    report.print_table([entry])
    assert "failed: ValueError: [no] server" in capsys.readouterr().out


def test_what_cannot_be_closed_does_not_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    class Stuck:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            raise OSError("will not stop")

    def prepare(bench: Bench) -> Measure:
        bench.enter(Stuck())
        return lambda: 1.0

    result = run(Row("work", "op/s", Contender("nexo", prepare)), rounds=3)
    assert result.outcomes[0].figures == [1.0] * 3
    assert "will not stop" in capsys.readouterr().out


def waiting(bench: Bench) -> None:
    time.sleep(60)


def waiting_in_the_loop(bench: Bench) -> None:
    bench.run(asyncio.sleep(60))


@pytest.mark.parametrize("hang", [waiting, waiting_in_the_loop])
def test_a_contender_that_hangs_is_cut_short(
    hang: Callable[[Bench], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(bench: Bench) -> Measure:
        hang(bench)
        return lambda: 1.0

    monkeypatch.setattr("benchmarks.harness.STEP_LIMIT_S", 0.05)
    (outcome,) = run(Row("work", "op/s", Contender("nexo", prepare))).outcomes
    assert outcome.failed.startswith("TimeoutError")


def test_rows_that_cannot_be_loaded_are_a_row_that_failed() -> None:
    found = a_run()
    command.run_group("nowhere", Namespace(match="", rounds=3, quick=True), found)
    (entry,) = found["rows"]
    assert entry["name"] == "all rows of nowhere"
    assert entry["contenders"][0]["failed"].startswith("ModuleNotFoundError")
    assert entry["reached"] is False


def test_a_quick_run_leaves_the_slowest_rows_out_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row(name, "s", _unused, slow=name == "memory") for name in ("memory", "start")]
    monkeypatch.setattr(service, "rows", lambda: rows)
    found: dict[str, Any] = {"rows": [], "curves": [], "limits": {}}
    command.run_group("service", Namespace(quick=True, match="", rounds=ROUNDS), found)
    assert [row["name"] for row in found["rows"]] == ["start"]
    assert "service: memory ... not in a quick run" in capsys.readouterr().out


def test_slow_rows_get_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness.ENOUGH_S", -1.0)
    result = run(Row("work", "op/s", Contender("nexo", lambda _: lambda: 1.0)))
    assert len(result.outcomes[0].figures) == ROUNDS


def a_run(**more: Any) -> dict[str, Any]:
    return {"time": "now", "complete": True, "rows": [], "curves": []} | more


def test_the_report_is_written_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Row("work", "op/s", counting([1500.0] * 3, [], "ours"), limit=1000)
    entry = report.record("store", run(row, rounds=3, quick=True))
    report.print_table([entry])
    path = report.write_json(tmp_path, a_run(rows=[entry]))
    assert "1.5 k op/s" in capsys.readouterr().out
    assert (tmp_path / "latest.json").read_text() == path.read_text()


def test_a_run_of_some_rows_is_not_what_the_docs_show(tmp_path: Path) -> None:
    assert report.write_json(tmp_path, a_run(complete=False)).exists()
    assert not (tmp_path / "latest.json").exists()


def test_rows_measured_again_take_the_place_of_the_first_and_are_named(tmp_path: Path) -> None:
    def entry(name: str, figure: float) -> dict[str, Any]:
        row = Row(name, "op/s", counting([figure] * 3, [], "ours"))
        return report.record("store", run(row, rounds=3, quick=True))

    report.write_json(tmp_path, a_run(rows=[entry("kept", 1.0), entry("changed", 1.0)]))
    report.measured_again(tmp_path, a_run(complete=False, rows=[entry("changed", 2.0)]))
    found = json.loads((tmp_path / "latest.json").read_text())
    assert [row["contenders"][0]["median"] for row in found["rows"]] == [1.0, 2.0]
    assert found["again"][0]["names"] == ["changed"]


# -- curves ----------------------------------------------------------------------------


def a_curve(figures: dict[int, float], **more: Any) -> curves.Curve:
    def prepare(bench: Bench) -> dict[int, curves.Probe]:
        return {x: lambda x=x: {"ours": figures[x]} for x in figures}  # type: ignore[misc]

    limit = curves.Limit("an echo", lambda limits, x: limits["round_trip_us"] * x)
    return curves.Curve("shape", "A shape", "things", "µs", prepare, [limit], **more)


def test_a_bar_on_a_curve_compares_the_costs_of_two_sizes() -> None:
    bar = curves.Bar("largest ÷ smallest", "ours", small=1)
    slower = a_curve({1: 10.0, 10: 11.0, 100: 16.0}, bars=[bar], lower_is_better=True)
    (entry,) = curves.bar_records("growth", curves.run(slower, rounds=3))
    assert entry["contenders"][0]["median"] == 1.6
    assert entry["reached"] is False


def test_a_rate_that_falls_is_a_cost_that_rises() -> None:
    bar = curves.Bar("largest ÷ the one before", "ours")
    rate = a_curve({1: 5.0, 10: 30.0, 100: 24.0}, bars=[bar])
    (entry,) = curves.bar_records("growth", curves.run(rate, rounds=3))
    assert entry["contenders"][0]["median"] == 1.25
    assert entry["reached"] is True


def test_a_curve_that_fails_says_so_in_its_chart_and_its_bars() -> None:
    def prepare(bench: Bench) -> dict[int, curves.Probe]:
        raise ValueError("no server")

    bar = curves.Bar("bar", "ours")
    curve = curves.Curve("shape", "A shape", "things", "µs", prepare, bars=[bar])
    measured = curves.run(curve)
    assert "failed: ValueError: no server" in curve_charts.svg(curves.record(measured, {}))
    (entry,) = curves.bar_records("growth", measured)
    assert entry["reached"] is False
    assert entry["contenders"][0]["failed"] == "ValueError: no server"


def test_a_chart_has_its_lines_its_limits_and_its_units() -> None:
    measured = curves.run(a_curve({1: 10.0, 1_000_000: 20.0}), rounds=3)
    drawn = curve_charts.svg(curves.record(measured, {"round_trip_us": 5.0}))
    for text in ("A shape", "things", "µs", "ours", "limit: an echo", "1 M"):
        assert f">{text}<" in drawn


def test_the_limits_of_the_machine_are_measured() -> None:
    limits = machine.limits(quick=True)
    assert set(limits) == {
        "syscall_us", "round_trip_us", "loopback_bytes_per_s", "disk_bytes_per_s", "fsync_us",
    }  # fmt: skip
    assert all(figure > 0 for figure in limits.values())


# -- hot paths: guard and profile ------------------------------------------------------


def figures(opcodes: float, ratio: float, spread: float = 0.0) -> dict[str, Any]:
    return {
        "opcodes": {"median": opcodes, "spread": 0.0},
        "ratio": {"median": ratio, "spread": spread},
    }


def measured_as(paths: dict[str, Any], python: str = "3.11.7", cpu: str = "one") -> dict[str, Any]:
    return {"python": python, "cpu": cpu, "paths": paths}


def verdicts(baseline: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [verdict["verdict"] for verdict in guard.compare(baseline, found)]


def test_the_guard_sees_more_opcodes_and_more_time() -> None:
    before = measured_as({"get": figures(100, 1.0)})
    assert verdicts(before, measured_as({"get": figures(100, 1.1)})) == ["same", "same"]
    assert verdicts(before, measured_as({"get": figures(104, 1.5)})) == ["slower", "slower"]
    assert verdicts(before, measured_as({"get": figures(90, 0.5)})) == ["quicker", "quicker"]


def test_the_guard_takes_no_noise_for_a_change() -> None:
    before = measured_as({"get": figures(100, 1.0, spread=0.2)})
    assert verdicts(before, measured_as({"get": figures(100, 1.5)})) == ["same", "same"]


def test_the_guard_does_not_judge_across_machines_or_versions() -> None:
    before = measured_as({"get": figures(100, 1.0)})
    slow = {"get": figures(200, 2.0)}
    assert verdicts(before, measured_as(slow, cpu="other")) == ["slower", "not comparable"]
    assert verdicts(before, measured_as(slow, python="3.12.1")) == ["not comparable"] * 2
    assert verdicts(before, measured_as({"new": figures(1, 1)})) == ["new", "new"]


def test_opcodes_are_counted_the_same_every_time(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    guard.check(update=True, paths=["batch-cut"], file=file)
    opcodes, _ = guard.check(paths=["batch-cut"], file=file)["verdicts"]
    assert opcodes["now"] > 100
    assert opcodes["change"] == 0
    assert opcodes["verdict"] == "same"


def test_a_path_that_got_longer_is_a_regression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "baseline.json"
    guard.check(update=True, paths=["batch-cut"], file=file)
    twice = HotPath("batch-cut", "", _twice(PATHS["batch-cut"]))
    monkeypatch.setitem(PATHS, "batch-cut", twice)
    found = guard.check(paths=["batch-cut"], file=file)
    assert found["verdicts"][0]["verdict"] == "slower"
    assert report.print_guard(found) >= 1
    assert "slower" in capsys.readouterr().out


def _twice(path: HotPath) -> Any:
    async def prepare(on: Any) -> Work:
        once = await path.prepare(on)

        async def work() -> None:
            await once()
            await once()

        return work

    return prepare


@pytest.mark.parametrize("name", PATHS)
async def test_every_hot_path_runs_and_has_a_profile(name: str) -> None:
    calls, stats = await profile.profiled(PATHS[name], 0.0)
    assert calls == 0
    calls, stats = await profile.profiled(PATHS[name], 0.01)
    assert calls > 0
    lines = profile.first_lines(stats, 3)
    assert len(lines) == 3
    assert 0 < sum(share for _, share, _ in lines) <= 1


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_percentiles_come_from_sorted_values(share: float, expected: float) -> None:
    assert percentile([1, 2, 3, 4], share) == expected


_unused = Contender("unused", absent)


# -- what the docs show ----------------------------------------------------------------


def documented(tmp_path: Path, run: dict[str, Any]) -> dict[str, str]:
    marked = f"# Page\n{docs_speed.START}\nold\n<!-- /speed -->\nrest\n"
    (tmp_path / "docs" / "design").mkdir(parents=True)
    (tmp_path / "README.md").write_text(marked)
    explained = f"{marked}\n## {docs_speed.MISSED}\n- **known**: the disk.\n\n## Next\nunknown\n"
    (tmp_path / "docs" / "design" / "performance.md").write_text(explained)
    report.write_json(tmp_path / "bench-results", run)
    pages = docs_speed.pages(tmp_path)
    return {path.relative_to(tmp_path).as_posix(): text for path, text in pages}


def a_complete_run() -> dict[str, Any]:
    peer = counting([1.0] * 3, [], "redis")
    rows = [
        Row("fast", "op/s", counting([4.0] * 3, [], "nexo"), [peer], bar=2),
        Row("known", "op/s", counting([4.0] * 3, [], "nexo"), [peer], bar=8),
        Row("unknown", "op/s", Contender("nexo", absent), bar=8),
    ]
    bar = curves.Bar("growing", "ours", small=1)
    measured = curves.run(a_curve({1: 1.0, 10: 1.0}, bars=[bar], lower_is_better=True), rounds=3)
    limits = {
        "syscall_us": 1.0, "round_trip_us": 2.0, "loopback_bytes_per_s": 3e9,
        "disk_bytes_per_s": 4e9, "fsync_us": 5.0,
    }  # fmt: skip
    return a_run(
        command="python -m benchmarks", seconds=90, machine=machine.describe(),
        limits=limits, curves=[curves.record(measured, limits)],
        rows=[*(report.record("store", run(row, rounds=3)) for row in rows),
              *curves.bar_records("growth", measured)],
    )  # fmt: skip


def test_one_run_is_the_source_of_table_charts_and_machine(tmp_path: Path) -> None:
    pages = documented(tmp_path, a_complete_run())
    assert set(pages) == {
        "README.md", "docs/design/performance.md", "docs/images/speed.svg",
        "docs/images/scaling-shape.svg",
    }  # fmt: skip
    whole = pages["docs/design/performance.md"]
    assert "`make bench`" in whole
    assert "loopback round trip 2 µs" in whole
    assert "| store: fast | 4 op/s | redis: 1 op/s | 4× (4–4) |" in whole
    assert "≥ 2× met" in whole
    assert "≥ 8× [missed](#bars-that-are-missed)" in whole
    assert "not run: nats-server is not installed" in whole
    assert "../images/scaling-shape.svg" in whole
    assert "old" not in pages["README.md"]
    assert pages["README.md"].endswith("rest\n")


def test_the_readme_has_the_rows_that_stand_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docs_speed, "FRONT", ("store: fast", "store: not in this run"))
    readme = documented(tmp_path, a_complete_run())["README.md"]
    assert "| store: fast | 4 op/s | redis: 1 op/s | 4× (4–4) |" in readme
    assert "known" not in readme


@pytest.mark.parametrize(("ratio", "tie"), [(0.89, False), (0.9, True), (1.1, True), (1.2, False)])
def test_a_ratio_within_the_noise_is_called_a_tie(tmp_path: Path, ratio: float, tie: bool) -> None:
    whole = a_complete_run()
    peer = next(c for row in whole["rows"] for c in row["contenders"] if "ratio" in c)
    peer["ratio"] = dict.fromkeys(("median", "low", "high"), ratio)
    assert ("a tie" in documented(tmp_path, whole)["docs/design/performance.md"]) is tie


def test_what_a_run_leaves_is_no_part_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(root: Path) -> Iterator[tuple[Path, str]]:
        yield root / "README.md", "a run of this machine"

    monkeypatch.setattr(docs_speed, "pages", left)
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    assert docs.main() == 0


def test_a_missed_bar_without_a_reason_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documented(tmp_path, a_complete_run())
    told = capsys.readouterr().err
    assert told == "performance.md does not explain why this is missed: unknown\n"


@pytest.mark.parametrize(
    ("lower_is_better", "ratio", "reached", "first"),
    [
        (False, 0.9, True, True),
        (False, 1.1, True, False),
        (True, 0.9, True, False),
        (True, 1.1, None, True),
        (False, 1.1, False, True),
    ],
)
def test_rows_that_we_lose_or_that_miss_their_bar_come_first(
    lower_is_better: bool, ratio: float, reached: bool | None, first: bool
) -> None:
    entry = {
        "best_peer": "peer", "lower_is_better": lower_is_better, "reached": reached,
        "contenders": [{"name": "nexo"}, {"name": "peer", "ratio": {"median": ratio}}],
    }  # fmt: skip
    assert docs_speed.lost(entry) is first


def test_a_row_is_compared_with_itself_and_an_unknown_one_is_left_out() -> None:
    figures = compare.compare(compare.HERE, "store", "store GET, one sync client in a loop", 2)
    assert len(figures) == 2
    assert all(figure > 0 for pair in figures for figure, _ in pair)
    assert compare.compare(compare.HERE, "store", "no such row", 2) == []


def test_a_comparison_above_one_is_better_whatever_the_unit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    halved = [[(10.0, 1.0), (5.0, 0.5)]] * 3
    compare.print_row("a rate", halved, lower_is_better=False)
    compare.print_row("a time", halved, lower_is_better=True)
    rate, time = capsys.readouterr().out.splitlines()
    assert rate.split()[2::2] == ["0.50", "2.00"]
    assert time.split()[2::2] == ["2.00", "2.00"]
