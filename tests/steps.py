"""Transforms that tests put into buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Tell:
    """Notes each call and changes nothing."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log = name, log

    def __call__(self, data: Any) -> Any:
        self.log.append(("out", self.name))
        return data

    def inv(self, data: Any) -> Any:
        self.log.append(("in", self.name))
        return data


class Shift(nn.Module):
    """Adds a parameter to what is read, and takes it off what is written."""

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.tensor(by))

    def forward(self, data: Any) -> Any:
        return data + self.by

    def inv(self, data: Any) -> Any:
        return data - self.by


class Times:
    """A transform of any numbers whose order against `Shift` shows in the values."""

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, data: Any) -> Any:
        return data * self.by

    def inv(self, data: Any) -> Any:
        return data / self.by


def make_shift() -> Shift:
    return Shift(5.0)
