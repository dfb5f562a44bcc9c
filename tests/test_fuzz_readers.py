"""Changed files of every kind are read or refused, and nothing else; `make fuzz` does it for longer."""

import pytest

from tests.fuzz_readers import Campaign


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "checkpoint", "recipe", "curve"])
def test_readers_refuse_changed_files_with_an_error_of_ours(kind: str):
    campaign = Campaign(seed=0, only=kind)
    campaign.run(num_cases=150 if kind == "run" else 500)
    assert campaign.faults == {}
