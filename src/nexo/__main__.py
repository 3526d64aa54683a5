"""The ``nexo`` command, also as ``python -m nexo``."""

from __future__ import annotations

import sys

from nexo.errors import ConfigError
from nexo.extras import require


class WithoutPandas:
    """Hides pandas from DuckDB and PyArrow, which import it, where it is installed, to look at any
    value: that takes longer than most queries.
    """

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Say that there is no pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def main() -> None:
    """Run the command, or say what to install first."""
    try:
        require("cli")
    except ConfigError as error:
        sys.exit(f"error[{error.code}]: {error.message}")
    from nexo.cli import main as run  # noqa: PLC0415 - imports click

    if "sql" in sys.argv and "spark" not in sys.argv:
        sys.meta_path.insert(0, WithoutPandas())
    run()


if __name__ == "__main__":
    main()
