import shutil
from pathlib import Path

import pytest

from roundoff.diagnose.process.memory import memcheck_findings
from roundoff.errors import ScriptError
from roundoff.watch.process.native_debugging import memcheck_command, run_memcheck

LEAKING = """
import ctypes, sys
libc = ctypes.CDLL(None)
for _ in range(20):
    libc.opendir(b".")  # never closed, and its address is cut to an int: nothing points to it
sys.exit(3)
"""
HEALTHY = "print(sum(range(100)))"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_a_leak_is_named_by_its_native_frame_and_a_healthy_script_has_none(tmp_path: Path):
    (tmp_path / "leaking.py").write_text(LEAKING)
    (tmp_path / "healthy.py").write_text(HEALTHY)
    assert run_memcheck(["python", str(tmp_path / "leaking.py")], xml=tmp_path / "leaking.xml") == 3
    (finding,) = memcheck_findings(tmp_path / "leaking.xml")
    assert finding.rule == "native-leak"
    assert "dir" in finding.title
    assert 15 <= int(finding.why.split()[0]) <= 20  # some addresses stay on the stack
    assert run_memcheck(["python", str(tmp_path / "healthy.py")], xml=tmp_path / "healthy.xml") == 0
    assert memcheck_findings(tmp_path / "healthy.xml") == []


def test_without_valgrind_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ScriptError, match="apt install valgrind"):
        memcheck_command(["python", "train.py"], xml=Path("memcheck.xml"))
