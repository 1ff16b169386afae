"""Files are whole or absent, and as readable as any other; links, pipes and devices stay what they are."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from osae.files import atomic_write, file_sha256, is_alive, is_part, read_json, seal


def write(path, text):
    with atomic_write(path) as beside:
        beside.write_text(text)


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(path) as beside:
        beside.write_text(str(1 / 0))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_every_file_has_the_mode_that_an_open_file_gets(tmp_path):
    """safetensors makes its files readable for their owner alone."""
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "a.safetensors") as beside:
        save_file({"x": torch.zeros(2)}, beside)
    assert (tmp_path / "a.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    script = (
        "import os, sys\nfrom osae.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as part:\n part.write_text('half'); part.with_name('.tmp').touch()\n"
        " os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "a.txt"
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    (left,) = tmp_path.iterdir()
    assert is_part(left)
    write(path, "whole")
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_the_file_it_points_to_is_replaced(exists, tmp_path):
    (tmp_path / "far").mkdir()
    target, link, second = tmp_path / "far" / "a.txt", tmp_path / "link", tmp_path / "second"
    if exists:
        target.write_text("old")
    link.symlink_to("far/a.txt")  # relative to the link's own folder
    second.symlink_to(link)
    write(second, "new")
    assert target.read_text() == "new"
    assert link.is_symlink()
    assert second.is_symlink()
    assert os.listdir(tmp_path / "far") == ["a.txt"]


def test_a_failed_write_through_a_link_leaves_what_was_there(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "link").symlink_to("a.txt")
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "link") as beside:
        beside.write_text(str(1 / 0))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_loop_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ValueError, match="loop of symbolic links"):
        write(tmp_path / "a", "lost")


def test_a_pipe_receives_the_content_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with atomic_write(pipe) as beside:  # safetensors cannot write to a pipe by itself
        save_file({"x": torch.zeros(2)}, beside)
    reader.join(10)
    with atomic_write(tmp_path / "file") as beside:
        save_file({"x": torch.zeros(2)}, beside)
    assert read == [(tmp_path / "file").read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_character_device_is_written_to_and_stays(tmp_path, monkeypatch):
    device = make_null_device(tmp_path)
    refuse_to_replace(monkeypatch, device)
    (tmp_path / "link").symlink_to(device)
    for path in (device, tmp_path / "link"):
        write(path, "lost")
    assert stat.S_ISCHR(os.stat(device).st_mode)
    assert (tmp_path / "link").is_symlink()


def make_null_device(folder: Path) -> Path:
    """Return a device like /dev/null: one of its own, or the machine's, which only root could replace."""
    device = folder / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_text("")  # devices in this folder may be forbidden
    except OSError:
        device.unlink(missing_ok=True)
        return Path(os.devnull)
    return device


def refuse_to_replace(monkeypatch, device: Path) -> None:
    """Fail instead of harming the machine, whose own device may be about to be replaced."""
    for name in ("replace", "rename", "remove", "unlink"):
        real = getattr(os, name)

        def check(*paths, _real=real, **options):
            assert device not in map(Path, paths), f"{device} would be replaced or removed"
            return _real(*paths, **options)

        monkeypatch.setattr(os, name, check)


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("into", ["pipe", "file"])
def test_standard_output_gets_the_content_in_the_order_of_printing(into, path, tmp_path):
    script = (
        "import sys\nfrom osae.files import atomic_write\nprint('before')\n"
        "with atomic_write(sys.argv[1]) as part:\n part.write_text('content\\n')\n"
        "print('after')"
    )
    with open(tmp_path / "out", "wb") as file:
        ran = subprocess.run(
            [sys.executable, "-c", script, path],
            stdout=file if into == "file" else subprocess.PIPE,
            check=True,
        )
    said = (tmp_path / "out").read_text() if into == "file" else ran.stdout.decode()
    assert said == "before\ncontent\nafter\n"
    assert os.listdir(tmp_path) == ["out"]


def test_folders_sockets_and_block_devices_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="is a folder"):
        write(tmp_path, "lost")
    (tmp_path / "disk").touch()
    monkeypatch.setattr(stat, "S_ISBLK", lambda mode: True)  # only root can make one
    with pytest.raises(ValueError, match="is a block device, which cannot be used as an output file"):
        write(tmp_path / "disk", "lost")
    assert os.listdir(tmp_path) == ["disk"]


def test_the_digest_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_seal_survives_another_layout_and_no_other_change(tmp_path):
    data = {"b": {10: [1, 2.5, None], 2: "é\ud800"}, "a": 1e-300}
    held = json.loads(json.dumps(data))
    for layout in ({"indent": 2}, {"sort_keys": True}, {"separators": (",", ":")}):
        (tmp_path / "a.json").write_text(json.dumps(json.loads(json.dumps(seal(data))), **layout))
        assert read_json(tmp_path / "a.json") == held
    (tmp_path / "a.json").write_text(json.dumps(seal(data) | {"a": 2e-300}))
    with pytest.raises(ValueError, match=r"a\.json cannot be read: its content does not match its"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert read_json(tmp_path / "a.json") == held


@pytest.mark.parametrize("depth", [99, 101, 900, 100_000])
@pytest.mark.parametrize("ends", ["[]", '{"a": 0}'])
def test_json_is_read_to_the_stated_depth(depth, ends, tmp_path):
    head, _, tail = ends.partition("0") if "0" in ends else ("[", "", "]")
    (tmp_path / "a.json").write_text(head * depth + "1" + tail * depth)
    if depth < 100:
        read_json(tmp_path / "a.json")
    else:
        with pytest.raises(
            ValueError, match=r"a\.json cannot be read: it is nested more than 100 levels deep"
        ):
            read_json(tmp_path / "a.json")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("I/O error")])
def test_an_error_of_the_disk_names_the_file(error, tmp_path):
    said = r"a\.txt cannot be written: (No space|I/O error)"
    with pytest.raises(OSError, match=said), atomic_write(tmp_path / "a.txt"):
        raise error
    with pytest.raises(FileNotFoundError, match="elsewhere"), atomic_write(tmp_path / "a.txt"):
        open(tmp_path / "elsewhere" / "b.txt").close()
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="the system has no /proc")
def test_a_process_that_only_waits_to_be_reaped_does_not_count_as_alive():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    assert is_alive(child.pid)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays in the list
    assert not is_alive(child.pid)
    child.wait()
    assert not is_alive(child.pid)
