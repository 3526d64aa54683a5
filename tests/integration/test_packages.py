"""The wheel and the sdist, installed into environments that have nothing else (SPEC O7).

An environment gets the wheel by pip, and of this machine's packages exactly those that the
wheel's metadata asks for, so that nothing is fetched and nothing undeclared can be imported.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import nexo
from nexo import testing

ROOT = Path(__file__).parents[2]
NAME = "nexo-broker"
OLD_FOLDER = ROOT / "tests" / "data" / "folder-0.1.0"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel, which is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(packages: Path) -> Path:
    (found,) = packages.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


class Environment:
    """A virtual environment with the wheel and what it asks for."""

    def __init__(self, folder: Path, wheel: Path, metadata: Message, *extras: str) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        (self._site,) = folder.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install"]
        subprocess.run(
            [*pip, "--quiet", "--no-deps", "--no-index", "--no-compile", str(wheel)], check=True
        )
        asked = metadata.get_all("Requires-Dist") or []
        self.packages = sorted(needed(asked, set(extras), asked))
        for name in self.packages:
            copy(distribution(name), self._site)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        program = str(self.bin / command[0])
        return subprocess.run(
            [program, *command[1:]], check=False, capture_output=True, text=True, env={}, cwd="/"
        )

    @property
    def megabytes(self) -> float:
        files = [one for one in self._site.rglob("*") if one.is_file()]
        return sum(one.stat().st_size for one in files if "__pycache__" not in one.parts) / 1e6


def needed(asked: list[str], extras: set[str], own: list[str]) -> set[str]:
    """The names of all that these requirements bring, at any depth, with these extras on."""
    found: set[str] = set()
    for requirement in map(Requirement, asked):
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if requirement.name == NAME:
            found |= needed(own, requirement.extras, own)
            continue
        found.add(requirement.name)
        deeper = distribution(requirement.name).requires or []
        found |= needed(deeper, requirement.extras, own)
    return found


def copy(package: Distribution, site: Path) -> None:
    """Install what is installed here already, file by file."""
    for file in package.files or []:
        if ".." in file.parts or "__pycache__" in file.parts:
            continue  # commands and caches
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(str(package.locate_file(file)), target)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, wheel: Path, metadata: Message) -> Environment:
    return Environment(tmp_path_factory.mktemp("client"), wheel, metadata)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, wheel: Path, metadata: Message) -> Environment:
    return Environment(tmp_path_factory.mktemp("server"), wheel, metadata, "server")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with testing.server() as address:
        yield address


def test_the_client_needs_two_packages(client: Environment) -> None:
    assert client.packages == ["google-crc32c", "msgspec"]
    assert client.megabytes < 12


def test_the_client_alone_does_the_work(client: Environment, url: str) -> None:
    program = f"""
import nexo, nexo.topics, nexo.types, nexo.xstreams, asyncio
with nexo.connect({url!r}) as client:
    client.store.set("a", 1)
    queue = client.queue("jobs").create()
    queue.push({{"to": "max"}}, delay=0)
    [job] = queue.pop(wait=5)
    job.ack()
    stream = client.stream("events").create()
    stream.publish("first", key="k")
    with client.pubsub.subscribe("t/+") as messages:
        client.pubsub.publish("t/1", 2)
        print(client.store.get("a"), job.value, messages.get(timeout=5).value)
    with nexo.topics.Producer(server={url!r}, compression="gzip") as producer:
        producer.send("events", "second")
        producer.flush()
    print([record.value for record in stream.read()])
async def main():
    async with nexo.AsyncClient({url!r}) as client:
        print(await client.store.get("a"))
asyncio.run(main())
"""
    done = client.run("python", "-W", "error", "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 {'to': 'max'} 2\n['first', 'second']\n1\n"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (["nexo", "--version"], "pip install 'nexo-broker[cli]'"),
        (["python", "-m", "nexo", "serve"], "pip install 'nexo-broker[cli]'"),
        (
            ["python", "-c", "import nexo.testing as t; t.server().__enter__()"],
            "pip install 'nexo-broker[server]'",
        ),
        (["python", "-c", "import nexo.testing as t; t.Process()"], "[server]"),
    ],
)
def test_without_an_extra_the_client_says_which(
    client: Environment, program: list[str], said: str
) -> None:
    done = client.run(*program)
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]


def test_the_command_works_without_the_server_and_says_how_to_get_it(
    tmp_path: Path, wheel: Path, metadata: Message, url: str
) -> None:
    command = Environment(tmp_path / "cli", wheel, metadata, "cli")
    assert command.run("nexo", "--version").stdout == f"nexo, version {nexo.__version__}\n"
    assert command.run("nexo", "--url", url, "store", "set", "b", "2").returncode == 0
    assert command.run("nexo", "--url", url, "--json", "queue", "list").returncode == 0
    assert command.run("nexo", "doctor", str(OLD_FOLDER)).returncode == 0
    refused = command.run("nexo", "serve")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
    assert "pip install 'nexo-broker[server]'" in refused.stderr


def test_the_server_starts_and_serves(server: Environment, tmp_path: Path) -> None:
    program = """
import sys, urllib.request, nexo, nexo.testing
with nexo.testing.process() as server, nexo.connect(server.url) as client:
    client.store.set("a", 1)
    for url in (server.http_url + "/metrics", server.http_url + "/", server.health_url + "/ready"):
        print(urllib.request.urlopen(url).status)
"""
    done = server.run("python", "-c", program)
    assert (done.returncode, done.stdout) == (0, "200\n200\n200\n"), done.stderr
    assert len(server.packages) < 20
    assert not {"duckdb", "pyarrow", "pyspark", "redis", "lz4"} & set(server.packages)


def test_the_metadata_says_what_it_is_and_where(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == (NAME, nexo.__version__)
    urls = {text.partition(",")[0] for text in metadata.get_all("Project-URL") or []}
    assert {"Changelog", "Documentation", "Issues", "Source"} <= urls
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_package_s_readme_has_no_links_into_the_repository(metadata: Message) -> None:
    readme = metadata.get_payload()
    assert isinstance(readme, str)
    targets = re.findall(r"\]\(([^)\s]+)", readme)
    assert targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_packages_hold_the_sources_and_nothing_else(packages: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"nexo/py.typed", "nexo/admin/static/index.html"} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "nexo", "nexo_broker", "pyspark_nexo",
    }  # fmt: skip
    (sdist,) = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml"} <= inside
    assert {"constraints.txt", "ops/Dockerfile", "ops/compose.yaml"} <= inside, "for an image"
    assert not [name for name in inside if name.startswith(("tests", "docs", ".ci"))]
