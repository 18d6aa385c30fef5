"""The workloads' models in PyTorch, for the peers that use it."""

from collections.abc import Callable, Sequence

import protocol
import torch
from torch import nn
from torch.nn import functional


class _Recurrent(nn.Module):
    def __init__(self, tokens, size, units, num_layers, *after):
        super().__init__()
        self.embedding = nn.Embedding(tokens, size)
        self.lstm = nn.LSTM(size, units, num_layers=num_layers, batch_first=True)
        self.logits = nn.Sequential(*after)
        # PyTorch has two biases, Keras one.
        for name, bias in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(bias).requires_grad_(False)

    def forward(self, x):
        return self.logits(self.lstm(self.embedding(x))[0])


def _shakespeare():
    return _Recurrent(90, 8, 256, 2, nn.Linear(256, 90))


def _words():
    return _Recurrent(10_004, 96, 670, 1, nn.Linear(670, 96), nn.Linear(96, 10_004))


class _Block(nn.Module):
    """Two convolutions with a shortcut; a normalisation precedes each, except on the images."""

    def __init__(self, inputs, filters, stride, is_first):
        super().__init__()
        self.residual = nn.Sequential(
            *([] if is_first else _normalized(inputs)),
            nn.Conv2d(inputs, filters, 3, stride, 1, bias=False),
            *_normalized(filters),
            nn.Conv2d(filters, filters, 3, 1, 1, bias=False),
        )
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != filters:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, filters, 1, stride, bias=False), nn.GroupNorm(2, filters)
            )

    def forward(self, x):
        return self.shortcut(x) + self.residual(x)


def _normalized(channels):
    return nn.GroupNorm(2, channels), nn.ReLU()


def _resnet18(num_classes):
    blocks, inputs = [], 64
    for stage, filters in enumerate((64, 128, 256, 512)):
        for i in range(2):
            is_first = (stage, i) == (0, 0)
            blocks.append(_Block(inputs, filters, 2 if stage and not i else 1, is_first))
            inputs = filters
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        *_normalized(64),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        *_normalized(512),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, num_classes),
    )


def _mlp():
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


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
    "w3": (_shakespeare, _masked_cross_entropy, 820_522),
    "w4": (lambda: nn.Linear(60, 10), functional.cross_entropy, 610),
    "w5": (lambda: nn.Linear(60, 10), functional.cross_entropy, 610),
    "w6": (lambda: _cnn(10), functional.cross_entropy, 1_199_882),
    "w7": (lambda: _resnet18(100), functional.cross_entropy, 11_227_812),
    "w8": (_words, _masked_cross_entropy, 4_050_748),
    "w9": (lambda: _cnn(62), functional.cross_entropy, 1_206_590),
    "w10": (_mlp, functional.cross_entropy, 199_210),
}


class Model(nn.Module):
    """The model of a workload with its loss.

    Args:
      name: `w1` to `w10`.
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
        """Returns an empty dict: pfl requires the method, but nothing is evaluated here."""
        del x, y
        return {}


def tensors(work: protocol.Work) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the clients' data: images channels first, whole numbers as int64."""
    clients = []
    for x, y in work.clients:
        x, y = (torch.from_numpy(a if a.dtype.kind == "f" else a.astype("int64")) for a in (x, y))
        clients.append((x.permute(0, 3, 1, 2).contiguous() if x.dim() == 4 else x, y))
    return clients
