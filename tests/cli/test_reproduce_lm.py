"""`osae reproduce lm` as far as the request: what a setting decides, and what is refused before it begins."""

import pytest

from osae.cli import main, parser, reproduce_lm
from osae.cli.terminal import Progress


@pytest.fixture
def options(tmp_path, monkeypatch):
    """What the experiment would be asked to do."""

    def asked_for(*words, device="cpu"):
        monkeypatch.setattr("osae.data.lm.chosen_device", lambda name: device)
        monkeypatch.setattr("osae.experiments.lm.lm", lambda options, progress: {"options": options})
        monkeypatch.setattr(reproduce_lm, "_texts", lambda *asked: {})
        monkeypatch.setattr("os.cpu_count", lambda: 7)
        asked = parser().parse_args(["reproduce", "lm", "--out", str(tmp_path), *words])
        return reproduce_lm.run(asked, None, Progress("test"))["options"]

    return asked_for


@pytest.mark.parametrize(
    ("words", "starts", "stitch"),
    [
        ([], ("data",), 2),
        (["--setting", "smollm2-135m"], ("data",), 2),
        (["--setting", "pythia-70m"], ("data", "noise"), 16),
        (["--setting", "gemma-2-2b"], ("data", "noise"), 16),
        (["--setting", "gemma-2-2b", "--quick"], ("data", "noise"), 2),
        (["--setting", "gemma-2-2b", "--starts", "noise", "--stitch", "0"], ("noise",), 0),
    ],
    ids=str,
)
def test_a_setting_says_where_to_start_and_how_much_to_stitch(words, starts, stitch, options):
    made = options(*words)
    assert (made.starts, made.stitch) == (starts, stitch)


def test_one_training_at_a_time_on_a_gpu(options):
    assert options().jobs == 7
    assert options(device="cuda").jobs == 1
    assert options("--jobs", "3", device="cuda").jobs == 3


def test_a_text_that_cannot_be_read_is_named_before_any_is_harvested(tmp_path, monkeypatch, capsys):
    def load(name, *words, **options):
        if name == "allenai/dolma":
            raise RuntimeError("Dataset scripts are no longer supported, but found dolma.py")
        return iter([{"text": "a"}])

    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load)
    monkeypatch.setattr("osae.data.harvest.opened_model", lambda *words: pytest.fail("too late"))
    words = ["reproduce", "lm", "--setting", "pythia-70m", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "the data set allenai/dolma:v1_6-sample cannot be read: Dataset scripts" in error
    assert "--text dolma=FILES" in error
    assert len(error.splitlines()) == 1


def test_files_can_take_the_place_of_one_of_a_settings_texts(tmp_path):
    asked = parser().parse_args(
        ["reproduce", "lm", "--setting", "pythia-70m", "--text", "dolma=d.txt", "--out", str(tmp_path)]
    )
    texts = reproduce_lm._model(asked)[2]
    assert list(texts) == ["pile", "dolma"]
    assert texts["dolma"].files == ("d.txt",)  # pyright: ignore[reportAttributeAccessIssue]
    asked.text = ["a=a.txt", "dolma=d.txt"]
    assert list(reproduce_lm._model(asked)[2]) == ["a", "dolma"]
