import pickle
from pathlib import Path

import pytest
import torch

from roundoff.errors import TrainError
from roundoff.train.trainer_state import NAME, TrainerState


def checkpoint(step: int = 3) -> TrainerState:
    return TrainerState(
        config={"recipe": "fp32"},
        num_ranks=1,
        step=step,
        model={"weight": torch.ones(2)},
        optimizer={"state": {}, "param_groups": []},
        average=None,
        random=[],
    )


def test_what_was_saved_is_what_is_loaded_from_the_file_or_its_folder(tmp_path: Path):
    checkpoint().save(tmp_path / NAME)
    for path in (tmp_path, tmp_path / NAME):
        loaded = TrainerState.load(path)
        assert loaded.step == 3
        assert torch.equal(loaded.model["weight"], torch.ones(2))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    checkpoint(step=1).save(tmp_path / NAME)

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(TrainError, match=r"cannot be written\.\n  why: No space left on device\."):
        checkpoint(step=2).save(tmp_path / NAME)
    assert TrainerState.load(tmp_path).step == 1
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_missing_checkpoint_is_named(tmp_path: Path):
    with pytest.raises(TrainError) as caught:
        TrainerState.load(tmp_path)
    assert str(caught.value) == (
        f"There is no checkpoint '{tmp_path / NAME}'.\n  fix: pass a run folder or a checkpoint: --resume runs/train-1"
    )


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", pickle.dumps(object, protocol=2)])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(TrainError, match="cannot be read as a checkpoint"):
        TrainerState.load(tmp_path)


def test_a_cut_off_checkpoint_is_refused(tmp_path: Path):
    checkpoint().save(tmp_path / NAME)
    whole = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TrainError, match="cannot be read as a checkpoint"):
        TrainerState.load(tmp_path)


def test_another_programs_checkpoint_is_refused(tmp_path: Path):
    torch.save({"weight": torch.ones(1)}, tmp_path / NAME)
    with pytest.raises(TrainError, match="is not a checkpoint of roundoff train"):
        TrainerState.load(tmp_path)
