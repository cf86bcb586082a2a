"""A replay buffer that lives where the learner lives: groups of rollouts, drawn and patched on the device.

Buffers: `ReplayBuffer`, `TensorDictReplayBuffer`, `PrioritizedReplayBuffer`, `TensorDictPrioritizedReplayBuffer`.
Storages: `LazyTensorStorage`, `TensorStorage`, `ListStorage`, `LazyStackStorage`. Samplers: `RandomSampler`,
`SamplerWithoutReplacement`, `PrioritizedSampler`, `PromptGroupSampler`, `SliceSampler`,
`SliceSamplerWithoutReplacement`. Writers: `RoundRobinWriter`, `TensorDictRoundRobinWriter`, `TensorDictMaxValueWriter`,
`ImmutableDatasetWriter`. Transforms: `Compose`. Sample units: `Transition`, `Sequence`. Queries: `traj`, `Trajectory`.
Groups to gradients: `MCAdvantageSelector`, `group_advantages`. `backend_of` tells whether compiled kernels or plain
torch serve a device.
"""

from torchrb.advantages import group_advantages as group_advantages
from torchrb.buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from torchrb.buffer import ReplayBuffer as ReplayBuffer
from torchrb.buffer import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
from torchrb.buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
from torchrb.ops import backend_of as backend_of
from torchrb.query import Trajectory as Trajectory
from torchrb.query import TrajectoryPredicate as TrajectoryPredicate
from torchrb.query import filter_trajectories as filter_trajectories
from torchrb.query import iter_trajectories as iter_trajectories
from torchrb.query import traj as traj
from torchrb.sample_unit import SampleUnit as SampleUnit
from torchrb.sample_unit import Sequence as Sequence
from torchrb.sample_unit import Transition as Transition
from torchrb.samplers import PrioritizedSampler as PrioritizedSampler
from torchrb.samplers import PromptGroupSampler as PromptGroupSampler
from torchrb.samplers import RandomSampler as RandomSampler
from torchrb.samplers import Sampler as Sampler
from torchrb.samplers import SamplerWithoutReplacement as SamplerWithoutReplacement
from torchrb.samplers import SliceSampler as SliceSampler
from torchrb.samplers import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
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
    "SampleUnit",
    "Sampler",
    "SamplerWithoutReplacement",
    "SliceSampler",
    "SliceSamplerWithoutReplacement",
    "Sequence",
    "Storage",
    "TensorDictMaxValueWriter",
    "TensorDictPrioritizedReplayBuffer",
    "TensorDictReplayBuffer",
    "TensorDictRoundRobinWriter",
    "TensorStorage",
    "Trajectory",
    "TrajectoryPredicate",
    "Transition",
    "Writer",
    "backend_of",
    "filter_trajectories",
    "group_advantages",
    "iter_trajectories",
    "traj",
]
