"""`osae evaluate`: how well SAEs of any library rebuild activations, and what a model loses by it."""

import argparse
from pathlib import Path

from osae.cli.comparing import SAE_HELP, SHARDS_HELP, prefix_lengths
from osae.cli.terminal import Progress, asked_now, check_writable, count, show, write_results


def configure(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "saes", nargs="+", metavar="SAE_OR_RUN", help=f"{SAE_HELP}; a run stands for all SAEs it finished"
    )
    sub.add_argument("--data", type=Path, required=True, metavar="SHARDS", help=f"held-out {SHARDS_HELP}")
    sub.add_argument(
        "--model",
        default="auto",
        metavar="auto|none|ID_OR_FOLDER[:FILE.gguf]",
        help="language model for the cross-entropy; auto: the one that the activations are from",
    )
    sub.add_argument(
        "--tokens", type=count, default=20_000, metavar="N", help="tokens for the cross-entropy, e.g. 1e5"
    )
    sub.add_argument(
        "--text",
        nargs="+",
        metavar="FILE",
        help="files or patterns for the cross-entropy, in place of the text that the activations are from",
    )
    sub.add_argument(
        "--prefixes",
        type=prefix_lengths,
        default="auto",
        metavar="auto|16,64,...",
        help="prefix lengths beside 1, 2, 4, ... and all units",
    )
    sub.add_argument("--device", default="auto", help="where the language model runs: cpu, cuda, mps (auto)")
    for name, what in (("json", "all numbers"), ("csv", "a table"), ("html", "a page")):
        sub.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what} to this file")


def run(asked: argparse.Namespace) -> int:
    from osae.evaluation import evaluate
    from osae.report import evaluation as report

    for path in (asked.json, asked.csv, asked.html):
        check_writable(path)
    with Progress("osae evaluate") as progress:
        result = evaluate(
            asked.saes,
            asked.data,
            prefixes=asked.prefixes or (),
            model=asked.model,
            text=asked.text or (),
            tokens=asked.tokens,
            device=asked.device,
            progress=progress,
        )
    result["provenance"] |= asked_now(asked)
    show(report.rich_evaluation(result), report.notes(result))
    write_results(result, asked, csv=report.write_evaluation_csv, page=report.write_evaluation_page)
    return 0
