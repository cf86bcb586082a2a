"""What every test starts from: a known seed, and a GPU only where one is visible."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine that shows none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no GPU is visible"))


@pytest.fixture(autouse=True)
def known_seed() -> None:
    """A test that forgets its generator still draws the same each time, and the same alone as in company."""
    torch.manual_seed(0)
