from torchrb.selection.selectors import MCAdvantageSelector as MCAdvantageSelector
from torchrb.selection.strategies import Strategy as Strategy
