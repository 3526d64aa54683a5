"""Settings that do not go together are refused before anything starts."""

from __future__ import annotations

import os
import re
from itertools import combinations, permutations
from pathlib import Path

from nexo.config.settings import Settings
from nexo.errors import ConfigError
from nexo.model import Broker, Persistence

_ORIGIN = re.compile(r"https?://[^\s/?#@,]+", re.ASCII)
_WEB_URL = re.compile(r"https?://[^\s/?#]+\S*", re.ASCII)


def check_together(settings: Settings) -> None:
    """Raise a `ConfigError` about the first settings that contradict each other."""
    _check_ports(settings)
    _check_tls(settings)
    _check_web(settings)
    _check_folders(settings)
    _check_replication(settings)


def _check_ports(settings: Settings) -> None:
    ports = {"port": settings.port}
    if settings.dashboard:
        ports["http_port"] = settings.http_port
    if settings.health:
        ports["health_port"] = settings.health_port
    ports["kafka_port"] = settings.kafka_port
    for one, other in combinations(ports, 2):
        if ports[one] and ports[one] == ports[other]:
            raise ConfigError(f"{one} and {other} are both {ports[one]}: choose two ports")


def _check_replication(settings: Settings) -> None:
    """Reject durability that needs an object store where there is none."""
    if settings.replicate:
        if "://" not in settings.replicate:
            raise ConfigError(f"replicate = {settings.replicate!r}: write s3://bucket/prefix")
        return
    for name in ("queue_persistence", "stream_persistence", "retained_persistence"):
        if getattr(settings, name) == Persistence.REPLICATED:
            raise ConfigError(f"{name} = replicated: name an object store with replicate")


def _check_tls(settings: Settings) -> None:
    """Reject TLS settings without a certificate: they would have no effect."""
    for name in ("tls_key", "tls_client_ca"):
        if getattr(settings, name) is not None and settings.tls_cert is None:
            raise ConfigError(f"{name} is set without tls_cert: name the certificate too")


def _check_web(settings: Settings) -> None:
    for origin in settings.origins:
        if origin == "*":
            if not settings.auth:
                raise ConfigError(
                    "http_origins = '*' without auth lets every web page use this server: "
                    "name the sites, or switch auth on"
                )
        elif not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"http_origins: {origin!r} is not an origin such as https://app.example.com"
            )
    if settings.alert_webhook and not _WEB_URL.fullmatch(settings.alert_webhook):
        raise ConfigError(f"alert_webhook = {settings.alert_webhook!r}: must be an http(s) URL")


def _check_folders(settings: Settings) -> None:
    """Brokers that share a folder, or have one in another's, would destroy each other's files."""
    folders = {
        _folder_label(settings.folder_setting(broker), broker.label): settings.folder(broker)
        for broker in Broker
    }
    if not settings.lake_catalog:
        setting = "lake_path" if settings.lake_path else "data_dir"
        folders[_folder_label(setting, "lake")] = settings.lake_folder
    real = {label: Path(os.path.realpath(folder)) for label, folder in folders.items()}
    for (inner, one), (outer, other) in permutations(real.items(), 2):
        if one.is_relative_to(other):
            how = "is the same folder as" if one == other else "lies inside"
            raise ConfigError(f"{inner} = {one} {how} {outer} = {other}: give each its own folder")


def _folder_label(setting: str, name: str) -> str:
    return f"data_dir/{name}" if setting == "data_dir" else setting
