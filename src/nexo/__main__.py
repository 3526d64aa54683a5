"""The ``nexo`` command, also as ``python -m nexo``."""

from __future__ import annotations

import sys

from nexo.errors import ConfigError
from nexo.extras import require


def main() -> None:
    """Run the command, or say what to install first."""
    try:
        require("cli")
    except ConfigError as error:
        sys.exit(f"error[{error.code}]: {error.message}")
    from nexo.cli import main as run  # noqa: PLC0415 - imports click

    run()


if __name__ == "__main__":
    main()
