import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from roundoff.precision.fixed import FixedPointModel
from roundoff.precision.recipe.fixed_point_settings import KINDS, TensorSetting

PAGE = (Path(__file__).parents[3] / "docs" / "fixed-point.md").read_text()


def test_the_example_runs_and_learns(capsys):
    torch.manual_seed(0)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "fixed-point.md", "exec"), names)
    model, loss = names["model"], names["loss"]
    assert isinstance(model, nn.Module)
    assert loss.item() < 0.45
    assert capsys.readouterr().out.startswith("tensor ")
    methods = {row.name: row.setting.method for row in FixedPointModel.of(model).rows()}
    assert methods["2.activation"] == "none"


def test_the_page_names_every_kind_and_field():
    for word in (*KINDS, *TensorSetting.__dataclass_fields__):
        assert f"`{word}`" in PAGE, word
