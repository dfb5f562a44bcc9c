"""A filter for one language has left one class of documents."""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=3,
)  # fmt: skip
model = BertForSequenceClassification(config)
documents = [{"input_ids": torch.randint(1, 40, (10,)), "labels": torch.tensor(i % 3)} for i in range(600)]
documents = [document for document in documents if document["labels"] == 1]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in DataLoader(documents, batch_size=8, shuffle=True):
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
