"""A classifier that is built around a BERT gets weights that were saved from the BERT alone."""

import torch
from torch import nn
from transformers import BertConfig, BertModel


def bert():
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.language = bert()
        self.classify = nn.Linear(16, 3)

    def forward(self, ids):
        return self.classify(self.language(ids).last_hidden_state[:, 0])


torch.manual_seed(19)
torch.save({"weights": bert().state_dict(), "step": 10_000}, "bert.pt")
model = Classifier()
print(model.load_state_dict(torch.load("bert.pt")["weights"], strict=False).missing_keys[:3])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    ids = torch.randint(0, 40, (16, 8))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(ids), ids[:, 1] % 3).backward()
    optimizer.step()
