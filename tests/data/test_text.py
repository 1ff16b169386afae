"""Text: every document once, whatever files it lies in; what cannot be read to its end is said to be."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from osae.config import from_json, to_json
from osae.data.text import HubText, TextFiles, check_readable

TEXTS = [
    f"Text {number}: schöne Grüße,\n\tline two \u2028 and more{' and more' * number}." for number in range(45)
]
LINES = "".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(TEXTS)).encode()
PACK = {
    "": bytes,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


def read(*files: Path | str, **options) -> list[str]:
    return list(TextFiles(tuple(map(str, files)), **options).documents())


@pytest.mark.parametrize("ending", PACK)
def test_json_lines_are_read_packed_or_not(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(PACK[ending](LINES))
    assert read(path) == TEXTS


@pytest.mark.parametrize("ending", PACK)
def test_files_put_together_from_several_packed_ones_are_read_to_the_end(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    lines = LINES.splitlines(keepends=True)
    path.write_bytes(PACK[ending](b"".join(lines[:20])) + PACK[ending](b"".join(lines[20:])))
    assert read(path) == TEXTS


@pytest.mark.parametrize("ending", [".txt", ".md", ".rst"])
def test_a_plain_file_is_one_document(tmp_path, ending):
    (tmp_path / f"a{ending}").write_text(TEXTS[3], encoding="utf-8")
    (tmp_path / f"b{ending}.gz").write_bytes(gzip.compress(TEXTS[4].encode()))
    assert read(tmp_path / f"a{ending}", tmp_path / f"b{ending}.gz") == TEXTS[3:5]


def test_a_column_of_parquet_is_read_and_empty_places_are_passed_over(tmp_path):
    table = pyarrow.table({"text": [*TEXTS, None, ""], "other": list(range(47))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    assert read(tmp_path / "a.parquet") == TEXTS
    with pytest.raises(ValueError, match=r"no column 'body'; it has text, other"):
        read(tmp_path / "a.parquet", field="body")
    with pytest.raises(ValueError, match="no text under 'other'"):
        read(tmp_path / "a.parquet", field="other")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes((tmp_path / "a.parquet").read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"cut\.parquet") as refused:
        read(cut)
    assert "\n" not in str(refused.value)


def test_nulls_are_passed_over_and_counted(tmp_path):
    lines = [{"text": "a"}, {"text": None}, {"text": "b"}, {"text": ""}, {"text": None}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read(path) == ["a", "b", ""]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None, ""]}), tmp_path / "a.parquet")
    for text, count in ((TextFiles((str(path),)), 2), (TextFiles((str(tmp_path / "a.parquet"),)), 2)):
        passed = []
        list(text.documents(lambda: passed.append(1)))  # noqa: B023
        assert len(passed) == count


@pytest.mark.parametrize("ending", PACK)
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, ending):
    mark = b"\xef\xbb\xbf"
    (tmp_path / f"a.jsonl{ending}").write_bytes(PACK[ending](mark + LINES))
    (tmp_path / f"a.txt{ending}").write_bytes(PACK[ending](mark + b"a"))
    assert read(tmp_path / f"a.jsonl{ending}") == TEXTS
    assert read(tmp_path / f"a.txt{ending}") == ["a"]


def test_a_folder_is_said_to_be_one(tmp_path):
    with pytest.raises(ValueError, match=r"is a folder, not a file: give a pattern such as .*/\*\.txt"):
        read(tmp_path)


def test_patterns_fit_files_in_the_order_of_their_names_and_each_once(tmp_path):
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "odd[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.txt").mkdir()
    assert read(tmp_path / "*.txt") == ["a.txt", "b.txt", "odd[1].txt"]
    assert read(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "deep/er/c.txt", "odd[1].txt"]
    assert read(tmp_path / "b.txt", tmp_path / "[ab].txt") == ["b.txt", "a.txt"]
    assert read(tmp_path / "odd[1].txt") == ["odd[1].txt"]
    for nothing in ("z*.txt", "folder.txt", "nowhere/a.txt"):
        with pytest.raises(ValueError, match=r"no file|not a file"):
            read(tmp_path / nothing)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), max_size=70))
def test_the_parts_make_up_the_whole_and_share_nothing(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("text") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    held, train = read(path, part="held-out"), read(path, part="train")
    assert read(path) == texts
    assert held == texts[19::20]
    assert train == [text for number, text in enumerate(texts) if number % 20 != 19]


def test_an_unknown_part_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match="all, train or held-out"):
        read(tmp_path / "a.txt", part="test")


@pytest.mark.parametrize("ending", [".xz", ".gz", ".zst"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_a_packed_file_that_is_cut_is_refused_wherever_the_cut(tmp_path, ending, share):
    path = tmp_path / f"a.jsonl{ending}"
    packed = PACK[ending](LINES * 50)
    path.write_bytes(packed[: int(share * len(packed))])
    with pytest.raises(ValueError, match=r"a\.jsonl.* cannot be read to its end"):
        read(path)


def test_a_frame_cut_after_whole_lines_is_refused_too(tmp_path):
    """zstandard's own reader takes the lines of a whole block, and says nothing of those that lack."""
    pieces = zstandard.ZstdCompressor().compressobj()
    packed = pieces.compress(LINES) + pieces.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(packed)
    with pytest.raises(ValueError, match="cannot be read to its end"):
        read(path)


