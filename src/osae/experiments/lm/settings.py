"""Language-model settings by name: a model, a layer, two texts, and sizes.

The paper's settings are `pythia-70m` and `gemma-2-2b`: 4,096 units, k = 80, 5 groups of which the first has
128 units, 50 million tokens, a start from noise, and 65,536 units for stitching. Its "layer N" is taken to be
`hidden_states[N]`. Nothing here needs torch until a setting is used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from osae.data.text import HubText, Text
from osae.defaults import CONTEXT, GROUPS, LARGE_BATCH
from osae.messages import list_choices

if TYPE_CHECKING:
    from osae.data.harvest import Harvest
    from osae.recipes import Task


@dataclass(frozen=True)
class Setting:
    """The data that SAEs are trained on, and their sizes."""

    model: str
    layer: int
    texts: Mapping[str, Text]
    width: int
    blocks: int  # of the model, so that a layer can be checked without it
    units: int = 4096
    k: int = 80
    tokens: int = 50_000_000
    seeds: int = 5
    batch: int = LARGE_BATCH
    groups: int = GROUPS
    context: int = CONTEXT
    start: Literal["noise", "data"] = "noise"
    stitch: int = 16  # the larger SAE has this many times the units

    @property
    def starts(self) -> tuple[str, ...]:
        """The kinds of start that the experiment tries: from the data, and the setting's own."""
        return tuple(dict.fromkeys(("data", self.start)))

    def harvest(self, text: str) -> "Harvest":
        """Return which activations of a text to harvest: as many as training uses, none held out."""
        from osae.data.harvest import Harvest

        if text not in self.texts:
            raise ValueError(f"no text {text!r} in this setting: {list_choices(text, self.texts)}")
        part = replace(self.texts[text], part="train")
        return Harvest(self.model, part, self.tokens, layer=self.layer, context=self.context)

    def task(self) -> "Task":
        """Return the task of a recipe."""
        from osae.recipes import Task

        return Task(self.width, self.units, self.k, self.tokens, batch=self.batch, groups=self.groups)


PAPERS_TEXTS = {"pile": HubText("monology/pile-uncopyrighted"), "dolma": HubText("allenai/dolma:v1_6-sample")}
SETTINGS = {
    "pythia-70m": Setting("EleutherAI/pythia-70m", 3, PAPERS_TEXTS, width=512, blocks=6),
    "gemma-2-2b": Setting("google/gemma-2-2b", 12, PAPERS_TEXTS, width=2304, blocks=26, seeds=9),
    "smollm2-135m": Setting(
        "HuggingFaceTB/SmolLM2-135M",
        10,
        {"wikipedia": HubText("wikimedia/wikipedia:20231101.en"), "pile": PAPERS_TEXTS["pile"]},
        width=576,
        blocks=30,
        start="data",
        stitch=2,
    ),
}
DEFAULT = "smollm2-135m"


def find_setting(name: str) -> Setting:
    """Return the named setting."""
    if name not in SETTINGS:
        raise ValueError(f"no setting {name!r}: {list_choices(name, SETTINGS)}")
    return SETTINGS[name]
