import ctypes
import gc
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from roundoff.precision.activations import ActivationSettings, compress_activations
from roundoff.precision.activations.compress import ActivationReport, SiteBytes


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8 * 16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.stem(x) * 2).flatten(1))


def test_names_every_site_that_saved_and_counts_shared_memory_once():
    model, x = Net(), torch.randn(4, 3, 16, 16)
    with compress_activations(model, ActivationSettings(bits={"*": 2, "stem.1": 8, "head": 32})) as compressed:
        model(x).sum().backward()
        report = compressed.report()
    picture, plane = 4 * 3 * 256, 4 * 8 * 256
    found = {s.site: (s.bits, s.num_tensors, s.bytes_before, s.bytes_after) for s in report.sites}
    assert found == {
        "stem.0": (2, 1, picture * 4, picture // 256 * 68),
        "stem.1": (8, 3, plane * 4 + 64, plane // 256 * 260 + 64),  # and its mean and deviation, which are small
        "stem.2": (2, 1, plane * 4, plane // 256 * 68),  # multiplying by 2 saves nothing
        "head": (32, 1, plane * 4, plane * 4),
    }
    assert report.bytes_before == sum(before for _, _, before, _ in found.values())
    assert report.bytes_after == sum(after for _, _, _, after in found.values())


def test_says_the_same_as_a_table():
    report = ActivationReport(
        sites=(
            SiteBytes(site="stem", bits=4, num_tensors=2, bytes_before=3_200_000, bytes_after=412_500),
            SiteBytes(site="blocks.0.attn", bits=2, num_tensors=11, bytes_before=999, bytes_after=999),
        )
    )
    assert str(report) == (
        "site           bits  tensors  before   after  ratio\n"
        "total                     13  3.2 MB  413 kB   7.7x\n"
        "stem              4        2  3.2 MB  412 kB   7.8x\n"
        "blocks.0.attn     2       11   999 B   999 B   1.0x"
    )


def test_says_so_when_nothing_was_saved():
    with compress_activations(nn.Linear(3, 3)) as compressed:
        assert str(compressed.report()) == "Nothing saved yet: no training forward has run."


def test_is_about_the_latest_forward():
    model = Net()
    with compress_activations(model) as compressed:
        model(torch.randn(8, 3, 16, 16)).sum().backward()
        large = compressed.report()
        model(torch.randn(4, 3, 16, 16)).sum().backward()
        small = compressed.report()
    assert small.bytes_before < large.bytes_before < 2.01 * small.bytes_before


def test_wrappers_do_not_show_in_the_names():
    class DataParallel(nn.Module):  # the name is what counts
        def __init__(self) -> None:
            super().__init__()
            self.module = Net()

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)

    model = DataParallel()
    with compress_activations(model, ActivationSettings(bits={"stem.*": 4})) as compressed:
        model(torch.randn(4, 3, 16, 16)).sum().backward()
        assert [s.site for s in compressed.report().sites] == ["stem.0", "stem.1", "stem.2", "head"]


def resident_bytes() -> int:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("bits", [32, 4, 2])
def test_the_process_holds_what_the_report_says(bits):
    model = nn.Sequential(
        nn.Conv2d(1, 16, 1), nn.ReLU(), *(nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU()) for _ in range(3))
    )
    x = torch.randn(64, 1, 64, 64)
    with torch.no_grad():
        model(x)
    with compress_activations(model, ActivationSettings(bits=bits)) as compressed:
        before = resident_bytes()
        loss = model(x).sum()
        held = resident_bytes() - before
        assert loss.requires_grad
    assert compressed.report().bytes_before == 4 * 16 * x.nbytes + x.nbytes
    # The batch is not new memory where it is kept as it is.
    expected = compressed.report().bytes_after - (x.nbytes if bits == 32 else 0)
    assert abs(held - expected) < 4e6
