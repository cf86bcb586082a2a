"""A replay buffer that lives where the learner lives: groups of rollouts, drawn and patched on the device.

Buffers: `ReplayBuffer`, `TensorDictReplayBuffer`, `PrioritizedReplayBuffer`, `TensorDictPrioritizedReplayBuffer`.
Storages: `LazyTensorStorage`, `TensorStorage`, `ListStorage`, `LazyStackStorage`. Samplers: `RandomSampler`,
`SamplerWithoutReplacement`, `PrioritizedSampler`, `PromptGroupSampler`. Writers: `RoundRobinWriter`,
`TensorDictRoundRobinWriter`, `TensorDictMaxValueWriter`, `ImmutableDatasetWriter`. Transforms: `Compose`. Groups to
gradients: `MCAdvantageSelector`, `group_advantages`. `backend_of` tells whether compiled kernels or plain torch serve a
device.
"""

from torchrb.advantages import group_advantages as group_advantages
from torchrb.buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from torchrb.buffer import ReplayBuffer as ReplayBuffer
from torchrb.buffer import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
from torchrb.buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
from torchrb.ops import backend_of as backend_of
from torchrb.samplers import PrioritizedSampler as PrioritizedSampler
from torchrb.samplers import PromptGroupSampler as PromptGroupSampler
from torchrb.samplers import RandomSampler as RandomSampler
from torchrb.samplers import Sampler as Sampler
from torchrb.samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
from torchrb.selection import MCAdvantageSelector as MCAdvantageSelector
from torchrb.storages import LazyMemmapStorage as LazyMemmapStorage
from torchrb.storages import LazyStackStorage as LazyStackStorage
from torchrb.storages import LazyTensorStorage as LazyTensorStorage
from torchrb.storages import ListStorage as ListStorage
from torchrb.storages import Storage as Storage
from torchrb.storages import TensorStorage as TensorStorage
from torchrb.transforms import Compose as Compose
from torchrb.updates import ConditionalUpdateResult as ConditionalUpdateResult
from torchrb.writers import ImmutableDatasetWriter as ImmutableDatasetWriter
from torchrb.writers import RoundRobinWriter as RoundRobinWriter
from torchrb.writers import TensorDictMaxValueWriter as TensorDictMaxValueWriter
from torchrb.writers import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
from torchrb.writers import Writer as Writer

__version__ = "0.1.0"

__all__ = [
    "Compose",
    "ConditionalUpdateResult",
    "ImmutableDatasetWriter",
    "LazyMemmapStorage",
    "LazyStackStorage",
    "LazyTensorStorage",
    "ListStorage",
    "MCAdvantageSelector",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "PromptGroupSampler",
    "RandomSampler",
    "ReplayBuffer",
    "RoundRobinWriter",
    "Sampler",
    "SamplerWithoutReplacement",
    "Storage",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "Writer",
    "backend_of",
    "group_advantages",
]
