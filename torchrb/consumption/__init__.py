"""Records that may be drawn a number of times, and no more."""

from torchrb.consumption.counts import Claim as Claim
from torchrb.consumption.counts import Consumption as Consumption
from torchrb.consumption.counts import Exhausted as Exhausted
from torchrb.consumption.counts import checked_limit as checked_limit
from torchrb.consumption.counts import choice_of as choice_of
