import subprocess
import sys

from roundoff.watch.process.native_debugging import SWITCHES, set_synchronous


def test_every_vendors_switch_is_set_and_returned():
    environment: dict[str, str] = {}
    settings = set_synchronous(environment)
    assert environment == SWITCHES
    assert settings == [f"{name}={value}" for name, value in SWITCHES.items()]
    assert {"CUDA_LAUNCH_BLOCKING=1", "ASCEND_LAUNCH_BLOCKING=1", "CATCH_ASYNC_DISABLE=1"} <= set(settings)


def test_what_the_user_has_set_stays():
    environment = {"CNNL_MIN_LOG_LEVEL": "ERROR"}
    assert "CNNL_MIN_LOG_LEVEL=ERROR" in set_synchronous(environment)
    assert environment["CNNL_MIN_LOG_LEVEL"] == "ERROR"


def test_it_reaches_the_process_before_torch_is_loaded():
    code = (
        "import os, sys\nfrom roundoff.watch.process.native_debugging import set_synchronous\nset_synchronous()\n"
        "print('torch' in sys.modules, os.environ['CUDA_LAUNCH_BLOCKING'])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert answer.stdout.split() == ["False", "1"]
