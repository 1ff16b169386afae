"""Folders on object stores, such as s3://bucket/folder, through fsspec: `pip install "osae[cloud]"`.

A place is a path on this machine, or a URL with "://". Stores replace objects atomically, so a reader never
sees a half-written file, but they have neither links nor locks. So work is done in a local copy of the remote
folder: `Mirror` downloads the folder and uploads what has changed, sending the files that make others valid
last. Read-only copies of data are kept in `$OSAE_CACHE`, up to `$OSAE_CACHE_GB` in total.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TypeAlias

from osae.files import atomic_write, is_part
from osae.locks import LOCK, lock
from osae.messages import shorten

Place: TypeAlias = Path | str
CACHE, CACHE_GB = "OSAE_CACHE", "OSAE_CACHE_GB"
MARKERS = (
    "sae.json",
    "manifest.json",
    "checkpoint.json",
    "checkpoint.safetensors",
)  # uploaded last, in this order
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


def is_remote(place: object) -> bool:
    """Return whether a place is on an object store."""
    return isinstance(place, str) and "://" in place


class Store:
    """A folder on an object store. Errors are `OSError`, with a one-line message that names the URL."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        if ".." in PurePosixPath(self.url).parts:
            raise ValueError(f"{url}: give a URL without '..'.")
        try:
            import fsspec
        except ImportError as error:
            raise ValueError(f'{url} needs fsspec: pip install "osae[cloud]".') from error
        with _one_kind_of_error(self.url):
            self._system, self._root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)

    def join(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self.url}/{name}" if name else self.url

    def list(self) -> dict[str, int]:
        """Return the sizes of all files below the folder by name; empty if the folder does not exist."""
        with _one_kind_of_error(self.url):
            try:
                found = self._system.find(self._root, detail=True)
            except FileNotFoundError:
                self._check_bucket()
                return {}
        root = self._root.strip("/")
        names = {
            path.strip("/").removeprefix(root).strip("/"): about["size"] for path, about in found.items()
        }
        return {name: size for name, size in names.items() if name and ".." not in PurePosixPath(name).parts}

    def is_file(self, name: str) -> bool:
        """Return whether a file of this name exists; with an empty name, whether the URL itself is a file."""
        with _one_kind_of_error(self.join(name)):
            return bool(self._system.isfile(self._path(name)))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with _one_kind_of_error(self.join(name)):
            return int(self._system.info(self._path(name))["size"])

    def get(self, name: str, local: Path) -> None:
        """Download a file."""
        local.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(local) as beside, _one_kind_of_error(self.join(name)):
            self._system.get_file(self._path(name), str(beside))

    def put(self, local: Path, name: str) -> None:
        """Upload a file; an existing one stays in place until the upload is complete."""
        with _one_kind_of_error(self.join(name)):
            self._system.put_file(str(local), self._path(name))

    def copy(self, name: str, other: str) -> None:
        """Copy a file within the store, without downloading it."""
        with _one_kind_of_error(self.join(name)):
            self._system.cp_file(self._path(name), self._path(other))

    def remove(self, name: str) -> None:
        """Remove a file."""
        with _one_kind_of_error(self.join(name)):
            self._system.rm_file(self._path(name))

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from `start` to `stop`."""
        with _one_kind_of_error(self.join(name)):
            return self._system.cat_file(self._path(name), start=start, end=stop)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _check_bucket(self) -> None:
        """Raise `OSError` if the bucket does not exist, as opposed to being empty."""
        bucket = self._root.strip("/").split("/")[0]
        if self.url.startswith(("s3://", "gs://")) and not self._system.exists(bucket):
            raise FileNotFoundError(f"bucket {bucket} does not exist or cannot be read")


@contextmanager
def _one_kind_of_error(url: str) -> Iterator[None]:
    """Convert store-specific errors to an `OSError` that names the URL."""
    try:
        yield
    except Exception as error:  # no network, no credentials, no bucket: every store has its own classes
        said = shorten(error) or type(error).__name__
        if isinstance(error, ImportError):
            raise ValueError(
                f'{url}: {said} (`pip install "osae[cloud]"` adds support for s3://).'
            ) from error
        if type(error).__name__ in _CREDENTIALS:
            said += ": set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or configure a profile"
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
        raise kind(f"{url}: {said}") from error


# --- copies on this machine --------------------------------------------------------------------------


def find_cache() -> Path:
    """Return the cache folder for copies of remote files."""
    given = os.environ.get(CACHE)
    return Path(given).absolute() if given else Path.home() / ".cache" / "osae"


def find_copy(url: str, kind: str) -> Path:
    """Return the local folder or file for a URL."""
    scheme, _, rest = url.rstrip("/").partition("://")
    return find_cache() / kind / scheme / rest.strip("/")


def bring_files(url: str, names: Iterable[str]) -> Path:
    """Download these files of a folder and return the local folder."""
    store, local = Store(url), find_copy(url, "saes")
    for name in names:
        store.get(name, local / name)
    return local


def free_cache() -> float:
    """Return the number of bytes left for copies of data."""
    limit = os.environ.get(CACHE_GB)
    folder = find_cache() / "data"
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free * 0.9
    if limit is None:
        return free
    try:
        most = float(limit) * 1e9
    except ValueError:
        raise ValueError(f"{CACHE_GB}={limit}: give a number of gigabytes.") from None
    used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return min(free, most - used)


# --- folders to work in ------------------------------------------------------------------------------


class Here:
    """A local folder, used in place."""

    def __init__(self, folder: Path):
        self.place, self.folder = folder, folder

    def names(self) -> set[str]:
        """Return the names of the files in the folder."""
        return {file.name for file in self.folder.iterdir()} if self.folder.is_dir() else set()

    def pull(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Do nothing: everything is here."""

    def push(self) -> None:
        """Do nothing: everything is here."""

    def hand_over(self, name: str) -> None:
        """Do nothing: the file is where it belongs."""

    @contextmanager
    def borrow(self, name: str) -> Iterator[Path]:
        """Yield the path of a file."""
        yield self.folder / name

    def show(self, text: object) -> str:
        """Return the text as it is."""
        return str(text)

    def close(self) -> None:
        """Do nothing: the folder stays."""


