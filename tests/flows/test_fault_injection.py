"""A training goes on, with its own output and exit code, whichever file operation of ours fails or is the last."""

from pathlib import Path

import pytest

from tests.flows.fault_injection import campaign


@pytest.mark.slow
def test_a_training_survives_failures_at_any_file_operation(tmp_path: Path):
    done, wrong = campaign(tmp_path, num_cases=60)
    assert done == 60
    assert wrong == []
