"""`make pictures` draws what the pages show, with the same code and the same training."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium: apt install chromium")
def test_every_picture_is_drawn_again_in_the_size_it_has_in_the_docs(tmp_path: Path):
    command = [sys.executable, str(ROOT / "docs" / "pictures.py"), "--to", str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    kept = {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == kept
    for name in kept:
        with Image.open(tmp_path / name) as now, Image.open(ROOT / "docs" / "pictures" / name) as then:
            assert now.width == then.width
            assert abs(now.height - then.height) < 0.2 * then.height  # fonts differ from machine to machine
            assert len(now.convert("RGB").getcolors(maxcolors=2**24)) > 20  # something is drawn
