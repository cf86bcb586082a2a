"""Where new records go."""

from torchrb.writers.base import Writer as Writer
from torchrb.writers.immutable import ImmutableDatasetWriter as ImmutableDatasetWriter
from torchrb.writers.max_value import TensorDictMaxValueWriter as TensorDictMaxValueWriter
from torchrb.writers.round_robin import RoundRobinWriter as RoundRobinWriter
from torchrb.writers.round_robin import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
