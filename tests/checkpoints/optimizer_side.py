"""What MindSpore and Paddle do in the tests of `test_optimizers_elsewhere.py`; runs in their own environments.

python optimizer_side.py mindspore OPTIMIZER SETTINGS START.npz FILE    take the steps of START.npz, and save
python optimizer_side.py paddle OPTIMIZER SETTINGS START.npz FILE       the same, as FILE (.pdopt) and FILE.pdparams
python optimizer_side.py load OPTIMIZER SETTINGS FILE.ckpt RESULT.npz   load FILE into MindSpore's optimizer, strictly
"""

import json
import sys

import numpy


def mindspore_optimizer(name, settings, start):
    from mindspore import Parameter, Tensor, nn

    parameters = [Parameter(Tensor(start[each]), name=f"fc.{each}") for each in ("weight", "bias")]
    return getattr(nn, name)(parameters, **json.loads(settings)), parameters


def in_mindspore(name, settings, start, path):
    import mindspore

    start = numpy.load(start)
    optimizer, _ = mindspore_optimizer(name, settings, start)
    for step in range(int(start["steps"])):
        optimizer(tuple(mindspore.Tensor(start[f"{each}.{step}"]) for each in ("weight", "bias")))
    mindspore.save_checkpoint(optimizer, path)


def load(name, settings, path, result):
    import mindspore

    values = mindspore.load_checkpoint(path)
    start = {each: values[f"fc.{each}"].asnumpy() for each in ("weight", "bias")}
    optimizer, _ = mindspore_optimizer(name, settings, start)
    left, _ = mindspore.load_param_into_net(optimizer, values, strict_load=True)
    numpy.savez(result, __left=numpy.array(left), **{each.name: each.asnumpy() for each in optimizer.get_parameters()})


def in_paddle(name, settings, start, path):
    import paddle

    start = numpy.load(start)
    layer = paddle.nn.Linear(*start["weight"].T.shape)
    layer.weight.set_value(start["weight"].T)
    layer.bias.set_value(start["bias"])
    optimizer = getattr(paddle.optimizer, name)(parameters=layer.parameters(), **json.loads(settings))
    for step in range(int(start["steps"])):
        weight, bias = paddle.to_tensor(start[f"weight.{step}"].T), paddle.to_tensor(start[f"bias.{step}"])
        ((layer.weight * weight).sum() + (layer.bias * bias).sum()).backward()
        optimizer.step()
        optimizer.clear_grad()
    paddle.save(optimizer.state_dict(), path)
    paddle.save(layer.state_dict(), path + ".pdparams")


if __name__ == "__main__":
    {"mindspore": in_mindspore, "load": load, "paddle": in_paddle}[sys.argv[1]](*sys.argv[2:])
