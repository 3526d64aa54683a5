"""Settings from all sources (SPEC A8)."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from msgspec.inspect import BoolType, CustomType, EnumType, IntType, LiteralType, StrType

from nexo.config import DAY_MS, GIB, HOUR_MS, KIB, MIB, SETTINGS, Settings, doubtful_variables, load
from nexo.config.keywords import Mode, ServerSettings
from nexo.errors import ConfigError
from nexo.model import Broker, Persistence
from nexo.options.queue import options

DOCUMENTED = {
    "SERVER_HOST": ("10.1.2.3", "host", "10.1.2.3"),
    "SERVER_SOCKET_TCP_PORT": ("7000", "port", 7000),
    "SERVER_DASHBOARD_HTTP_PORT": ("7001", "http_port", 7001),
    "MAX_PAYLOAD_SIZE": ("2048", "max_payload_bytes", 2048),
    "STREAM_DEFAULT_FLUSH_MS": ("20", "flush_ms", 20),
    "STREAM_MAX_OPEN_FILES": ("64", "max_open_files", 64),
    "NEXO_ENV": ("prod", "env", "prod"),
    "NEXO_LOG": ("debug", "log", "debug"),
    "QUEUE_ROOT_PERSISTENCE_PATH": ("/q", "queue_path", Path("/q")),
    "STREAM_ROOT_PERSISTENCE_PATH": ("/s", "stream_path", Path("/s")),
    "PUBSUB_ROOT_PERSISTENCE_PATH": ("/p", "pubsub_path", Path("/p")),
}


def toml(folder: Path, text: str) -> Path:
    path = folder / "nexo.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_any_source_the_documented_defaults_hold() -> None:  # SPEC A1, A8
    settings = load()
    assert (settings.host, settings.port, settings.http_port) == ("127.0.0.1", 7654, 8080)
    assert settings.data_dir == Path("data")
    assert settings.max_payload_bytes == 10 * MIB
    assert (settings.flush_ms, settings.max_open_files) == (50, 256)
    assert (settings.retention_ms, settings.retention_bytes) == (7 * DAY_MS, GIB)
    assert settings.retained_ttl_ms == HOUR_MS
    assert settings.dashboard


@pytest.mark.parametrize("variable", DOCUMENTED)
def test_every_variable_of_the_documents_works(variable: str) -> None:  # SPEC A8
    text, name, expected = DOCUMENTED[variable]
    assert getattr(load(environ={variable: text}), name) == expected


INHERITED = {
    "NEXO_LOG": ("warn", "log", "warning"),
    "QUEUE_VISIBILITY_MS": ("1500", "queue_visibility_ms", 1_500),
    "QUEUE_MAX_RETRIES": ("7", "queue_max_retries", 7),
    "QUEUE_DEFAULT_BATCH_SIZE": ("10", "classic_batch", 10),
    "QUEUE_DEFAULT_WAIT_MS": ("0", "classic_wait_ms", 0),
    "STORE_TTL_SECS": ("3600", "classic_ttl_ms", 3_600_000),
    "PUBSUB_DEFAULT_RETAINED_TTL_SECS": ("60", "retained_ttl_ms", 60_000),
    "STREAM_ACK_WAIT_MS": ("2000", "group_ack_wait_ms", 2_000),
    "STREAM_MAX_DELIVERIES": ("3", "group_max_deliveries", 3),
    "STREAM_MAX_ACK_PENDING": ("100", "group_max_ack_pending", 100),
    "STREAM_MAX_SEGMENT_SIZE": ("1048576", "segment_bytes", 1_048_576),
    "STREAM_DEFAULT_RETENTION_AGE_MS": ("5000", "retention_ms", 5_000),
    "STREAM_DEFAULT_RETENTION_BYTES": ("6000", "retention_bytes", 6_000),
    "STREAM_RETENTION_CHECK_MS": ("7000", "retention_check_ms", 7_000),
}
WITHOUT_EFFECT = [
    "CHANNEL_CAPACITY_SOCKET_WRITE",
    "PUBSUB_CLEANUP_INTERVAL_SECS",
    "PUBSUB_RETAINED_FLUSH_MS",
    "QUEUE_DEFAULT_FLUSH_MS",
    "NEXO_QUEUE_DEFAULT_FLUSH_MS",
    "QUEUE_WRITER_BATCH_SIZE",
    "STORE_CLEANUP_INTERVAL_SECS",
    "STREAM_EVICTION_INTERVAL_MS",
    "STREAM_RAM_HARD_LIMIT",
    "STREAM_RAM_SOFT_LIMIT",
]


@pytest.mark.parametrize("variable", INHERITED)
def test_a_variable_of_the_documents_server_has_its_effect(variable: str) -> None:  # SPEC R2
    text, name, expected = INHERITED[variable]
    assert getattr(load(environ={variable: text}), name) == expected
    assert doubtful_variables({variable: text}) == []


@pytest.mark.parametrize("variable", [*WITHOUT_EFFECT, "NEXO_LOG"])
def test_a_variable_without_effect_is_named_in_a_warning(variable: str) -> None:  # SPEC R2
    text = "nexo=debug,hyper=warn" if variable == "NEXO_LOG" else "1"
    assert load(environ={variable: text}) == load()
    (warning,) = doubtful_variables({variable: text})
    assert re.search(rf"{variable}\b.* has no effect here", warning)


def test_our_own_variable_goes_before_the_one_of_the_documents_server() -> None:  # SPEC R2
    environ = {"STREAM_RETENTION_BYTES": "1", "STREAM_DEFAULT_RETENTION_BYTES": "2"}
    assert load(environ=environ).retention_bytes == 1
    assert load(environ={"NEXO_LOG": "trace"}).log == "debug"


def test_each_source_goes_before_the_one_below(tmp_path: Path) -> None:  # SPEC A8
    file = toml(tmp_path, "port = 1\nhttp_port = 1\nflush_ms = 1\n")
    environ = {"SERVER_SOCKET_TCP_PORT": "2", "SERVER_DASHBOARD_HTTP_PORT": "2"}
    settings = load(file, environ, {"port": 3, "host": None})
    assert (settings.port, settings.http_port, settings.flush_ms) == (3, 2, 1)
    assert settings.host == "127.0.0.1"


def test_production_switches_the_dashboard_off_unless_it_is_asked_for() -> None:  # SPEC A8
    assert not load(environ={"NEXO_ENV": "prod"}).dashboard
    assert load(environ={"NEXO_ENV": "prod", "NEXO_DASHBOARD": "on"}).dashboard
    assert load(environ={"NEXO_ENV": "dev"}).dashboard


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("SERVER_SOCKET_TCP_PORT", "seven"),
        ("SERVER_SOCKET_TCP_PORT", "70000"),
        ("SERVER_SOCKET_TCP_PORT", "-1"),
        ("SERVER_SOCKET_TCP_PORT", ""),
        ("SERVER_SOCKET_TCP_PORT", "1.5"),
        ("MAX_PAYLOAD_SIZE", "10"),
        ("MAX_PAYLOAD_SIZE", "ten MiB"),
        ("MAX_PAYLOAD_SIZE", "5000000000"),
        ("STREAM_MAX_OPEN_FILES", "0"),
        ("NEXO_LOG", "loud"),
        ("NEXO_LOG_FORMAT", "xml"),
        ("NEXO_ENV", "staging"),
        ("NEXO_DASHBOARD", "maybe"),
        ("SERVER_HOST", ""),
        ("NEXO_DATA_DIR", ""),
        ("PUBSUB_DEFAULT_RETAINED_TTL_SECS", "soon"),
        ("PUBSUB_DEFAULT_RETAINED_TTL_SECS", "-1"),
    ],
)
def test_a_bad_value_stops_the_start_and_names_the_variable(key: str, text: str) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=re.escape(key)):
        load(environ={key: text})


@pytest.mark.parametrize("text", ["nonsense = 1", "[server]\nport = 1"])
def test_an_unknown_key_of_the_file_stops_the_start_and_is_named(
    tmp_path: Path, text: str
) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=r"nonsense|server"):
        load(toml(tmp_path, text))


def test_a_bad_value_of_the_file_names_key_and_file(tmp_path: Path) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=r"nexo\.toml: port"):
        load(toml(tmp_path, "port = true"))


def test_an_unknown_variable_of_ours_stops_the_start() -> None:  # SPEC A8
    with pytest.raises(ConfigError, match="NEXO_PROT"):
        load(environ={"NEXO_PROT": "1"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("NEXO_PORT", "SERVER_SOCKET_TCP_PORT"),
        ("NEXO_PROT", "SERVER_SOCKET_TCP_PORT"),
        ("NEXO_HTTP_PORT", "SERVER_DASHBOARD_HTTP_PORT"),
        ("NEXO_DASHBOARD_PORT", "SERVER_DASHBOARD_HTTP_PORT"),
        ("NEXO_BIND_ADDRESS", "SERVER_HOST"),
        ("NEXO_DATA_FOLDER", "NEXO_DATA_DIR"),
        ("NEXO_LOG_LEVEL", "NEXO_LOG"),
        ("NEXO_RETENTION", "STREAM_RETENTION_MS or STREAM_RETENTION_BYTES"),
        ("NEXO_SSL_CERTIFICATE", "NEXO_TLS_CERT"),
        ("NEXO_ENVIRONMENT", "NEXO_ENV"),
        ("NEXO_TIMEOUT", "QUEUE_VISIBILITY_TIMEOUT_MS"),
        ("NEXO_PASSWD", "NEXO_PASSWORD"),
    ],
)
def test_an_unknown_variable_is_told_with_the_one_that_was_meant(
    given: str, meant: str
) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=rf"{given}; did you mean {meant}\?$"):
        load(environ={given: "9000"})


def test_a_variable_like_no_other_is_told_with_where_to_look() -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=r"NEXO_XYZZY; `nexo serve --help` names all"):
        load(environ={"NEXO_XYZZY": "1"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [("tcp_port", "port"), ("SERVER_HOST", "host"), ("loglevel", "log"), ("lake_dir", "lake_path")],
)
def test_an_unknown_key_of_the_file_is_told_with_the_one_that_was_meant(
    tmp_path: Path, given: str, meant: str
) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=rf"{given}; did you mean {meant}\?$"):
        load(toml(tmp_path, f"{given} = 1"))


def test_settings_in_a_section_are_told_to_leave_it(tmp_path: Path) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=r"without a section: leave out \[server\]$"):
        load(toml(tmp_path, "[server]\nport = 1"))


def test_variables_of_others_and_of_our_client_are_left_alone() -> None:
    foreign = {"QUEUE_SIZE": "x", "STREAM_URL": "y", "SERVER_SOFTWARE": "z", "PATH": "/bin"}
    own = {"NEXO_URL": "nexo://h:1", "NEXO_CONFIG": "f", "_NEXO_COMPLETE": "bash_source"}
    cluster = {"NEXO_SERVICE_HOST": "10.0.0.1", "NEXO_PORT": "tcp://10.0.0.1:7654"}
    own |= cluster | {"NEXO_PORT_7654_TCP_ADDR": "10.0.0.1"}
    assert load(environ=foreign | own) == Settings()


def test_an_unknown_flag_is_named() -> None:
    with pytest.raises(ConfigError, match="speed"):
        load(flags={"speed": 11})


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4096", 4096), ("64KiB", 64 * KIB), ("2 MiB", 2 * MIB), ("1gb", GIB), ("1_000_000", 10**6)],
)
def test_sizes_may_carry_a_unit(text: str, expected: int) -> None:
    assert load(environ={"MAX_PAYLOAD_SIZE": text}).max_payload_bytes == expected


@pytest.mark.parametrize(("text", "expected"), [("20", 20), ("250ms", 250), ("2s", 2000)])
def test_times_may_carry_a_unit(text: str, expected: int) -> None:
    assert load(environ={"STREAM_DEFAULT_FLUSH_MS": text}).flush_ms == expected


def test_a_time_is_not_a_size() -> None:
    with pytest.raises(ConfigError, match="STREAM_DEFAULT_FLUSH_MS"):
        load(environ={"STREAM_DEFAULT_FLUSH_MS": "1MB"})
    with pytest.raises(ConfigError, match="MAX_PAYLOAD_SIZE"):
        load(environ={"MAX_PAYLOAD_SIZE": "10s"})


def test_the_retained_ttl_may_be_given_in_seconds_as_the_documents_do() -> None:
    assert load(environ={"PUBSUB_DEFAULT_RETAINED_TTL_SECS": "90"}).retained_ttl_ms == 90_000


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("absent.toml")):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match=re.escape("nexo.toml is not valid TOML")):
        load(toml(tmp_path, "port ="))
    (tmp_path / "latin.toml").write_bytes(b"host = '\xff'")
    with pytest.raises(ConfigError, match=re.escape("latin.toml")):
        load(tmp_path / "latin.toml")


def test_each_broker_has_a_folder_of_its_own_and_may_be_moved(tmp_path: Path) -> None:
    settings = load(flags={"data_dir": tmp_path, "queue_path": tmp_path / "elsewhere"})
    assert settings.folder(Broker.STORE) == tmp_path / "store"
    assert settings.folder(Broker.QUEUE) == tmp_path / "elsewhere"
    assert len({settings.folder(broker) for broker in Broker}) == len(Broker)
    assert all(settings.folder(broker).is_absolute() for broker in Broker)


def test_every_setting_has_a_variable_of_its_own_and_a_description() -> None:
    assert tuple(SETTINGS) == Settings.__struct_fields__
    assert len({each.variable for each in SETTINGS.values()} - {""}) == len(SETTINGS)
    assert all(each.meaning.endswith(".") for each in SETTINGS.values())


def test_the_keywords_of_test_servers_are_the_settings() -> None:  # SPEC K2
    kinds = {
        BoolType: "bool", StrType: "str", CustomType: "str | Path | None", EnumType: "Mode",
    }  # fmt: skip
    found = ServerSettings.__annotations__
    assert set(found) == set(SETTINGS) - {"data_dir"}
    for name, hint in found.items():
        one = SETTINGS[name]
        match one.type:
            case LiteralType():
                assert get_args(get_type_hints(ServerSettings)[name]) == tuple(one.choices)
            case IntType():
                assert hint.__forward_arg__ == ("int | str" if one.unit else "int")
            case _:
                assert hint.__forward_arg__ == kinds[type(one.type)]
    assert get_args(Mode) == tuple(Persistence)


def test_every_default_passes_its_own_check() -> None:
    flags = {name: each.default for name, each in SETTINGS.items()}
    assert load(flags=flags) == Settings()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"queue_path": "/x/same", "stream_path": "/x/same"}, ("queue_path", "stream_path")),
        ({"queue_path": "/x/q", "pubsub_path": "/x/q/../q/in"}, ("pubsub_path", "queue_path")),
        ({"data_dir": "/x", "queue_path": "/x/store"}, ("queue_path", "data_dir/store")),
        ({"data_dir": "/x/d", "stream_path": "/x"}, ("data_dir/store", "stream_path")),
        ({"data_dir": "/x", "lake_path": "/x/stream/lake"}, ("lake_path", "data_dir/stream")),
    ],
)
def test_folders_in_one_another_stop_the_start_and_are_named(
    flags: dict[str, str], named: tuple[str, str]
) -> None:  # SPEC A8, D7, E2
    with pytest.raises(ConfigError) as refused:
        load(flags=flags)
    assert all(name in refused.value.message for name in named)


def test_a_link_does_not_hide_a_shared_folder(tmp_path: Path) -> None:  # SPEC A8
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    flags = {"queue_path": tmp_path / "real", "stream_path": tmp_path / "link" / "below"}
    with pytest.raises(ConfigError, match=r"stream_path .* lies inside queue_path"):
        load(flags=flags)


@pytest.mark.parametrize("setting", ["tls_key", "tls_client_ca"])
def test_half_of_tls_stops_the_start_and_is_named(setting: str) -> None:  # SPEC A8, A10
    with pytest.raises(ConfigError, match=f"{setting} is set without tls_cert"):
        load(flags={setting: "/some.pem"})


@pytest.mark.parametrize("other", ["http_port", "health_port", "kafka_port"])
def test_one_port_for_both_stops_the_start(other: str) -> None:  # SPEC A8
    with pytest.raises(ConfigError, match=f"port and {other} are both 7000"):
        load(flags={"port": 7000, other: 7000})


def test_a_port_that_is_not_opened_may_be_another() -> None:  # SPEC A8
    assert load(flags={"port": 7000, "http_port": 7000, "dashboard": False}).port == 7000
    assert load(flags={"port": 0, "http_port": 0}).port == 0


NUMBERS = [each.variable for each in SETTINGS.values() if isinstance(each.type, IntType)]


@pytest.mark.parametrize("variable", NUMBERS)
def test_a_number_beyond_all_use_stops_the_start_and_is_named(variable: str) -> None:
    """SPEC A8: nothing may be too large to be sent, waited for or counted with later."""
    with pytest.raises(ConfigError, match=f"{variable} = .*must be .* from .* to "):
        load(environ={variable: "9" * 23})
    with pytest.raises(ConfigError, match=variable):
        load(environ={variable: "9" * 10_000})


def test_defaults_of_a_queue_stay_within_its_own_limits() -> None:  # SPEC A8, D1
    highest = {"queue_visibility_ms": 10 * 366 * DAY_MS, "queue_max_retries": 1_000_000}
    settings = load(flags=highest)
    options({"visibility_timeout_ms": settings.queue_visibility_ms, "max_retries": 1_000_000})
    for name, value in highest.items():
        with pytest.raises(ConfigError, match=name):
            load(flags={name: value + 1})


def test_a_variable_that_is_nearly_one_of_ours_is_told() -> None:  # SPEC A8
    environ = {"STREAM_CDCX": "true", "SERVER_SOCKET_PORT": "1", "STREAM_CDC": "true"}
    first, second = doubtful_variables(environ | {"SERVER_SOFTWARE": "x", "QUEUE_SIZE": "1"})
    assert "STREAM_CDCX is not known; did you mean STREAM_CDC?" in first
    assert "SERVER_SOCKET_PORT is not known; did you mean SERVER_SOCKET_TCP_PORT?" in second
    (by_words,) = doubtful_variables({"SERVER_PORT": "1", "SERVER_NAME": "x", "QUEUE_URL": "y"})
    assert "SERVER_PORT is not known; did you mean SERVER_SOCKET_TCP_PORT?" in by_words
