"""Batches that are drawn before they are asked for, by a thread of their own.

An early answer and nothing else. Behind a call of `sample` a *line* of batches is begun: a copy of the generator and a
fork of the sampler run ahead, and with them a thread draws, reads and transforms what the next calls should get. A call
looks whether its batch is the one that it would draw itself now: the same parts, no write since, the sampler and the
generator where the thread supposed them. Then both are moved on as the draw would have done; otherwise the line is
given up, and the call draws. So the buffer is at every moment as it would be without all this.

What is the user's own, transforms and the merging of records, runs ahead only while that makes no difference: at each
batch that a call draws itself it is seen whether they took random numbers, changed their modules or moved the batch to
a GPU, and then they run at the call.
"""

from torchrb.prefetch.prefetcher import Prefetcher as Prefetcher
from torchrb.prefetch.scene import Draw as Draw
from torchrb.prefetch.scene import Scene as Scene
from torchrb.prefetch.scene import modes_of as modes_of
