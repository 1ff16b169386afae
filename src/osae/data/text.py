"""Text: a sequence of documents from files or from the hub, and where they come from.

Files contain plain text (.txt, .md, .rst: one document each), JSON lines with a text field (.jsonl,
optionally compressed: .xz, .gz, .zst) or a column of text (.parquet). Files are read in the given order, and
files that match a pattern in the order of their names. A null instead of a text is skipped.
"""

import glob
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osae.config import variant
from osae.files import file_sha256
from osae.messages import one_line, shorten

Part = Literal["all", "train", "held-out"]
HELD_OUT = 20  # one in this many documents is held out
PLAIN = (".txt", ".md", ".rst")


@variant
@dataclass(frozen=True)
class TextFiles:
    """Files, or patterns such as `docs/*.md`."""

    files: tuple[str, ...]
    field: str = "text"
    part: str = "all"

    def documents(self, passed: Callable[[], None] = lambda: None) -> Iterator[str]:
        """Yield the documents of this part, in order; `passed` is called for each document without a text."""
        texts = (text for path in self.paths() for text in _texts(path, self.field))
        return _select_part(self.part, _skip_nulls(texts, passed))

    def paths(self) -> list[Path]:
        """Return the files; raise `ValueError` if one is missing."""
        found: list[Path] = []
        for pattern in self.files:
            named = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)
            paths = sorted(path for path in map(Path, named) if path.is_file())
            if not paths and Path(pattern).is_dir():
                raise ValueError(
                    f"{pattern} is a folder, not a file: give a pattern such as {pattern}/*.txt."
                )
            if not paths:
                raise ValueError(f"no file {pattern}: give a file, or a pattern that matches some.")
            found += paths
        return list(dict.fromkeys(found))

    def origin(self) -> dict[str, Any]:
        """Return the origin of the text: names and digests of the files."""
        files = [{"file": path.name, "sha256": file_sha256(path)} for path in self.paths()]
        return {"files": files, "field": self.field, "part": self.part}


@variant
@dataclass(frozen=True)
class HubText:
    """A dataset on the hub, streamed: `name` or `name:config`."""

    dataset: str
    field: str = "text"
    part: str = "all"
    split: str = "train"
    revision: str | None = None

    def documents(self, passed: Callable[[], None] = lambda: None) -> Iterator[str]:
        """Yield the documents of this part, in order; `passed` is called for each document without a text."""
        texts = (_field(row, self.field, self.dataset) for row in self._rows())
        return _select_part(self.part, _skip_nulls(texts, passed))

    def origin(self) -> dict[str, Any]:
        """Return the origin of the text: name and revision of the dataset."""
        return {"dataset": self.dataset, "split": self.split, "revision": self.revision} | {
            "field": self.field,
            "part": self.part,
        }

    def _rows(self) -> Iterator[Any]:
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise ValueError("--dataset needs the datasets library: pip install 'osae[lm]'.") from error
        name, _, config = self.dataset.partition(":")
        try:
            yield from load_dataset(
                name, config or None, split=self.split, revision=self.revision, streaming=True
            )
        except Exception as error:  # of every kind: names, formats, the network
            raise ValueError(
                f"the dataset {self.dataset} cannot be read: {shorten(error)}; give files with --text "
                "instead."
            ) from error


Text = TextFiles | HubText


def check_readable(text: Text) -> None:
    """Raise `ValueError` unless a document with more than whitespace can be read; stop at the first one."""
    nulls: list[None] = []
    if not any(document.strip() for document in text.documents(lambda: nulls.append(None))):
        part = describe_part(text, len(nulls))
        raise ValueError(f"the text ({part}) contains only whitespace: provide some text.")


def describe_part(text: Text, nulls: int) -> str:
    """Return which part of a text is read, and how many of its documents are null, for a message."""
    return f"part: {text.part}" + (f"; documents without a text: {nulls}" if nulls else "")


def _skip_nulls(texts: Iterator[str | None], passed: Callable[[], None]) -> Iterator[str]:
    """Yield the texts that are not null; call `passed` for each that is."""
    for text in texts:
        if text is None:
            passed()
        else:
            yield text


