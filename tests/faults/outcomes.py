"""How a fault ended, and how many did so: survived, detected, or lost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

SURVIVED, DETECTED, LOST = "survived", "detected", "lost"


@dataclass
class Tally:
    """Counts of one kind of fault; `lost` says what was lost."""

    fault: str
    counts: Counter = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)

    def add(self, end: str, what: str = "") -> None:
        self.counts[end] += 1
        if end == LOST:
            self.lost.append(what)

    @property
    def tried(self) -> int:
        return sum(self.counts.values())


HEAD = ["| fault | tried | survived | detected | lost |", "| :-- | --: | --: | --: | --: |"]


def format_table(tallies: Sequence[Tally], before: str = "") -> str:
    """The counts as Markdown; rows of other faults in the table `before` stay."""
    rows = {line.split(" | ")[0]: line for line in before.splitlines() if line.startswith("|")}
    rows = {fault: row for fault, row in rows.items() if row not in HEAD}
    for each in tallies:
        numbers = (each.tried, *(each.counts[end] for end in (SURVIVED, DETECTED, LOST)))
        row = f"| {each.fault} | " + " | ".join(f"{number:,}" for number in numbers) + " |"
        rows[f"| {each.fault}"] = row
    return "\n".join([*HEAD, *rows.values()]) + "\n"


def judge_refusal(code: int, said: str, *names: str) -> str:
    """'' if a command was refused as promised: code 2, and one line that holds these names."""
    lines = [line for line in said.splitlines() if line.startswith("osae")]
    refusals = [line for line in lines if not line.startswith(("osae train:", "osae harvest:")) or code == 2]
    if code != 2:
        return f"exit code {code}: {said[-300:]}"
    if "Traceback" in said or not refusals:
        return f"no clear message: {said[-300:]}"
    if "\x1b" in said:
        return f"control characters: {said[-300:]!r}"
    missing = [name for name in names if name not in refusals[-1]]
    return f"{missing} is not named: {refusals[-1]}" if missing else ""
