"""`osae watch`: follow a training run."""

import time
from dataclasses import dataclass
from pathlib import Path

from osae.cli.command import Command
from osae.cli.inputs import check_run
from osae.cli.outputs import check_files
from osae.options import Options, option


@dataclass(frozen=True, kw_only=True)
class WatchOptions(Options):
    """The run, and how often to check it."""

    run: Path = option("folder of a training run", positional=True, metavar="RUN")
    html: Path | None = option(
        "also write a self-refreshing HTML page with the training curves", default=None, metavar="FILE"
    )
    every: float = option("seconds between updates", default=10.0, least=0.1)
    once: bool = option("print the current state once and exit", default=False)


def run(options: WatchOptions, line: str) -> int:
    """Print the progress of the run until it ends or Ctrl-C is pressed."""
    check_run(options.run)
    check_files([options.html])
    from osae.report.page import Page, render, write_text
    from osae.report.runs import describe_run, describe_state, is_finished

    while True:
        finished = is_finished(options.run)
        print(describe_state(options.run), flush=True)
        if options.html is not None:
            refresh = None if finished else max(1, round(options.every))
            write_text(render(Page([describe_run(options.run)], refresh=refresh)), options.html)
        if finished or options.once:
            return 0
        time.sleep(options.every)


COMMAND = Command(
    "watch",
    "Follow a training run: losses, speed and time left.",
    WatchOptions,
    run,
    examples=("osae watch runs/mine", "osae watch runs/mine --html run.html"),
)