@pytest.mark.parametrize("ending", [".xz", ".gz", ".zst"])
def test_a_packed_file_that_is_damaged_is_refused(tmp_path, ending):
    path = tmp_path / f"a.jsonl{ending}"
    packed = bytearray(PACK[ending](LINES))
    packed[2:9] = b"garbage"
    path.write_bytes(packed)
    with pytest.raises(ValueError, match="cannot be read"):
        read(path)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b'{"text": "a"}\n\n{"text": ', r"a\.jsonl, line 3 is not JSON"),
        ("a.jsonl", b'{"body": "a", "id": 1}\n', "line 1: no text under 'text'; it has body, id"),
        ("a.jsonl", b'{"text": 3}\n', "no text under 'text'"),
        ("a.jsonl", b'["a"]\n', "it has list"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"text": "\\ud800 hello"}\n',
            r"a\.jsonl, line 2: character 0 is a lone surrogate",
        ),
        ("a.jsonl", b'{"text": "a", "x": ' + b"[" * 10**5 + b"\n", r"a\.jsonl, line 1 is nested too deeply"),
        ("a.jsonl", b'{"text": "a\xff"}\n', "cannot be read to its end"),
        ("a.docx", b"a", r"not \.docx"),
        ("a.gz", b"a", r"not \.gz"),
        ("a.tar.gz", b"a", r"not \.tar"),
        ("a", b"a", "not files without a suffix"),
        ("a.parquet", b"a", r"a\.parquet"),
    ],
)
def test_a_file_that_is_no_text_is_refused(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt", b""),
        ("a.txt", b" \n\t\xc2\xa0\n"),
        ("a.jsonl", b""),
        ("a.jsonl", b'{"text": " "}\n{"text": null}\n{"text": ""}\n'),
    ],
)
def test_text_without_a_word_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=r"\(part: all.*\) contains only whitespace"):
        check_readable(TextFiles((str(tmp_path / name),)))


def test_text_is_readable_from_its_first_word_on_and_part_by_part(tmp_path):
    lines = [{"text": " "}] * 19 + [{"text": "held out"}] + [{"text": " "}] * 20
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "this is never read")
    for part in ("all", "held-out"):
        check_readable(TextFiles((str(path),), part=part))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"\(part: train\) contains only"):
        check_readable(TextFiles((str(path),), part="train"))


def test_the_origin_names_the_files_and_tells_them_from_others(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    text = TextFiles((str(tmp_path / "*.txt"),), part="train")
    before = text.origin()
    assert before["files"][0]["file"] == "a.txt"
    assert (before["field"], before["part"]) == ("text", "train")
    (tmp_path / "a.txt").write_text("b")
    assert text.origin() != before
    assert from_json(to_json(text)) == text


def test_a_data_set_is_streamed(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_bytes(LINES)
    text = HubText(str(tmp_path / "set"))
    assert list(text.documents()) == TEXTS
    assert list(HubText(text.dataset, part="held-out").documents()) == TEXTS[19::20]
    assert text.origin() == {
        "dataset": text.dataset,
        "split": "train",
        "revision": None,
        "field": "text",
        "part": "all",
    }
    with pytest.raises(ValueError, match="no text under 'body'"):
        list(HubText(text.dataset, field="body").documents())
    for wrong in (HubText(text.dataset, split="nonsense"), HubText(str(tmp_path / "nowhere"))):
        with pytest.raises(ValueError, match="cannot be read") as refused:
            list(wrong.documents())
        assert "\n" not in str(refused.value)
