"""The command line: a dictionary of functions. Nothing heavy is imported before a command needs it."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from osae import __version__
from osae.cli import comparing, evaluating, harvesting, reproduce, training


class Command(NamedTuple):
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 stopped halfway, 2 the request cannot be met."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asked = parser().parse_args(words, argparse.Namespace(words=words))
    try:
        return COMMANDS[asked.command].run(asked)
    except (ValueError, OSError) as error:
        if os.environ.get("OSAE_TRACEBACK"):
            raise
        print(f"osae: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nosae: stopped. The same command goes on from what is on disk.", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    top = argparse.ArgumentParser(
        prog="osae",
        description="Ordered sparse autoencoders: train them exactly, and measure how consistent any are.",
        epilog="`osae COMMAND --help` tells more. First steps: osae reproduce toy --quick --out runs/demo",
    )
    top.add_argument("--version", action="version", version=f"osae {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.help,
            description=command.help,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        command.configure(sub)
    return top


COMMANDS = {
    "reproduce": Command(
        "Run an experiment of the paper and print our numbers beside its.", reproduce.configure, reproduce.run
    ),
    "harvest": Command(
        "Run text through a language model and keep the activations of one layer.",
        harvesting.configure,
        harvesting.run,
    ),
    "train": Command(
        "Train SAEs on activations or on a synthetic world, into a run folder.",
        training.configure_train,
        training.train,
    ),
    "resume": Command(
        "Go on with a run that was stopped; it ends as if it never had been.",
        training.configure_resume,
        training.resume,
    ),
    "recipes": Command(
        "List the recipes, or print one in full.", training.configure_recipes, training.recipes
    ),
    "evaluate": Command(
        "How well SAEs rebuild held-out activations, prefix by prefix, and what a model loses by it.",
        evaluating.configure,
        evaluating.run,
    ),
    "compare": Command(
        "How consistent SAEs are, whoever trained them: every pair, beside its chance level.",
        comparing.configure_compare,
        comparing.compare,
    ),
    "order": Command(
        "Give an SAE of any library a canonical order, from activations.",
        comparing.configure_order,
        comparing.order,
    ),
    "stitch": Command(
        "What a larger SAE knows that a smaller one does not, unit by unit.",
        comparing.configure_stitch,
        comparing.stitch,
    ),
    "convert": Command(
        "Write an SAE in the files of another library; refused if anything would be lost.",
        comparing.configure_convert,
        comparing.convert,
    ),
    "inspect": Command(
        "Tell what a file or folder holds: an SAE of any library, or activations.",
        comparing.configure_inspect,
        comparing.inspect,
    ),
}
