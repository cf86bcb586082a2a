"""Where records live."""

from torchrb.storages.base import Storage as Storage
from torchrb.storages.list import ListStorage as ListStorage
from torchrb.storages.stack import LazyStackStorage as LazyStackStorage
from torchrb.storages.tensor import LazyTensorStorage as LazyTensorStorage
from torchrb.storages.tensor import TensorStorage as TensorStorage
