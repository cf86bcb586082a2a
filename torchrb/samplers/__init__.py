"""Which records are drawn."""

from torchrb.samplers.base import Sampler as Sampler
from torchrb.samplers.prioritized import PrioritizedSampler as PrioritizedSampler
from torchrb.samplers.prompt_group import PromptGroupSampler as PromptGroupSampler
from torchrb.samplers.random import RandomSampler as RandomSampler
from torchrb.samplers.slice import SliceSampler as SliceSampler
from torchrb.samplers.slice import SliceSamplerWithoutReplacement as SliceSamplerWithoutReplacement
from torchrb.samplers.without_replacement import SamplerWithoutReplacement as SamplerWithoutReplacement
