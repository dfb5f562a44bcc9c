import pytest

from roundoff.kernels.availability import compiled


@pytest.fixture(params=["compiled", "torch"])
def either_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once with the compiled kernels and once with their torch versions."""
    if request.param == "torch":
        monkeypatch.setattr("roundoff.kernels.layout.compiled", lambda: None)
    elif compiled() is None:
        pytest.skip("the compiled kernels are not built")
    return str(request.param)
