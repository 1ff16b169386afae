"""`osae completion`: shell completion of commands, options and values."""

from dataclasses import dataclass

from osae.cli.command import Command
from osae.cli.completion import SCRIPTS
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Options):
    """The shell."""

    shell: str = option(
        "shell to write the script for", positional=True, metavar="SHELL", choices=tuple(SCRIPTS)
    )


def run(options: CompletionOptions, line: str) -> int:
    """Print the script."""
    print(SCRIPTS[options.shell], end="")
    return 0


COMMAND = Command(
    "completion",
    "Print a completion script for bash, zsh or fish.",
    CompletionOptions,
    run,
    examples=(
        "source <(osae completion bash)                                  # in ~/.bashrc",
        "source <(osae completion zsh)                                   # in ~/.zshrc, after compinit",
        "osae completion fish > ~/.config/fish/completions/osae.fish",
    ),
)
