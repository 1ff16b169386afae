"""Files of results: read, written, described."""

import csv
import io
import json
import sys
from dataclasses import replace

import jsonschema
import pytest

from osae import results
from osae.files import read_json
from osae.results import KINDS, Comparison, Evaluation, Interval, Stitching, parse, read, write_json
from osae.results.__main__ import generate_files
from osae.results.base import Row, csv_text, known_columns, labels
from tests.studies.checks import RELEASED

EXAMPLES = {
    "compare-two": Comparison,
    "compare-three": Comparison,
    "evaluate": Evaluation,
    "stitch": Stitching,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_files_of_release_0_1_0_are_read_and_written_again(name, tmp_path):
    path = RELEASED / f"{name}.json"
    result = read(path)
    assert type(result) is EXAMPLES[name]
    jsonschema.Draft202012Validator(results.schema(result.KIND)).validate(json.loads(path.read_text()))
    write_json(result, tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    jsonschema.Draft202012Validator(results.schema(result.KIND)).validate(again)
    assert read(tmp_path / "again.json") == result
    for key, value in json.loads(path.read_text()).items():
        if key not in ("pairs", "summary"):  # to which measures were added beside the nested ones
            assert again[key] == value, key


def test_nested_measures_of_release_0_1_0_are_beside_the_others():
    old = json.loads((RELEASED / "compare-three.json").read_text())
    result = read(RELEASED / "compare-three.json")
    for pair, found in zip(old["pairs"], result.pairs, strict=True):
        assert found.measures["above_0.7"] == pair["above"]["0.7"]
        assert found.measures["stream_orderedness"] == pair["stream"]["orderedness"]
        written = found.json_extra()
        assert (written["above"], written["stream"]) == (pair["above"], pair["stream"])
    assert result.means.measures["above_0.9"] == Interval(**old["summary"]["above"]["0.9"])
    assert "stream" not in result.pairs[0].measures


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_schemas_and_allow_more_keys(kind):
    schema = results.schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "additionalProperties" not in schema
    assert schema["properties"]["kind"] == {"const": kind}


@pytest.mark.parametrize("path", generate_files(), ids=lambda path: path.name)
def test_schemas_and_tables_of_the_docs_follow_from_the_types(path):
    assert path.read_text(encoding="utf-8") == generate_files()[path], "run python -m osae.results"


def test_a_file_for_every_kind_and_a_table_for_the_documented_ones():
    names = [path.name for path in generate_files()]
    assert sum(name.endswith(".schema.json") for name in names) == len(KINDS)
    assert {"compare-json.md", "evaluate.md"} <= set(names)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected a JSON object, got list"),
        ({}, "kind None are unknown: this release reads comparison"),
        ({"kind": ["x"]}, r"kind \['x'\]"),
        ({"kind": "comparison", "schema": 2}, "schema 2: this release reads 1"),
        ({"kind": "comparison", "schema": 1}, "has no 'options'"),
    ],
)
def test_what_is_no_result_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        parse(data)


def test_a_file_that_is_no_json_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x\.json cannot be read: "):
        read(tmp_path / "x.json")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00\xff")
    with pytest.raises(ValueError, match=r"x\.npy cannot be read: it is not a JSON file, but binary data"):
        read(tmp_path / "x.npy")


def test_csv_holds_every_record(tmp_path):
    result = read(RELEASED / "compare-three.json")
    result.to_csv(tmp_path / "c.csv")
    with open(tmp_path / "c.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(result.records()) == 3 * (1 + 2)
    assert [float(row["stability"]) for row in rows] == [r["stability"] for r in result.records()]
    assert rows == list(csv.DictReader(io.StringIO(result.to_csv())))
    assert csv_text([{"a": 1}, {"b": None, "a": 2}]) == "a,b\r\n1,\r\n2,\r\n"


def test_a_data_frame_needs_pandas_and_says_so(monkeypatch):
    result = read(RELEASED / "evaluate.json")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="pip install pandas"):
        result.to_pandas()

    class Fake:
        DataFrame = staticmethod(list)

    monkeypatch.setitem(sys.modules, "pandas", Fake)
    assert result.to_pandas() == result.records()


def test_labels_are_as_short_as_they_can_be():
    assert labels(["runs/a/osae-seed0", "runs/a/osae-seed1"]) == ["osae-seed0", "osae-seed1"]
    assert labels(["x/a", "y/a"]) == ["x/a", "y/a"]
    assert labels(["in memory", "in memory"]) == ["0: in memory", "1: in memory"]


def test_columns_without_numbers_are_left_out():
    rows = [Row("a", {"mse": 1.0, "l0": None}), Row("b", {})]
    assert known_columns(("l0", "mse", "dead"), rows) == ("mse",)


def test_a_changed_number_is_noticed(tmp_path):
    write_json(read(RELEASED / "compare-three.json"), tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text()
    assert read(tmp_path / "c.json") == read(RELEASED / "compare-three.json")
    place = text.index("0.") + 2
    (tmp_path / "c.json").write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    with pytest.raises(ValueError, match=r"c\.json cannot be read: its content does not match"):
        read(tmp_path / "c.json")


def test_names_that_are_not_utf_8_can_be_written_and_read_back(tmp_path):
    result = read(RELEASED / "compare-three.json")
    assert isinstance(result, Comparison)
    named = replace(result, provenance=replace(result.provenance, command="osae compare a\udcff"))
    write_json(named, tmp_path / "c.json")
    assert read(tmp_path / "c.json") == named


def test_text_in_a_table_is_no_formula():
    starts = ("=", "+", "-", "@", "\t", "\r")
    records = [{"a": f"{start}1+1", "b": -1.5, "c": "x=1", "d": "\udcff"} for start in starts]
    rows = list(csv.DictReader(io.StringIO(csv_text(records), newline="")))
    assert [row["a"] for row in rows] == [f"'{start}1+1" for start in starts]
    assert {(row["b"], row["c"], row["d"]) for row in rows} == {("-1.5", "x=1", "\\udcff")}


def test_a_file_of_any_size_is_refused_without_reading_it(tmp_path):
    with open(tmp_path / "c.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match=r"c\.json cannot be read: it is larger than"):
        read_json(tmp_path / "c.json", largest=2**20)
