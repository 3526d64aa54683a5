"""Type-check the Python of the docs: ``tools/doc_types.py [mypy | pyright]``.

The ``python`` blocks of a page become one function of a module. The examples and a program with a
mistake are checked as they are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "doc-types"
NODE = Path(sys.prefix) / "node" / "node_modules"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [*sorted((ROOT / "examples").glob("*.py")), ROOT / "tests" / "user_program.py"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREIGN = ("guide_celery", "howto_operate_the_pipeline")
"""Pages whose packages (Celery, PyIceberg) have types that pyright rejects as they are used."""
MYPY = """[mypy]
strict = true
allow_redefinition = true
disallow_untyped_decorators = false
untyped_calls_exclude = dramatiq
ignore_missing_imports = true
mypy_path = {src}
[mypy-amqp.*,celery.*,kombu.*,pyiceberg.*,pyspark.*]
follow_imports = skip
"""
"""Strict about what is ours; the types of other packages are as they are."""


def extract() -> list[Path]:
    """One module for each page that has Python."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found: dict[Path, str] = {}
    for page in PAGES:
        blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
        name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")).lower())
        if blocks:
            body = textwrap.indent("\n".join(blocks), "    ")
            found[FOLDER / f"{name}.py"] = f"def page() -> None:\n{body}"
    for stale in set(FOLDER.glob("*.py")) - set(found):
        stale.unlink()
    for path, text in found.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return [*found, *EXAMPLES]


def mypy(paths: list[Path]) -> list[str]:
    """The command that checks them."""
    config = FOLDER / "mypy.ini"
    config.write_text(MYPY.format(src=ROOT / "src"), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config)]
    return [*command, "--cache-dir", str(FOLDER / "cache"), *map(str, paths)]


def pyright(paths: list[Path]) -> list[str]:
    """The command that checks them."""
    paths = [path for path in paths if not path.stem.endswith(FOREIGN)]
    config = FOLDER / "pyrightconfig.json"
    settings = {
        "include": [os.path.relpath(path, FOLDER) for path in paths],
        "extraPaths": [str(ROOT / "src")],
        "pythonVersion": "3.11",
        "reportMissingImports": False,
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    script = str(NODE / "pyright" / "index.js")
    return ["node", script, "--project", str(config), "--pythonpath", sys.executable]


def main(arguments: list[str]) -> int:
    """Entry point."""
    check = pyright if arguments == ["pyright"] else mypy
    return subprocess.run(check(extract()), cwd=FOLDER, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