def _select_part(part: str, documents: Iterator[str]) -> Iterator[str]:
    """Yield all documents, those held out (one in twenty), or the others."""
    if part not in ("all", "train", "held-out"):
        raise ValueError(f"part {part!r}: give all, train or held-out.")
    for number, text in enumerate(documents):
        if part == "all" or (number % HELD_OUT == HELD_OUT - 1) == (part == "held-out"):
            yield text


def _texts(path: Path, field: str) -> Iterator[str | None]:
    """Yield the text of each document in a file, None for a null."""
    if path.suffix == ".parquet":
        yield from _parquet(path, field)
        return
    packed = path.suffix in (".xz", ".gz", ".zst")
    kind = path.suffixes[-2] if packed and len(path.suffixes) > 1 else path.suffix
    if kind not in (".jsonl", *PLAIN):
        known = ".txt, .md, .rst, .jsonl (also with .xz, .gz, .zst) and .parquet"
        raise ValueError(f"{path}: give {known} files, not {kind or 'files without a suffix'}.")
    try:
        with _open_text(path) as file:
            if kind in PLAIN:
                yield file.read()
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield _field(_parse_line(line, where), field, where)
    except (UnicodeDecodeError, EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read to its end: {error}") from error


def _open_text(path: Path) -> io.TextIOBase:
    """Open a file, decompressing it if necessary; a byte-order mark is not part of the text."""
    match path.suffix:
        case ".xz":
            return lzma.open(path, "rt", encoding="utf-8-sig")
        case ".gz":
            return gzip.open(path, "rt", encoding="utf-8-sig")  # type: ignore[return-value]
        case ".zst":
            return io.TextIOWrapper(io.BufferedReader(_Chunks(_decompress(path))), encoding="utf-8-sig")
        case _:
            return open(path, encoding="utf-8-sig")


def _decompress(path: Path) -> Iterator[bytes]:
    """Yield the contents of a .zst file, frame by frame; zstandard's reader does not detect truncation."""
    try:
        import zstandard
    except ImportError as error:
        raise ValueError(f"{path} needs zstandard: pip install 'osae[lm]'.") from error
    frame = None
    with open(path, "rb") as file:
        while packed := file.read(2**16):
            while packed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    yield frame.decompress(packed)
                except zstandard.ZstdError as error:
                    raise EOFError(str(error)) from error
                packed, frame = frame.unused_data, None if frame.eof else frame
    if frame is not None:
        raise EOFError("the file ends within a frame")


class _Chunks(io.RawIOBase):
    """A stream of bytes from an iterator of chunks."""

    def __init__(self, chunks: Iterator[bytes]):
        self._chunks, self._left = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def _parquet(path: Path, field: str) -> Iterator[str | None]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ValueError(f"{path} needs pyarrow: pip install 'osae[lm]'.") from error
    try:
        with parquet.ParquetFile(path) as file:
            if field not in file.schema_arrow.names:
                there = ", ".join(file.schema_arrow.names[:8])
                raise ValueError(f"no column {field!r}; it has {there}. Choose with --text-field.")
            for batch in file.iter_batches(batch_size=256, columns=[field]):
                # a column may contain empty strings for nulls as well
                yield from (
                    _field({field: text or None}, field, str(path)) for text in batch.column(0).to_pylist()
                )
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses of these
        raise ValueError(one_line(f"{path}: {error}")) from error


def _parse_line(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(
            f"{where} is nested too deeply: give one object with a text field per line."
        ) from error


def _field(row: Any, field: str, where: str) -> str | None:
    """Return the text in a row, None for a null."""
    text = row.get(field, ...) if isinstance(row, dict) else ...
    if not isinstance(text, str | None):
        there = ", ".join(list(row)[:8]) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{where}: no text under {field!r}; it has {there}. Choose with --text-field.")
    if text is not None and (place := _find_surrogate(text)) is not None:
        raise ValueError(
            f"{where}: character {place} is a lone surrogate, which cannot be encoded: remove it."
        )
    return text


def _find_surrogate(text: str) -> int | None:
    """Return the position of the first lone surrogate, which can be neither encoded nor tokenized."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return None
