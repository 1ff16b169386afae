"""Model cards: what the hub reads from them, and that names from other people's files stay text."""

import re

import pytest
import yaml

from osae.interop import Loaded, load
from osae.interop.place import Place
from osae.studies.card import Published, escape, plain_name, write_card
from osae.studies.compare import compare
from tests.studies.saes import WORLD, make_sae, save_sae

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "[click](https://evil.example)",
    "![x](https://evil.example/p.png)",
    "`code` **bold** | cell |",
    "name\n---\nlicense: other\n# title",
    "---\ntags: [evil]",
    "\x1b[31mred‮",
    "&lt;b&gt;",
    "www.evil.example @someone $$x$$",
]


def make_card(model=None, note="", results=()):
    loaded = load(make_sae(WORLD.dictionary()))
    source = Loaded(
        *(getattr(loaded, name) for name in ("path", "format", "sha256", "sae", "decoder", "encoder")), [note]
    )
    published = Published("a", source, ("saelens", "sparsify"), Place(model, "blocks.3.hook_resid_post"))
    return write_card("me/mine", [published], results, "mit")


def front_matter(card):
    _, front, rest = card.split("---\n", 2)
    return yaml.safe_load(front), rest


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_hostile_name_stays_text(text):
    fields, body = front_matter(make_card(text, text))
    assert fields["license"] == "mit"
    assert "evil" not in fields["tags"]
    assert "base_model" not in fields
    shown = body.split("## How to load it")[0]
    assert len(re.findall(r"^#+ ", shown, re.MULTILINE)) == 2  # the titles of the card alone
    assert not re.search(r"<\w|(?<!\\)\[|(?<!\\)\||://|\x1b|‮|www\.|(?<!\\)\$", shown)
    assert not re.search(r"(?<!\\)`(?!a`)(?<!`a`)", shown)


def test_escaped_text_shows_what_it_was():
    assert (
        escape("HuggingFaceTB/SmolLM2-135M, layer 10 (k=32)") == "HuggingFaceTB/SmolLM2-135M, layer 10 (k=32)"
    )
    assert escape("a_b*c") == r"a\_b\*c"


def test_paths_lose_their_folders():
    assert escape("rows of /home/alice/secret/acts now") == "rows of acts now"


def test_the_hub_finds_the_card_by_its_fields():
    fields, body = front_matter(make_card("EleutherAI/pythia-70m"))
    assert fields["library_name"] == "saelens"
    assert {"sparse-autoencoder", "saelens", "sparsify"} <= set(fields["tags"])
    assert fields["base_model"] == ["EleutherAI/pythia-70m"]
    assert 'SAE.from_pretrained("me/mine", "a")' in body
    assert 'osae.load("hf:me/mine/a")' in body


def test_a_comparison_gives_the_table_of_consistency(tmp_path):
    paths = [save_sae(tmp_path / name, WORLD.dictionary()) for name in ("<img>|`x`", "b")]
    result = compare(paths, data=WORLD.draw("test").x)
    body = make_card(results=[result])
    assert "## Consistency" in body
    assert "<img" not in body
    (pair,) = [line for line in body.splitlines() if line.startswith("| img") and "–" in line]
    assert f"| {result.pairs[0].stability:.3f} |" in pair
    heads = [line for line in body.splitlines() if line.startswith("| SAEs |")]
    assert heads[0].count("|") == pair.count("|")
    meant = [line for line in body.splitlines() if line.startswith("- *")]
    assert "- *Stab*: Mean cosine of matched units under the best one-to-one matching." in meant
    (level,) = [line for line in meant if line.startswith("- *by chance*")]  # of all such columns
    assert level.startswith("- *by chance*: Score of unrelated dictionaries")
    assert not any(line.endswith("..") for line in meant)


def test_plain_names_are_safe_as_folders():
    assert plain_name("../../etc/passwd") == "etc_passwd"
    assert plain_name("***") == "sae"
    assert plain_name("blocks.3.hook_resid_post") == "blocks.3.hook_resid_post"
