"""Each test here runs on the CPU, so that what it says is known to hold, and on a GPU where one is visible."""

from __future__ import annotations

import pytest
import torch

DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda", 0), marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES, ids=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return request.param
