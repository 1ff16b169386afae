"""What a request says, and what is refused before anything heavy is loaded."""

from pathlib import Path

import pytest

from osae.experiments.lm import plan
from osae.experiments.lm.options import LMOptions
from osae.experiments.lm.settings import SETTINGS, find_setting

OUT = Path("runs")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": ("one",)}, "write NAME="),
        ({"text": ("a/b=c",)}, "write NAME="),
        ({"setting": "gpt-5"}, "--setting gpt-5: give one of pythia-70m"),
        ({"starts": ("luck",)}, "--starts luck: give one of data, noise"),
        ({"starts": ("data", "data")}, "give data once"),
        ({"first_text_only": ("luck",)}, "--first-text-only luck"),
        ({"seeds": 1}, "--seeds 1: give a whole number of at least 2"),
        ({"methods": ("topk", "topk")}, "give topk once"),
        ({"rates": (0.0,)}, "--rates 0: give a number above 0"),
        ({"k": 9, "units": 8}, "--k 9 exceeds the SAE's 8 units"),
        ({"data": ("a=1", "a=2")}, "two texts are called 'a'"),
        ({"data": ("a=1",), "model": "gpt2"}, "--model applies to harvesting"),
        ({"data": ("a=1",), "rows": 100}, "--rows applies to harvesting"),
        ({"mix": 0.3}, "--mix 0.3: give a share from 0.5 to below 1"),
        ({"stitch_units": 16, "k": 32}, "--k 32 exceeds the 16 units of --stitch-units"),
    ],
)
def test_bad_requests_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LMOptions(out=OUT, **options)


def test_a_layer_that_the_model_lacks_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 6}')
    LMOptions(out=OUT, model=str(tmp_path), layer=6)
    with pytest.raises(ValueError, match="layer=99: the model has 6 blocks; choose a layer from 0 to 6"):
        LMOptions(out=OUT, model=str(tmp_path), layer=99)


@pytest.mark.parametrize(
    ("options", "starts", "stitch"),
    [
        ({}, ("data",), 2),
        ({"setting": "smollm2-135m"}, ("data",), 2),
        ({"setting": "pythia-70m"}, ("data", "noise"), 16),
        ({"setting": "gemma-2-2b"}, ("data", "noise"), 16),
        ({"setting": "gemma-2-2b", "quick": True}, ("data", "noise"), 2),
        ({"setting": "gemma-2-2b", "starts": ("noise",), "stitch": 0}, ("noise",), 0),
    ],
    ids=str,
)
def test_a_setting_says_where_to_start_and_how_much_to_stitch(options, starts, stitch):
    made = plan.make_plan(LMOptions(out=OUT, device="cpu", **options))
    assert (made.starts, made.stitch) == (starts, stitch)


def test_options_override_the_setting():
    made = plan.make_plan(LMOptions(out=OUT, device="cpu", setting="pythia-70m", units=64, k=4, tokens=4096))
    assert (made.units, made.k, made.tokens, made.seeds) == (64, 4, 4096, 5)
    assert plan.count_text_rows(LMOptions(out=OUT, tokens=4096, rows=10_000)) == 4096


def test_one_training_run_at_a_time_on_a_gpu(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    assert plan.make_plan(LMOptions(out=OUT, device="cpu")).workers == 7
    monkeypatch.setattr(plan, "choose_device", lambda name: "cuda")
    assert plan.make_plan(LMOptions(out=OUT)).workers == 1
    assert plan.make_plan(LMOptions(out=OUT, jobs=3)).workers == 3


def test_settings_are_found_by_name():
    assert all(find_setting(name) is setting for name, setting in SETTINGS.items())
    with pytest.raises(ValueError, match="no setting 'gpt-5': choose from pythia-70m"):
        find_setting("gpt-5")
    with pytest.raises(ValueError, match="no text 'c4'"):
        find_setting("pythia-70m").harvest("c4")
