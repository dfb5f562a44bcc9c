"""Scripts that are made of one bad op, run as a stranger would run them."""

import math
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.errors import ReplayError
from roundoff.replay.saved.export import export_repro
from roundoff.runs import Origin, Run, RunInfo, RunWriter
from roundoff.watch.watching import watching

BAD = 1
"""The step whose batch is bad."""


class Computes(nn.Module):
    def __init__(self, compute: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self.scale * x)


def bad_step(compute: Callable[[Tensor], Tensor], folder: Path) -> Run:
    """Train on three batches, of which one is bad; return the folder of its step."""
    torch.manual_seed(0)
    model = Computes(compute)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watching(to=folder):
        for step in range(3):
            x = torch.rand(4, 6) + 1
            x[2, 3] = -1e30 if step == BAD else 1.0
            optimizer.zero_grad()
            model(x).float().sum().backward()
            optimizer.step()
    return Run.open(folder).replay(BAD)


def output_of(script: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        runpy.run_path(str(script), run_name="__main__")
    assert leaving.value.code == 1
    return capsys.readouterr().out


OPS: dict[str, tuple[Callable[[Tensor], Tensor], str, str]] = {
    "a domain that is left": (lambda x: x.log(), "aten::log.default", "[2, 3]: nan"),
    "in place": (lambda x: (x * 1).log_(), "aten::log_.default", "[2, 3]: nan"),
    "a list of tensors": (
        lambda x: torch._foreach_log([x * 1, x * 2])[0],
        "aten::_foreach_log.default",
        "[2, 3]: nan",
    ),
    "a dtype": (lambda x: x.to(torch.float16), "aten::_to_copy.default", "[2, 3]: -inf"),
    "transposed": (lambda x: x.t().mm(x), "aten::mm.default", "[3, 3]: inf"),
    "a list of numbers": (lambda x: x.square().sum(dim=[0, 1]), "aten::pow.Tensor_Scalar", "[2, 3]: inf"),
}


@pytest.mark.parametrize("name", OPS)
def test_the_script_shows_the_wrong_values_again(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    compute, overload, value = OPS[name]
    replayed = bad_step(compute, tmp_path / "run")
    assert export_repro(replayed, to=tmp_path / "repro.py") == [tmp_path / "repro.py"]
    text = output_of(tmp_path / "repro.py", capsys)
    assert text.startswith(f"{overload}, torch {torch.__version__}\n")
    assert value in text.split("output0")[1].split("\n")[0]
    assert value in text.split("  saved ")[1].split("\n")[0]
    assert "(the same)" in text
    assert "not the same" not in text


def test_the_script_needs_only_torch_and_the_file_next_to_it(tmp_path: Path):
    replayed = bad_step(lambda x: x.expand(2000, 4, 6).log(), tmp_path / "run")
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    written = export_repro(replayed, to=folder / "bug.py")
    assert written == [folder / "bug.py", folder / "bug.safetensors"]
    hide = "import sys; sys.modules.update(roundoff=None, safetensors=None, numpy=None)\n"
    (folder / "run.py").write_text(hide + "import runpy; runpy.run_path('bug.py', run_name='__main__')\n")
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "run.py"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert (answer.returncode, answer.stderr) == (1, "")
    assert "output0  2000 of 48000 not finite;  [0, 2, 3]: nan, [1, 2, 3]: nan, [2, 2, 3]: nan\n" in answer.stdout
    assert "  fp64    2000 of 48000 not finite" in answer.stdout


def test_a_tensor_that_overlaps_itself_is_laid_out_row_by_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    replayed = bad_step(lambda x: x.unfold(1, 3, 1).log(), tmp_path / "run")
    assert replayed.origin().arguments["self"]["stride"] == [6, 1, 1]
    export_repro(replayed, to=tmp_path / "repro.py")
    assert "stride=" not in (tmp_path / "repro.py").read_text().split("arguments = ")[1]
    assert "output0  3 of 48 not finite" in output_of(tmp_path / "repro.py", capsys)


def test_long_names_of_arguments_stay_apart_from_their_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    replayed = bad_step(lambda x: x.masked_fill((x < -1e29).any(), -math.inf).softmax(-1), tmp_path / "run")
    export_repro(replayed, to=tmp_path / "repro.py")
    assert "  seen in        " in (text := output_of(tmp_path / "repro.py", capsys))
    assert "  half_to_float  False\n" in text


def test_the_result_in_fp64_is_printed_next_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    replayed = bad_step(lambda x: x.to(torch.float16), tmp_path / "run")
    export_repro(replayed, to=tmp_path / "repro.py")
    text = output_of(tmp_path / "repro.py", capsys)
    assert "  fp64    0 of 24 not finite;  [2, 3]: -1.0000000150474662e+30\n" in text


ORIGIN = Origin(step=0, phase="forward", site="a", op="aten.log#0", overload="aten::log.default")


def with_origin(folder: Path, origin: Origin) -> Run:
    writer = RunWriter.create(folder, RunInfo())
    writer.write(origin)
    with writer.origin_tensors() as file:
        file.add("self", b"\x00\x00\x80\xbf", dtype="F32", shape=(1,))
    return Run.open(folder)


@pytest.mark.parametrize(
    ("origin", "what"),
    [
        (replace(ORIGIN, overload="mine::twice.default"), "'aten.log#0' cannot be exported"),
        (replace(ORIGIN, overload="aten::never_was.default"), "This torch has no op 'aten::never_was.default'"),
        (replace(ORIGIN, arguments={"generator": {"repr": "<torch._C.Generator object>"}}), "argument 'generator'"),
        (replace(ORIGIN, arguments={"dtype": {"repr": "torch.nothing_like_it"}}), "argument 'dtype'"),
        (replace(ORIGIN, arguments={"self": {"repr": "__import__('os').system('true')"}}), "argument 'self'"),
        (replace(ORIGIN, arguments={"self": {"tensor": "other"}}), "its tensor was not saved"),
    ],
)
def test_an_op_that_cannot_be_exported_says_why(origin: Origin, what: str, tmp_path: Path):
    with pytest.raises(ReplayError, match=what):
        export_repro(with_origin(tmp_path / "run", origin), to=tmp_path / "repro.py")
    assert not list(tmp_path.glob("repro*"))


def test_text_from_the_run_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    origin = replace(ORIGIN, site='"""\nraise SystemExit(7)\n"""', arguments={"self": {"tensor": "self"}})
    export_repro(with_origin(tmp_path / "run", origin), to=tmp_path / "repro.py")
    assert "raise SystemExit(7)" in output_of(tmp_path / "repro.py", capsys)


def test_without_an_origin_there_is_nothing_to_export(tmp_path: Path):
    RunWriter.create(tmp_path / "run", RunInfo())
    with pytest.raises(ReplayError, match="There is no op to export"):
        export_repro(Run.open(tmp_path / "run"), to=tmp_path / "repro.py")


def test_nothing_is_written_over(tmp_path: Path):
    replayed = with_origin(tmp_path / "run", replace(ORIGIN, arguments={"self": {"tensor": "self"}}))
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(ReplayError, match="already exists"):
        export_repro(replayed, to=tmp_path / "train.py")
    with pytest.raises(ReplayError, match="there is no folder"):
        export_repro(replayed, to=tmp_path / "no" / "repro.py")
    assert (tmp_path / "train.py").read_text() == "mine"


def write_origin(folder: Path, **changed: object) -> Run:
    """Write the folder of a step whose bad op is what a stranger says it is."""
    origin = Origin(
        step=0, phase="forward", site="fc", op="aten.log#0", overload="aten::log.default", microbatch=0,
        parameter=None, source=None, arguments={"self": {"tensor": "self"}}, num_outputs=1,
    )  # fmt: skip
    writer = RunWriter.create(folder, RunInfo())
    with writer.origin_tensors() as tensors:
        tensors.add("self", torch.ones(2).numpy(), dtype="F32", shape=(2,))
    writer.write(replace(origin, **changed))
    return Run.open(folder)


CODE = "__import__('pathlib').Path('pwned').touch()"
HOSTILE: dict[str, dict[str, object]] = {
    "an op that is code": {"overload": f"aten::log.default; {CODE}"},
    "an op with a line break": {"overload": f"aten::log.default\n{CODE}"},
    "an op that ends the docstring": {"overload": f'aten::log.default"""; {CODE}'},
    "an op that is an attribute": {"overload": "aten::log.__class__"},
    "an op that is not one": {"overload": "aten::__class__.mro"},
    "an op that writes a file": {"overload": "aten::from_file.default"},
    "an argument that is code": {"arguments": {"self": {"repr": f"torch.float32 or {CODE}"}}},
    "a constant that is a function": {"arguments": {"self": {"repr": "torch.load"}}},
    "strides that are code": {"arguments": {"self": {"tensor": "self", "stride": [CODE]}}},
    "a tensor that is a list": {"arguments": {"self": {"tensor": ["self"]}}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_from_the_run_becomes_code(tmp_path: Path, name: str):
    run = write_origin(tmp_path / "run", **HOSTILE[name])
    with pytest.raises(ReplayError):
        export_repro(run, to=tmp_path / "repro.py")
    assert not (tmp_path / "repro.py").exists()


def test_texts_of_the_run_stay_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = f'a"""\n{CODE}\n\'{{{CODE}}}'
    run = write_origin(tmp_path / "run", site=text, source=text, arguments={"self": {"tensor": "self"}, text: text})
    export_repro(run, to=tmp_path / "repro.py")
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "repro.py"], capture_output=True, check=False, timeout=120)
    assert not (tmp_path / "pwned").exists()


def test_the_script_is_private_and_follows_no_link(tmp_path: Path):
    run = write_origin(tmp_path / "run")
    (tmp_path / "link.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(ReplayError, match="already exists"):
        export_repro(run, to=tmp_path / "link.py")
    export_repro(run, to=tmp_path / "repro.py")
    assert not (tmp_path / "elsewhere.py").exists()
    assert (tmp_path / "repro.py").stat().st_mode & 0o777 == 0o600
