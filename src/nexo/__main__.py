"""``python -m nexo`` is the ``nexo`` command."""

from nexo.cli import main

main()
