from pathlib import Path

import pytest

from roundoff.diagnose.process.memory import memcheck_findings
from roundoff.errors import RunFolderError
from roundoff.runs import Severity

PYTHON = ("_PyEval_EvalFrameDefault", "/usr/lib/libpython3.11.so.1.0", None)
KERNEL = ("scatter_kernel", "/home/me/ops.so", ("ops.cpp", 12))
MALLOC = ("malloc", "/usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so", None)

Frame = tuple[str, str, tuple[str, int] | None]


def frame(function: str, library: str, source: tuple[str, int] | None) -> str:
    place = f"<file>{source[0]}</file><line>{source[1]}</line>" if source else ""
    return f"<frame><ip>0x1</ip><obj>{library}</obj><fn>{function}</fn>{place}</frame>"


def loss(num_bytes: int, blocks: int, *frames: Frame) -> str:
    what = (
        f"<xwhat><text>lost</text><leakedbytes>{num_bytes}</leakedbytes><leakedblocks>{blocks}</leakedblocks></xwhat>"
    )
    stack = "".join(frame(*one) for one in frames)
    return f"<error><kind>Leak_DefinitelyLost</kind>{what}<stack>{stack}</stack></error>"


def access(what: str, *frames: Frame) -> str:
    stack = "".join(frame(*one) for one in frames)
    return f"<error><kind>InvalidRead</kind><what>{what}</what><stack>{stack}</stack></error>"


def written(folder: Path, *errors: str, end: str = "</valgrindoutput>") -> Path:
    path = folder / "memcheck.xml"
    path.write_text(f"<valgrindoutput>{''.join(errors)}{end}")
    return path


def test_losses_are_summed_by_the_frame_that_called_the_allocator(tmp_path: Path):
    path = written(
        tmp_path,
        loss(100, 1, MALLOC, ("other", "/lib/other.so", None), PYTHON),
        loss(4000, 4, MALLOC, KERNEL, PYTHON),
        loss(1000, 1, MALLOC, KERNEL, PYTHON, PYTHON),
    )
    first, second = memcheck_findings(path)
    assert first.title == "5000 bytes were lost in scatter_kernel (ops.cpp:12)"
    assert (first.source, first.severity) == ("ops.cpp:12", Severity.WARNING)
    assert second.title == "100 bytes were lost in other (other.so)"


def test_a_wrong_access_comes_first_and_is_an_error(tmp_path: Path):
    path = written(tmp_path, loss(9, 1, MALLOC, KERNEL), access("Invalid read of size 4", KERNEL, PYTHON))
    first, _ = memcheck_findings(path)
    assert (first.rule, first.severity) == ("invalid-access", Severity.ERROR)
    assert first.title == "Invalid read of size 4 in scatter_kernel (ops.cpp:12)"


@pytest.mark.parametrize("once", ["dlopen@@GLIBC_2.34", "PyInit__C", "PyModule_ExecDef", "_dl_map_object"])
def test_what_happens_once_while_libraries_are_loaded_is_not_reported(tmp_path: Path, once: str):
    loading = (once, "/lib/x.so", None)
    path = written(tmp_path, loss(9, 1, MALLOC, KERNEL, loading), access("Invalid read of size 8", KERNEL, loading))
    assert memcheck_findings(path) == []


def test_what_python_itself_keeps_is_not_reported(tmp_path: Path):
    start = ("(below main)", "/lib/libc.so.6", ("libc_start_call_main.h", 58))
    assert memcheck_findings(written(tmp_path, loss(9, 1, MALLOC, PYTHON, PYTHON, start))) == []


def test_a_file_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path):
    path = written(tmp_path, loss(9, 1, MALLOC, KERNEL), end="<error><kind>Inv")
    assert len(memcheck_findings(path)) == 1


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"memcheck\.xml"):
        memcheck_findings(tmp_path / "memcheck.xml")
