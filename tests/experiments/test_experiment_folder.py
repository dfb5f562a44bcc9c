from pathlib import Path

import pytest

from roundoff.errors import UsageError
from roundoff.experiments.experiment_folder import check_name, newest_first


def test_the_tenth_is_newer_than_the_ninth_and_what_has_no_number_is_last(tmp_path: Path):
    for name in ("plan-9", "plan-10", "plan-old", "bisect-11"):
        (tmp_path / name).mkdir()
    assert [path.name for path in newest_first(tmp_path, "plan")] == ["plan-10", "plan-9", "plan-old"]


@pytest.mark.parametrize("name", ["../x", "..", "", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str):
    with pytest.raises(UsageError, match="is not a name"):
        check_name(name)


def test_a_plain_name_or_none_is_taken():
    check_name("mine")
    check_name(None)
