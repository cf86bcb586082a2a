"""The ops by name: `schemas` has their contracts, `reference` their plain-torch twins, the compiled library kernels.

Callers in the rooms above have validated from metadata; what an op is handed, it trusts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchrb.ops import reference as reference
from torchrb.ops.loader import backend_of as backend_of
from torchrb.ops.loader import native_library as native_library

_ops = torch.ops.torchrb

append_rows_: Callable[..., tuple[Tensor, Tensor]] = _ops.append_rows_.default
write_rows_: Callable[..., Tensor] = _ops.write_rows_.default
read_rows: Callable[..., tuple[list[Tensor], Tensor]] = _ops.read_rows.default
update_rows_if_: Callable[..., Tensor] = _ops.update_rows_if_.default
clear_rows_: Callable[..., None] = _ops.clear_rows_.default
draw_uniform: Callable[..., Tensor] = _ops.draw_uniform.default
draw_permuted: Callable[..., Tensor] = _ops.draw_permuted.default
group_index_update_: Callable[..., None] = _ops.group_index_update_.default
sample_groups: Callable[..., tuple[Tensor, Tensor, Tensor]] = _ops.sample_groups.default
update_priorities_: Callable[..., None] = _ops.update_priorities_.default
draw_priorities: Callable[..., tuple[Tensor, Tensor]] = _ops.draw_priorities.default
balanced_subset: Callable[..., tuple[Tensor, Tensor]] = _ops.balanced_subset.default
group_advantage: Callable[..., Tensor] = _ops.group_advantage.default
