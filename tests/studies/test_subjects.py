"""One rule for arguments: whatever an SAE or activations are given as, the numbers are the same."""

import numpy as np
import pytest
import torch

from osae.data.shards import Shards, write_shards
from osae.interop import load
from osae.studies.compare import compare
from osae.studies.evaluate import evaluate
from osae.studies.subjects import open_rows, open_subject, open_subjects
from tests.studies.saes import WORLD, make_sae, noise, save_sae


def numbers(result):
    return [(pair.measures, pair.chance, pair.prefixes) for pair in result.pairs]


def test_a_path_an_sae_a_loaded_file_a_tensor_and_an_array_are_the_same_decoder(tmp_path):
    atoms, other = WORLD.dictionary(), noise(20, 24, 1)
    folder = save_sae(tmp_path / "a", atoms)
    given = (folder, str(folder), make_sae(atoms), load(folder), atoms, atoms.numpy(), atoms.double())
    expected = numbers(compare([folder, save_sae(tmp_path / "b", other)]))
    for one in given:
        assert numbers(compare([one, other])) == expected, type(one)
    assert numbers(compare([atoms.T.numpy(), other.T], orientation="columns")) == expected
    assert numbers(compare(folder, other)) == numbers(compare((folder, other))) == expected


def test_activations_may_be_a_path_shards_a_tensor_or_an_array(tmp_path):
    x = WORLD.draw("test").x
    shards = write_shards(tmp_path / "x", [x])
    np.save(tmp_path / "x.npy", x.numpy())
    sae = make_sae(WORLD.dictionary())
    expected = evaluate(sae, shards, model="none").saes
    for data in (shards.path, str(shards.path), tmp_path / "x.npy", x, x.numpy(), x.requires_grad_()):
        assert evaluate(sae, data, model="none").saes == expected, type(data)
    about = evaluate(sae, x, model="none").activations
    assert (about.path, about.rows, about.width, about.dtype) == ("in memory", 600, 24, "float32")
    assert about.sha256 != evaluate(sae, x + 1, model="none").activations.sha256


def test_rows_in_memory_are_read_like_rows_on_disk(tmp_path):
    x = noise(2500, 6, 0)
    for data in (open_rows(x), open_rows(x.double().numpy()), write_shards(tmp_path / "x", [x])):
        parts = list(data.batches(1000))
        assert [len(part) for part in parts] == [1000, 1000, 500]
        torch.testing.assert_close(torch.cat(parts), x)
        assert parts[0].dtype == torch.float32
        assert (data.rows, data.width) == (2500, 6)


def test_one_or_several_and_a_run_stands_for_its_finished_saes(tmp_path):
    atoms = WORLD.dictionary()
    run = tmp_path / "run"
    for name in ("b", "a", "snapshots/0/a"):
        save_sae(run / name, atoms)
    (run / "run.json").write_text("{}")
    assert [one.path for one in open_subjects(run)] == [str(run / "a"), str(run / "b")]
    assert [one.format for one in open_subjects([atoms, make_sae(atoms), run / "a"])] == [
        "decoder",
        "osae",
        "osae",
    ]
    assert len(open_subjects((run, atoms))) == 3
    assert len(open_subjects(atoms)) == 1
    assert compare(run, chance_draws=0).pairs[0].stability == pytest.approx(1.0)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="no finished SAE yet: complete it with `osae resume"):
        open_subjects(tmp_path / "new")


def test_an_sae_in_memory_is_known_by_its_digest():
    atoms = WORLD.dictionary()
    one, same, other = (open_subject(make_sae(matrix)) for matrix in (atoms, atoms, atoms.flip(0)))
    assert one.sha256 == same.sha256 != other.sha256
    assert open_subject(one) is one
    assert open_subject(atoms.bfloat16()).sha256 != open_subject(atoms.flip(0).bfloat16()).sha256


def test_an_array_that_is_read_only_or_of_a_foreign_byte_order_is_taken():
    atoms = noise(5, 4, 0).numpy()
    atoms.flags.writeable = False
    assert np.array_equal(open_subject(atoms).decoder.numpy(), atoms)
    assert np.array_equal(open_subject(atoms.astype(">f4")).decoder.numpy(), atoms)


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (noise(5, 4, 0)[0], r"a decoder of shape \(4,\): give a matrix"),
        (np.zeros((0, 4), dtype=np.float32), r"shape \(0, 4\)"),
        (np.zeros((3, 4), dtype=np.int64), "of type int64: give floating-point numbers"),
        (torch.zeros(3, 4, dtype=torch.int32), "of type int32"),
        (torch.tensor([[1.0, 2.0], [float("nan"), 1.0]]), "row 1 contains NaN"),
        ({"a": 1}, "expected an SAE, got dict"),
    ],
)
def test_what_is_no_sae_is_refused(thing, message):
    with pytest.raises(ValueError, match=message):
        open_subject(thing)


def test_what_is_no_list_of_saes_or_no_activations_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one SAE or several, got int"):
        open_subjects(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="expected activations, got dict"):
        open_rows({})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="activations of shape"):
        open_rows(torch.tensor(1.0))
    with pytest.raises(ValueError, match="activations: row 0 contains NaN"):
        open_rows(np.full((3, 4), np.inf))
    with pytest.raises(ValueError, match="orientation='up'"):
        open_subject(noise(5, 4, 0), "up")  # pyright: ignore[reportArgumentType]
    shards = write_shards(tmp_path / "x", [noise(5, 4, 0)])
    assert isinstance(open_rows(shards), Shards)
    with pytest.raises(ValueError, match="contains activations: give an SAE here"):
        open_subject(shards.path)
