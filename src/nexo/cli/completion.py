"""``nexo completion bash|zsh|fish``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(nexo completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(nexo completion zsh)"  # in ~/.zshrc',
    "fish": "nexo completion fish > ~/.config/fish/completions/nexo.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes nexo's commands and options in SHELL."""
    root = ctx.find_root().command
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(root, {}, "nexo", "_NEXO_COMPLETE").source())
