"""Check a wheel: it is small, complete, and asks for nothing heavy.

python .ci/check_wheel.py dist/roundoff-*.whl    what is in the file
python .ci/check_wheel.py                        the installed one, without its dependencies: the kernels load
"""

import importlib.util
import re
import sys
import zipfile
from pathlib import Path

MAX_BYTES = 3_000_000
EXPECTED = ("roundoff/__init__.py", "roundoff/py.typed", "roundoff/docs/index.md", "roundoff/report/assets/page.js")
CORE = {"numpy", "backports.zstd", "safetensors", "click", "rich", "tomli-w", "plotly"}


def check_file(wheel: Path) -> None:
    """Check the contents of a wheel that is not installed."""
    assert wheel.stat().st_size <= MAX_BYTES, f"{wheel.name} has {wheel.stat().st_size} bytes"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert not (missing := set(EXPECTED) - set(names)), missing
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    lines = [line for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.M) if "extra ==" not in line]
    required = {re.split(r"[^\w.-]", line)[0] for line in lines}
    assert required == CORE, f"without extras it asks for {sorted(required)}"
    print(f"{wheel}  {wheel.stat().st_size / 1e6:.1f} MB, {len(names)} files")


def check_installed() -> None:
    """Import the installed package and load its compiled kernels."""
    import roundoff

    (path,) = Path(roundoff.__file__).parent.glob("kernels/_compiled.*")
    spec = importlib.util.spec_from_file_location("_compiled", path)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    functions = [name for name in dir(kernels) if not name.startswith("_")]
    assert functions, f"{path.name} is empty"
    print(f"roundoff {roundoff.__version__}: {path.name} has {len(functions)} functions, {kernels.level()}")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        check_file(Path(name))
    if not sys.argv[1:]:
        check_installed()
