"""``python -m nexo.cli``: the command line without the installed script."""

from nexo.cli import main

main()
