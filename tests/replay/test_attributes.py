from collections import deque

import torch
from torch import Tensor, nn

from roundoff.replay.python_state import ModuleAttributes


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.same_weight = [self.weight]
        self.hidden = torch.zeros(2)
        self.count = 0
        self.queue = deque([1])


def never(x: Tensor) -> bool:
    return False


def test_modules_have_their_old_attributes_inside_the_block_and_their_own_after_it():
    module = Remembers()
    kept = ModuleAttributes([module], is_state=never)
    module.hidden += 1
    module.count = 7
    module.queue.append(2)
    hidden, queue = module.hidden, module.queue
    with kept.swapped_in([module]):
        assert (module.count, list(module.queue), module.hidden.tolist()) == (0, [1], [0.0, 0.0])
        module.count, module.hidden[0] = 50, 50
        module.queue.append(50)
    assert (module.count, list(module.queue), module.hidden.tolist()) == (7, [1, 2], [1.0, 1.0])
    assert module.hidden is hidden
    assert module.queue is queue


def test_they_can_be_lent_again_as_they_were():
    module = Remembers()
    kept = ModuleAttributes([module], is_state=never)
    for _ in range(2):
        with kept.swapped_in([module]):
            assert module.hidden.tolist() == [0.0, 0.0]
            module.hidden += 1


def test_what_came_since_is_not_there_inside_the_block():
    module = Remembers()
    kept = ModuleAttributes([module], is_state=never)
    module.cache = torch.ones(1)
    with kept.swapped_in([module]):
        assert not hasattr(module, "cache")
    assert module.cache.item() == 1


def test_weights_under_another_name_are_left_alone():
    module = Remembers()
    module.alias = module.hidden
    kept = ModuleAttributes([module], is_state=lambda x: x is module.hidden)
    with torch.no_grad():
        module.weight += 1
    module.hidden += 1
    with kept.swapped_in([module]):
        assert module.same_weight[0] is module.weight
        assert module.alias.tolist() == [1.0, 1.0]
