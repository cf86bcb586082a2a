"""Storage, writer and sampler wired together, in order, under the storage's lock. Nothing else."""

from torchrb.buffer.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from torchrb.buffer.prioritized import TensorDictPrioritizedReplayBuffer as TensorDictPrioritizedReplayBuffer
from torchrb.buffer.replay_buffer import ReplayBuffer as ReplayBuffer
from torchrb.buffer.tensordict import TensorDictReplayBuffer as TensorDictReplayBuffer