class Mirror:
    """A local working copy of a folder on a store.

    The lock of the local folder keeps two processes on one machine apart, but not processes on two machines.
    """

    def __init__(self, url: str):
        self.store = Store(url)
        self.place, self.folder = self.store.url, find_copy(url, "work")
        self._sent: dict[str, tuple[int, ...]] = {}
        self._turn = Lock()

    def names(self) -> set[str]:
        """Return the names of the files on the store."""
        return set(self.store.list())

    def pull(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Replace the contents of the folder with the wanted files from the store."""
        with lock(self.folder):
            for child in self.folder.iterdir():
                if not child.name.startswith(".osae"):
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
            for name in filter(wanted, self.store.list()):
                self.store.get(name, self.folder / name)
                self._sent[name] = _identify(self.folder / name)

    def push(self) -> None:
        """Upload what has changed in the folder, and remove from the store what was removed locally.

        If this is interrupted, the store has either the previous or a newer version of each file. Files that
        make others valid are uploaded after them.
        """
        with self._turn:
            found = {
                str(file.relative_to(self.folder)): _identify(file)
                for file in self.folder.rglob("*")
                if file.is_file()
                and not any(part.startswith(".") for part in file.relative_to(self.folder).parts)
            }
            sent_as = {identity: name for name, identity in self._sent.items()}
            new = [name for name, identity in found.items() if self._sent.get(name) != identity]
            for name in sorted(new, key=lambda name: _rank(name, moved=found[name] in sent_as)):
                if (before := sent_as.get(found[name])) is not None:
                    self.store.copy(before, name)
                else:
                    self.store.put(self.folder / name, name)
                self._sent[name] = found[name]
            for name in self._sent.keys() - found.keys():
                self.store.remove(name)
                del self._sent[name]

    def hand_over(self, name: str) -> None:
        """Upload a file and delete the local copy."""
        self.store.put(self.folder / name, name)
        (self.folder / name).unlink()

    @contextmanager
    def borrow(self, name: str) -> Iterator[Path]:
        """Yield the local path of a file from the store, valid within the block."""
        there = (self.folder / name).exists()
        if not there:
            self.store.get(name, self.folder / name)
        try:
            yield self.folder / name
        finally:
            if not there:
                (self.folder / name).unlink()

    def show(self, text: object) -> str:
        """Return the text with the path of the local folder replaced by the URL."""
        return str(text).replace(str(self.folder), self.place)

    def close(self) -> None:
        """Remove the local folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


Workplace = Here | Mirror


def open_place(place: Place) -> Workplace:
    """Return a local folder in which to work on a place."""
    return Mirror(place) if isinstance(place, str) and is_remote(place) else Here(Path(place))


def check_empty(work: Workplace) -> None:
    """Raise `ValueError` if the folder already contains files.

    A lock or unfinished files left by a killed command do not count: the next writer removes them.
    """
    if any(not is_part(Path(name)) and name != LOCK for name in work.names()):
        raise ValueError(f"{work.place} already contains files: give a new or empty folder.")


@contextmanager
def new_folder(place: Place) -> Iterator[Path]:
    """Yield a folder to write into; its files are uploaded if the block ends without an error."""
    work = open_place(place)
    if isinstance(work, Mirror):
        check_empty(work)
        work.pull()
    yield work.folder
    work.push()
    work.close()


def _rank(name: str, *, moved: bool) -> tuple[int, str]:
    """Return the upload order of a file: copies before their originals are replaced, markers last."""
    last = PurePosixPath(name).name
    return (0 if moved else 2 + MARKERS.index(last) if last in MARKERS else 1), name


def _identify(file: Path) -> tuple[int, ...]:
    about = file.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns
