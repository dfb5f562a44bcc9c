"""What MindSpore does in the tests of `test_in_mindspore.py`; runs in MindSpore's own environment, without PyTorch.

python mindspore_side.py load FILE RESULT.npz      load FILE into the net, strictly, and say what it computes
python mindspore_side.py adam FILE RESULT.npz      the same for the net's optimizer
python mindspore_side.py plain FILE RESULT.npz     whatever FILE holds
python mindspore_side.py save FILE.ckpt VALUES.npz write checkpoints
"""

import sys


def net():
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 4, 3, has_bias=True, pad_mode="valid")
            self.bn1 = nn.BatchNorm2d(4)
            self.conv2 = nn.Conv2d(4, 4, 3, has_bias=True, pad_mode="valid")
            self.bn2 = nn.BatchNorm2d(4)
            self.embed = nn.Embedding(7, 8)
            self.norm = nn.LayerNorm((8,), epsilon=1e-5)
            self.fc1 = nn.Dense(8, 8)
            self.fc2 = nn.Dense(8, 5)

        def construct(self, pictures, words):
            seen = self.bn2(self.conv2(self.bn1(self.conv1(pictures))))
            read = self.fc2(self.fc1(self.norm(self.embed(words))))
            return seen, read

    return Net()


def load(path, result):
    import mindspore
    import numpy

    cell = net()
    cell.set_train(False)
    kind = "safetensors" if path.endswith(".safetensors") else "ckpt"
    parameters = mindspore.load_checkpoint(path, format=kind)
    left, unused = mindspore.load_param_into_net(cell, parameters, strict_load=True)
    unused = [name for name in unused if not name.startswith(("moment", "global_step", "beta"))]
    assert not left, left
    assert not unused, unused
    pictures = mindspore.Tensor(numpy.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=numpy.float32).reshape(2, 3, 8, 8))
    seen, read = cell(pictures, mindspore.Tensor(numpy.array([[0, 3], [6, 1]], numpy.int32)))
    values = {parameter.name: parameter.asnumpy() for parameter in cell.get_parameters()}
    numpy.savez(result, __seen=seen.asnumpy(), __read=read.asnumpy(), **values)


def adam(path, result):
    import mindspore
    import numpy
    from mindspore import nn

    optimizer = nn.Adam(net().trainable_params())
    left, _ = mindspore.load_param_into_net(optimizer, mindspore.load_checkpoint(path), strict_load=True)
    assert set(left) <= {"learning_rate"}, left
    numpy.savez(result, **{parameter.name: parameter.asnumpy() for parameter in optimizer.get_parameters()})


def plain(path, result):
    import mindspore
    import numpy

    found = mindspore.load_checkpoint(path)
    wide = {name: value.float() if value.dtype == mindspore.bfloat16 else value for name, value in found.items()}
    numpy.savez(result, **{name: value.asnumpy() for name, value in wide.items()})


def save(path, values):
    import mindspore
    import numpy

    kept = dict(numpy.load(values))
    parameters = [{"name": name, "data": mindspore.Tensor(value)} for name, value in kept.items()]
    parameters.append({"name": "narrow", "data": mindspore.Tensor([1.5, -2.0], mindspore.bfloat16)})
    mindspore.save_checkpoint(parameters, path, append_dict={"epoch": 3, "lr": 0.5, "note": "hello"})
    mindspore.save_checkpoint(parameters[:-1], path.replace(".ckpt", ".safetensors"), format="safetensors")


if __name__ == "__main__":
    {"load": load, "adam": adam, "plain": plain, "save": save}[sys.argv[1]](*sys.argv[2:])
