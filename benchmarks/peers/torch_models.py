"""The workloads' models in PyTorch, for the peers that use it."""

from collections.abc import Callable, Sequence

import protocol
import torch
from torch import nn
from torch.nn import functional


class _Shakespeare(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(90, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.logits = nn.Linear(256, 90)
        # PyTorch has two biases where Keras has one.
        for name, bias in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(bias).requires_grad_(False)

    def forward(self, x):
        return self.logits(self.lstm(self.embedding(x))[0])


def _cnn(num_classes):
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )


def _masked_cross_entropy(logits, y):
    losses = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    is_token = torch.cat([torch.ones_like(y[:, :1]), y[:, :-1]], 1).flatten() > 0
    return (losses * is_token).sum() / is_token.sum()


def _sum_binary_cross_entropy(logits, y):
    losses = functional.binary_cross_entropy_with_logits(logits, y, reduction="none")
    return losses.mean(1).sum()


# Workload → model, loss of a minibatch, number of trained parameters.
_MODELS: dict[str, tuple[Callable, Callable, int]] = {
    "w1": (lambda: _cnn(62), functional.cross_entropy, 1_206_590),
    "w2": (lambda: nn.Linear(10_000, 500), _sum_binary_cross_entropy, 5_000_500),
    "w3": (_Shakespeare, _masked_cross_entropy, 820_522),
    "w4": (lambda: nn.Linear(60, 10), functional.cross_entropy, 610),
    "w5": (lambda: nn.Linear(60, 10), functional.cross_entropy, 610),
    "w6": (lambda: _cnn(10), functional.cross_entropy, 1_199_882),
}


class Model(nn.Module):
    """The model of a workload with its loss.

    Args:
      name: `w1` to `w6`.
    """

    def __init__(self, name: str):
        super().__init__()
        make, self._loss, size = _MODELS[name]
        torch.manual_seed(0)
        self.net = make()
        assert sum(w.numel() for w in self.parameters() if w.requires_grad) == size

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a minibatch in training, as a scalar."""
        return self._loss(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        """Returns nothing; pfl asks for it, and nothing is evaluated here."""
        del x, y
        return {}


def tensors(work: protocol.Work) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the clients' data: images channels first, whole numbers as int64."""
    clients = []
    for x, y in work.clients:
        x, y = (torch.from_numpy(a if a.dtype.kind == "f" else a.astype("int64")) for a in (x, y))
        clients.append((x.permute(0, 3, 1, 2).contiguous() if x.dim() == 4 else x, y))
    return clients
