"""The inputs of a page: results, training runs, SAEs with contexts. Does not need torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from osae.context_files import ABOUT, ContextFiles, folder_of, read_contexts
from osae.report.page import Page, Part, find_contexts, join_contexts, part_of
from osae.report.plots import Plot
from osae.report.runs import describe_run, find_run
from osae.report.units import Browser, make_browser
from osae.results import AnyResult, Comparison, Contexts, read

PlotsOfRun = Callable[[Path], Sequence[Plot]]


@dataclass
class PageInputs:
    """What was found at the given paths; `runs` are the folders of training runs, by index in `parts`."""

    parts: list[Part] = field(default_factory=list)
    runs: dict[int, Path] = field(default_factory=dict)
    about_contexts: list[Part] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    contexts: list[ContextFiles] = field(default_factory=list)

    def page(self, plots_of_run: PlotsOfRun = lambda run: ()) -> Page:
        """Return the page about everything that was found; the SAEs whose units it shows come first.

        `plots_of_run` returns further figures about the training run in a folder. This may take a while, so
        it is called after everything else has been read.
        """
        browser, contexts = self.browser(), join_contexts(self.about_contexts)
        parts = [*self.parts, *contexts]
        for place, run in self.runs.items():
            parts[place] = replace(parts[place], figures=[*parts[place].figures, *plots_of_run(run)])
        first = {Comparison.KIND: 0} if self.comparisons else {Contexts.KIND: 0}
        return Page(sorted(parts, key=lambda part: first.get(part.kicker, 1)), browser)

    def browser(self) -> Browser | None:
        """Return the unit browser of the first comparison, if units were compared or contexts collected."""
        comparison = self.comparisons[0] if self.comparisons else None
        beside = find_contexts(comparison) if comparison else []
        return make_browser(comparison, [*beside, *self.contexts])


def open_inputs(paths: Sequence[Path]) -> PageInputs:
    """Return what is at each path; raise `ValueError` if there is nothing to show."""
    found = PageInputs()
    for path in paths:
        _add(path, found)
    if not found.parts and not found.contexts:
        raise ValueError("there is nothing to show: give results, training runs, or SAEs with contexts.")
    return found


def _add(path: Path, found: PageInputs) -> None:
    if path.is_file():
        _add_result(path, found)
    elif (path / "results.json").is_file():  # an experiment
        _add_result(path / "results.json", found)
    elif find_run(path) is not None:
        found.runs[len(found.parts)] = path
        found.parts.append(describe_run(path))
        for sae in sorted(path.glob("*/sae.json")):
            _add_contexts(folder_of(sae.parent), found)
    elif (path / ABOUT).is_file():
        _add_contexts(path, found)
    elif (folder_of(path) / ABOUT).is_file():
        _add_contexts(folder_of(path), found)
    else:
        raise ValueError(
            f"{path} contains no results, training run or contexts: give a JSON file of results, the "
            "folder of an experiment or a run, or an SAE after `osae contexts`."
        )


def _add_result(path: Path, found: PageInputs) -> None:
    result = read(path)
    if isinstance(result, Contexts):
        _add_contexts(path.parent, found)
        return
    found.parts.append(part_of(result, path.parent))
    if isinstance(result, Comparison):
        found.comparisons.append(result)


def _add_contexts(folder: Path, found: PageInputs) -> None:
    if (folder / ABOUT).is_file():
        one = read_contexts(folder)
        found.contexts.append(one)
        found.about_contexts.append(part_of(one.about, folder))


def find_result(path: Path) -> AnyResult:
    """Return the result at a path: a JSON file, the folder of an experiment, or contexts."""
    for file in (path, path / "results.json", path / ABOUT, folder_of(path) / ABOUT):
        if file.is_file():
            return read(file)
    raise ValueError(
        f"{path} contains no results: give a JSON file of results, or the folder of an experiment."
    )
