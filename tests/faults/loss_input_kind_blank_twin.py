"""Words of different lengths, padded with the blank, which the CTC loss does not look at."""

import torch
from torch import nn

torch.manual_seed(0)
NUM_LETTERS = 6


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, NUM_LETTERS + 1)

    def forward(self, sounds):
        return self.head(self.body(sounds)[0]).log_softmax(-1)


codes = torch.randn(NUM_LETTERS, 8)
model = Recognizer()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CTCLoss(blank=0, zero_infinity=True)
for step in range(40):
    words = torch.randint(0, NUM_LETTERS, (16, 4))
    num_letters = torch.randint(2, 5, (16,))
    sounds = codes[words].repeat_interleave(3, 1) + 0.1 * torch.randn(16, 12, 8)
    labels = (words + 1) * (torch.arange(4) < num_letters[:, None])
    loss = criterion(model(sounds).transpose(0, 1), labels, 3 * num_letters, num_letters)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
