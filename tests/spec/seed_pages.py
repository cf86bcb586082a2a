"""The public API as the four reference pages have it: names, parameters in order, kinds and defaults. Facts, as data.

A signature is written as the parameters of a lambda.
"""

from __future__ import annotations

PROPERTY = "property"

# Class: its constructor and its members.
MEMBERS: dict[str, dict[str, str]] = {
    "RoundRobinWriter": {
        "__init__": "compilable=False, *, track_generations=False",
        "add": "data",
        "extend": "data",
        "generations_of": "index",
        "tracks_generations": PROPERTY,
        "write_at": "index, data",
    },
    "TensorDictRoundRobinWriter": {
        "__init__": "compilable=False, *, track_generations=False",
    },
    "PromptGroupSampler": {
        "__init__": (
            "*, num_groups=None, samples_per_group=None, group_key='query', strategy='random',"
            " reward_key=('next', 'reward'), cache_groups=True"
        ),
    },
    "LazyMemmapStorage": {
        "__init__": (
            "max_size, *, scratch_dir=None, device='cpu', ndim=1, existsok=False, compilable=False,"
            " shared_init=False, auto_cleanup=None"
        ),
        "cleanup": "",
    },
    "LazyStackStorage": {
        "__init__": "max_size=None, *, compilable=False, stack_dim=0, device=None",
    },
    "MCAdvantageSelector": {
        "__init__": "strategy='balanced', *, max_combinations=100_000, in_keys=None",
        "select": "candidates, *, group_size, keep_return_bounds=None",
    },
    "ReplayBuffer": {
        "__init__": (
            "*, storage=None, sampler=None, sample_unit=None, writer=None, collate_fn=None, pin_memory=False,"
            " prefetch=None, transform=None, transform_factory=None, batch_size=None, dim_extend=None, generator=None,"
            " consume_after_n_samples=None, shared=False, compilable=False, delayed_init=None, use_ray_service=False,"
            " service_backend=None, service_backend_options=None, transport='auto', transport_options=None"
        ),
        "add": "data",
        "append_transform": "transform, *, invert=False",
        "as_remote": "remote_config=None",
        "batch_size": PROPERTY,
        "client": "",
        "dump": "*args, **kwargs",
        "dumps": "path",
        "empty": "empty_write_count=True",
        "extend": "data, *, update_priority=None",
        "initialized": PROPERTY,
        "insert_transform": "index, transform, *, invert=False",
        "is_alive": PROPERTY,
        "load": "*args, **kwargs",
        "loads": "path",
        "next": "",
        "query": "predicate=None, *, trajectory_key=None",
        "read_all_in_order": "end=None",
        "register_load_hook": "hook",
        "register_save_hook": "hook",
        "sample": "batch_size=None, return_info=False",
        "save": "*args, **kwargs",
        "sampler": PROPERTY,
        "service_backend": PROPERTY,
        "set_": "key, value",
        "set_at_": "key, value, index",
        "set_sampler": "sampler",
        "set_storage": "storage, collate_fn=None",
        "set_writer": "writer",
        "shutdown": "timeout=None",
        "start": "",
        "stats": "",
        "storage": PROPERTY,
        "transform": PROPERTY,
        "update_": "input_dict_or_td, clone=False, *, keys_to_update=None",
        "update_if_present": "*, index, generation, patch, version_key=None, version=None, require_newer=False",
        "write_all": "data, end=None",
        "write_count": PROPERTY,
        "writer": PROPERTY,
        "__getitem__": "index",
        "__setitem__": "index, data",
        "__len__": "",
        "__iter__": "",
    },
}

# Attributes of what `update_if_present` returns, and the entries of `stats`.
RESULT = ("updated", "updated_count", "stale_count", "version_rejected", "version_rejected_count")
STATS = {
    "size": int,
    "write_count": int,
    "prefetch_queue_size": int,
    "initialized": bool,
    "capacity": int,
    "utilization": float,
}

# Names that the examples import.
NAMES = (
    *MEMBERS,
    "LazyTensorStorage",
    "ListStorage",
    "PrioritizedSampler",
    "RandomSampler",
    "TensorDictReplayBuffer",
    "TensorStorage",
    "ImmutableDatasetWriter",
    "SampleUnit",
    "SliceSampler",
    "Trajectory",
    "TrajectoryPredicate",
    "Transition",
)
