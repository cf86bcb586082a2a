"""Where records live."""

from torchrb.storages.adopted import TensorStorage as TensorStorage
from torchrb.storages.base import Storage as Storage
from torchrb.storages.list import ListStorage as ListStorage
from torchrb.storages.memmap import LazyMemmapStorage as LazyMemmapStorage
from torchrb.storages.stack import LazyStackStorage as LazyStackStorage
from torchrb.storages.tensor import LazyTensorStorage as LazyTensorStorage
