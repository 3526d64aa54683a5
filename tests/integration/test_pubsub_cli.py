"""``nexo pubsub`` against a real server (SPEC K5)."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from nexo.cli import main


def nexo(url: str, *args: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["pubsub", *args, "--url", url], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


def test_a_retained_message_is_published_seen_listed_and_cleared(nexo_url: str) -> None:
    assert nexo(nexo_url, "pub", "a/b", "hello", "--retain").output == "0 receivers\n"
    assert nexo(nexo_url, "sub", "a/#", "--count", "1").output == "a/b hello\n"
    assert "a/b" in nexo(nexo_url, "retained", "a/+").output
    assert nexo(nexo_url, "pub", "a/b", "", "--retain").exit_code == 0
    assert "nothing is retained" in nexo(nexo_url, "retained").output


def test_json_in_and_out(nexo_url: str) -> None:
    nexo(nexo_url, "pub", "t", '{"ts":1}', "--as", "json", "--retain", "--ttl", "60")
    line = json.loads(nexo(nexo_url, "sub", "t", "#", "--count", "1", "--json").output)
    assert (line["topic"], line["value"], line["retained"]) == ("t", {"ts": 1}, True)
    published = json.loads(nexo(nexo_url, "pub", "t", "-", "--json", stdin="x").output)
    assert published == {"topic": "t", "receivers": 0}


def test_sub_ends_after_silence(nexo_url: str) -> None:
    assert nexo(nexo_url, "sub", "none", "--wait", "0.01").output == ""


def test_a_bad_topic_is_one_line_and_exit_code_one(nexo_url: str) -> None:
    result = nexo(nexo_url, "pub", "a/+", "x")
    assert result.exit_code == 1
    assert result.output.startswith("error[INVALID_NAME]: ")


def test_subscriptions_are_listed(nexo_url: str) -> None:
    assert "nobody is subscribed" in nexo(nexo_url, "subscriptions").output


def test_topics_in_use_are_listed(nexo_url: str) -> None:
    assert "nothing was published" in nexo(nexo_url, "topics").output
    for topic in ("a/b", "a/b", "c"):
        nexo(nexo_url, "pub", topic, "x")
    lines = nexo(nexo_url, "topics", "--json").output.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"topic": "c", "messages": 1},
        {"topic": "a/b", "messages": 2},
    ]
