"""The notebooks that are kept; `make test-notebooks` executes them."""

import json
import re

import pytest

from benchmarks import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LARGEST = 300_000  # bytes, so that GitHub shows it at once


def test_there_are_two():
    assert [path.name for path in NOTEBOOKS] == ["compare-three-saes.ipynb", "train-on-your-model.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_with_outputs_that_read_well(path):
    text = path.read_text(encoding="utf-8")
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(text) < LARGEST
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))  # in one go
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(r"/(home|root|tmp|work|Users)/|stderr", json.dumps(outputs))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_files(path):
    text = "".join(
        line for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] for line in cell["source"]
    )
    links = re.findall(r"\]\((\.\./[^)#]+)", text)
    assert links
    for link in links:
        assert (path.parent / link).exists(), link
