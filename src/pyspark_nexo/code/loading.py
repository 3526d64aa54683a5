"""Reads a folder of users' files: which ones, and what they define."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2s
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from nexo.errors import ConfigError, NexoError, NotFound
from pyspark_nexo.code.definitions import CodePlace, Definitions, code_error
from pyspark_nexo.code.registry import CodeRegistry
from pyspark_nexo.code.sql import define
from pyspark_nexo.failures import plain_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_by_value: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
SPECS = ("pipeline.yml", "pipeline.yaml", "spark-pipeline.yml", "spark-pipeline.yaml")
"""Files that describe a folder; the fields are those of Spark's own."""
_FIELDS = ("name", "storage", "catalog", "database", "schema", "configuration", "libraries")


@dataclass(frozen=True, slots=True)
class CodeFolder:
    """A folder of definitions, and what its description says."""

    root: Path
    name: str
    conf: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[str, ...] = ("**/*",)

    def files(self) -> list[Path]:
        """The files that define something, in the order of their names."""
        found = {
            path
            for pattern in self.patterns
            for path in self.root.glob(pattern)
            if path.suffix in (".py", ".sql") and path.is_file() and not _is_hidden(path, self.root)
        }
        return sorted(found)


def _is_hidden(path: Path, root: Path) -> bool:
    return any(
        part.startswith(".") or part == "__pycache__" for part in path.relative_to(root).parts
    )


def code_folder(root: Path) -> CodeFolder:
    """A folder as its description says; `NotFound` if it has nothing that defines a table."""
    root = root.resolve()
    if not root.is_dir():
        raise NotFound(f"{root} is not a folder: --code names the folder of a pipeline's files")
    described = [root / name for name in SPECS if (root / name).is_file()]
    if len(described) > 1:
        raise ConfigError(f"{described[0]} and {described[1]}: keep one of them")
    found = _described(described[0]) if described else CodeFolder(root, root.name)
    if not found.files():
        raise NotFound(f"no .py or .sql file in {root} ({', '.join(found.patterns)})")
    return found


def _described(path: Path) -> CodeFolder:
    try:
        import yaml  # noqa: PLC0415 - only such folders need it
    except ImportError:
        raise ConfigError(f"to read {path}: pip install pyyaml") from None
    try:
        given = yaml.safe_load(path.read_text()) or {}
        unknown = set(given) - set(_FIELDS)
        if unknown:
            raise ConfigError(f"{path}: unknown field {min(unknown)!r}; known are {_FIELDS}")
        globs = [each["glob"]["include"] for each in given.get("libraries", [])]
        patterns = tuple(each + "/*" if each.endswith("/**") else each for each in globs)
        conf = {str(name): str(value) for name, value in given.get("configuration", {}).items()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return CodeFolder(path.parent, given.get("name", path.parent.name), conf, patterns or ("**/*",))


def load(spark: SparkSession, folder: CodeFolder) -> Definitions:
    """What a folder's files define; errors say file and line."""
    files = {path: path.read_bytes() for path in folder.files()}
    found = Definitions(digest=blake2s(b"".join(files.values()), digest_size=8).hexdigest())
    registry = CodeRegistry(spark, folder.root, found)
    with _inside(folder.root), registry.collecting():
        for path, content in files.items():
            if path.suffix == ".sql":
                define(spark, found, content.decode(), str(path.relative_to(folder.root)))
            else:
                _import(spark, path, folder.root)
    for module in list(sys.modules.values()):  # what the files import from their folder
        if _is_below(getattr(module, "__file__", None), folder.root):
            _by_value(module)
    found.check()
    if not found.flows:
        raise NotFound(f"the files in {folder.root} define no flow: see docs, 'My first table'")
    return found


def _is_below(file: str | None, root: Path) -> bool:
    return file is not None and Path(file).is_relative_to(root) and ".venv" not in Path(file).parts


def _import(spark: SparkSession, path: Path, root: Path) -> None:
    spec = spec_from_file_location(f"nexo_code_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    module.__dict__["spark"] = spark
    sys.modules[spec.name] = module  # which dataclasses look for
    _by_value(module)  # executors do not have the folder
    with located(root, CodePlace(str(path.relative_to(root)))), plain_errors():
        spec.loader.exec_module(module)


@contextmanager
def _inside(root: Path) -> Iterator[None]:
    """Files may read others by their relative paths, and import one another."""
    before = Path.cwd()
    os.chdir(root)
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))
        os.chdir(before)


@contextmanager
def located(root: Path, place: CodePlace) -> Iterator[None]:
    """Raise what users' code raises with its file and line; ``place`` if it does not say."""
    try:
        yield
    except SyntaxError as error:
        raise code_error(CodePlace(place.file, error.lineno), str(error.msg)) from None
    except NexoError as error:
        if str(error.message).startswith(place.file):
            raise
        raise code_error(_last_line(error, root) or place, error.message) from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise code_error(_last_line(error, root) or place, what) from error


def _last_line(error: BaseException, root: Path) -> CodePlace | None:
    """The last line of users' files that an error passed through."""
    found: CodePlace | None = None
    each: BaseException | None = error
    while each is not None:
        for frame in traceback.extract_tb(each.__traceback__):
            path = Path(frame.filename)
            if path.is_relative_to(root) and ".venv" not in path.parts:
                found = CodePlace(str(path.relative_to(root)), frame.lineno)
        each = each.__cause__
    return found
