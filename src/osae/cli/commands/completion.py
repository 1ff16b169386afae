"""`osae completion`: completion of commands, options and values in a shell."""

from dataclasses import dataclass

from osae.cli.command import Command
from osae.cli.completion import SCRIPTS
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class CompletionOptions(Options):
    """The shell."""

    shell: str = option("bash, zsh or fish", positional=True, metavar="SHELL", choices=tuple(SCRIPTS))


def run(options: CompletionOptions, line: str) -> int:
    """Print the script."""
    print(SCRIPTS[options.shell], end="")
    return 0


COMMAND = Command(
    "completion",
    "Print a script that lets bash, zsh or fish complete commands, options and values.",
    CompletionOptions,
    run,
    examples=(
        "source <(osae completion bash)                                  # in ~/.bashrc",
        "source <(osae completion zsh)                                   # in ~/.zshrc, after compinit",
        "osae completion fish > ~/.config/fish/completions/osae.fish",
    ),
)
