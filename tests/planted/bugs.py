"""The bugs that are planted: for each law some, each a small change of the source that breaks it, and the test that
must then fail.

A change names text that stands exactly once in the files it may be in. Where the source has moved on, planting fails
and says so.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """In the package's ``file`` (a pattern) ``old`` becomes ``new``; ``caught_by`` is a test in the law's file."""

    law: int
    says: str
    file: str
    old: str
    new: str
    caught_by: str


_REFERENCE = "ops/reference*.py"

BUGS = [
    Bug(
        1, "a transform runs while the buffer is locked", "buffer/writing.py",
        "        return self._writer.add(self._transform.inv(data))",
        "        with self._storage.lock:\n            return self._writer.add(self._transform.inv(data))",
        "test_no_write_waits_for_a_transform",
    ),
    Bug(
        7, "each write makes a draw of slices look at all records", "trajectories.py",
        "if rows is None or self._stops.shape[0] != capacity:", "if rows is None or capacity:",
        "test_a_draw_reads_the_boundaries_of_what_was_written_since",
    ),
    Bug(
        9, "a transform on the way in receives a copy", "buffer/writing.py",
        "self._writer.append(self._transform.inv(data))",
        "self._writer.append(self._transform.inv(data.clone() if hasattr(data, 'clone') else data))",
        "test_transforms_on_the_way_in_receive_the_very_object_and_what_they_return_is_copied",
    ),
    Bug(
        1, "a structure is learned from a batch that is then refused", "storages/tensor.py",
        "        structure = self.structure or self._learned(batch, device, call)\n",
        "        structure = self.structure or self._learned(batch, device, call)\n"
        "        if self.structure is None:\n"
        "            self._records, self.structure = self._allocate(structure, device), structure\n"
        "            self._objects = [[None] * self.max_size for _ in structure.object_keys]\n",
        "test_a_bad_first_batch_leaves_no_structure",
    ),
    Bug(
        1, "too few records are noticed only while they are written", "storages/tensor.py",
        "if given != slots.shape[0]:", "if given > slots.shape[0]:",
        "test_a_wrong_number_of_records_changes_nothing",
    ),
    Bug(
        1, "slots are looked up before the data is copied", "storages/base.py",
        "            taken = self._take(data, is_single(index), call)\n"
        "            self._put(resolve(index, self.extent, self.device, call).flat, taken, call)\n",
        "            slots = resolve(index, self.extent, self.device, call).flat\n"
        "            self._put(slots, self._take(data, is_single(index), call), call)\n",
        "test_a_record_is_not_written_where_the_buffer_was_emptied_meanwhile",
    ),
    Bug(
        1, "objects of a write that is cut off are forgotten", "storages/staging.py",
        "if position is None or self._position() != position else None", "if position is None else None",
        "test_growing_without_a_bound_loses_nothing",
    ),
    Bug(
        1, "a draw takes its seed before it knows that it can be made", "samplers/prompt_group.py",
        "        groups, per_group = split_batch(",
        "        take_seed(generator, storage)\n        groups, per_group = split_batch(",
        "test_a_draw_that_fails_takes_no_random_number",
    ),
    Bug(
        2, "the storage's lock locks nothing", "storages/base.py",
        "threading.RLock()", "__import__('contextlib').nullcontext()",
        "test_counters_agree_with_the_writers",
    ),
    Bug(
        2, "the generations in a sample are read after the content", "buffer/reading.py",
        "        data = collate(draw.data)\n",
        '        draw.info["index_generation"] = self._storage.generations(draw.info["index"])\n'
        "        data = collate(draw.data)\n",
        "test_writers_updaters_and_readers_on_one_buffer",
    ),
    Bug(
        2, "a draw lets the lock go before its rows are read", "buffer/reading.py",
        "        data, generations = storage.read(slots)\n        info: dict[str, Any] = ",
        "        storage.lock.release()\n        data, generations = storage.read(slots)\n"
        "        storage.lock.acquire()\n        info: dict[str, Any] = ",
        "test_nothing_is_torn_lost_or_mistaken",
    ),
    Bug(
        2, "a record's text is put beside it when the lock is gone", "storages/tensor.py",
        "                staging.written(self._placing(slots.tolist(), rows.objects))\n"
        "            return slots, generations\n\n    def _put(",
        "                staging.noted = None\n"
        "        self._placing(slots.tolist(), rows.objects)()\n        return slots, generations\n\n    def _put(",
        "test_nothing_is_torn_lost_or_mistaken",
    ),
    Bug(
        2, "a patch asks whether its slot is live, and not for its generation", _REFERENCE,
        " & ((words >> SLOT_COUNT_SHIFT) - 1 == generations)", "",
        "test_nothing_is_torn_lost_or_mistaken",
    ),
    Bug(
        2, "an older version takes the place of a newer one", _REFERENCE,
        "accepted = live & ~_is_nan(version) & (newer | _is_nan(stored))", "accepted = live & ~_is_nan(version)",
        "test_nothing_is_torn_lost_or_mistaken",
    ),
    Bug(
        2, "of two patches for one record in a call both are reported as written", _REFERENCE,
        "        status[live & ~wins] = schemas.SUPERSEDED\n", "",
        "test_nothing_is_torn_lost_or_mistaken",
    ),
    Bug(
        2, "a patch is decided before it has the lock", "updates.py",
        "    status = plan.storage.update_if(\n",
        "    plan.storage.lock.release()\n"
        "    there = plan.storage.generations(plan.slots) == plan.generations\n"
        "    plan.storage.lock.acquire()\n"
        "    plan = plan._replace(generations=torch.where(there, plan.storage.generations(plan.slots), -2))\n"
        "    status = plan.storage.update_if(\n",
        "test_nothing_is_torn_lost_or_mistaken",
    ),
    Bug(
        2, "processes do not wait for each other", "storages/process_lock.py",
        "                fcntl.flock(self._fd, fcntl.LOCK_EX)\n", "",
        "test_processes_that_write_patch_and_draw_at_once",
    ),
    Bug(
        2, "what a killed process left half-written counts as a record", "storages/repair.py",
        "    _retire(words, torn, control)\n", "    words[torn] &= ~SLOT_BUSY\n",
        "test_a_process_killed_in_the_middle_of_a_write_loses_only_what_it_was_writing",
    ),
    Bug(
        2, "a query reads what matched without looking whether it is still what was judged", "buffer/querying.py",
        "if storage.journal_position != position:", "if storage.journal_position < 0:",
        "test_a_write_between_the_two_looks_of_a_query_is_noticed",
    ),
    Bug(
        3, "emptying forgets the counts", _REFERENCE,
        "((words[live] >> SLOT_COUNT_SHIFT) + 1) << SLOT_COUNT_SHIFT", "0 * words[live]",
        "test_what_was_emptied_or_written_back_is_not_the_old_record",
    ),
    Bug(
        3, "a batch that wraps gives all its rows of a slot one generation", _REFERENCE,
        "counts = counts_from(words[kept], counters) + 1 + earlier", "counts = counts_from(words[kept], counters) + 1",
        "test_no_handle_is_given_out_twice_in_any_history",
    ),
    Bug(
        3, "a transform gets at the handles of its batch", "buffer/reading.py",
        "        data = transforms.for_reader(self._transform, data)\n",
        "        return transforms.for_reader(self._transform, self._finished(data, info))\n",
        "test_no_transform_changes_what_a_handle_names",
    ),
    Bug(
        3, "writing a whole record at an index leaves its handle good", "storages/tensor.py",
        "args = (records.tables, self.control, self.journal, records.layout, slots, rows.values, True)",
        "args = (records.tables, self.control, self.journal, records.layout, slots, rows.values, False)",
        "test_writing_a_whole_record_retires_the_handle_it_had",
    ),
    Bug(
        3, "a patch is taken by whatever lives in the slot", _REFERENCE,
        " & ((words >> SLOT_COUNT_SHIFT) - 1 == generations)", "",
        "test_of_all_handles_ever_given_out_those_of_living_records_are_live",
    ),
    Bug(
        4, "writes of single fields are not noted in the journal", _REFERENCE,
        "_note(journal, counters, slots[inside])", "_note(journal, counters, slots[inside] if renew else slots[:0])",
        "test_a_draw_sees_groups_and_rewards_changed_in_place",
    ),
    Bug(
        4, "conditional updates are not noted in the journal", _REFERENCE,
        "_note(journal, counters, slots[wins])", "_note(journal, counters, slots[:0])",
        "test_a_draw_sees_groups_and_rewards_changed_in_place",
    ),
    Bug(
        4, "emptying is not noted in the journal", _REFERENCE,
        "_note(journal, counters, live)", "[]",
        "test_what_was_emptied_is_neither_counted_nor_drawn",
    ),
    Bug(
        4, "a sampler keeps the index of the storage it saw first", "samplers/prompt_group.py",
        "index.storage is not storage", "False",
        "test_a_sampler_that_is_moved_to_another_storage_forgets_the_first",
    ),
    Bug(
        4, "a pass without replacement goes on when its records are gone", "samplers/without_replacement.py",
        "current.num_clears != storage.num_clears or ", "",
        "test_a_pass_without_replacement_does_not_outlive_what_it_was_over",
    ),
    Bug(
        4, "each process keeps a journal of its own", "storages/sharing.py",
        "storage.control, storage.journal = self.control, self.journal", "storage.control = self.control",
        "test_a_draw_sees_what_another_process_wrote_and_patched",
    ),
    Bug(
        4, "a write does not move the end of the trajectory in front of it", "trajectories.py",
        "rows = torch.unique(torch.cat([rows, (rows - cells) % capacity]))", "rows = torch.unique(rows)",
        "test_slices_and_queries_are_of_what_is_stored_now",
    ),
    Bug(
        4, "time begins at slot 0, however far the ring has turned", "trajectories.py",
        "storage.cursor // cells if full else 0", "0",
        "test_slices_and_queries_are_of_what_is_stored_now",
    ),
    Bug(
        4, "a pass over trajectories goes on with their old numbers", "samplers/slice.py",
        "if self.bounds is bounds:", "if self.numbers is not None:",
        "test_a_pass_draws_each_trajectory_as_it_is_now",
    ),
    Bug(
        4, "sequences keep the boundaries that they began with", "trajectories.py",
        "if self._known is not None and not self._reader.moved(storage.control):", "if self._known is not None:",
        "test_sequences_are_of_what_is_stored_now",
    ),
    Bug(
        5, "seeds come from the global generator", "samplers/base.py",
        ".random_(generator=generator)", ".random_()",
        "test_a_draw_takes_one_number_from_the_buffers_generator",
    ),
    Bug(
        5, "groups stand in the order of their first slots", _REFERENCE,
        "hashes = rng.mix64(hashes ^ keys[:, word])",
        "hashes = (keys[:, None] == keys[None]).all(2).to(torch.uint8).argmax(1)",
        "test_the_groups_chosen_do_not_depend_on_arrival",
    ),
    Bug(
        5, "the permutation is no longer the one that kernels compute", "ops/rng.py",
        "_ROUNDS = 12", "_ROUNDS = 14",
        "test_draws_are_the_pinned_ones",
    ),
    Bug(
        5, "an early batch is handed over whatever was written meanwhile", "prefetch/*.py",
        "not self.scene.same(scene) or storage.moment() != self.moment:", "not self.scene.same(scene):",
        "test_no_depth_changes_a_sample_or_what_comes_after_it",
    ),
    Bug(
        5, "an early batch is handed over whatever the generator was seeded with", "prefetch/*.py",
        " or not torch.equal(numbers, generator.get_state())", "",
        "test_no_depth_changes_a_sample_or_what_comes_after_it",
    ),
    Bug(
        5, "an early batch is handed over wherever the sampler is by now", "prefetch/*.py",
        "sampler != scene.sampler.moment(storage) or ", "",
        "test_no_depth_changes_a_sample_or_what_comes_after_it",
    ),
    Bug(
        5, "transforms that take random numbers run ahead", "prefetch/*.py",
        "before.same(behind) and not any_on_gpu(data)", "not any_on_gpu(data)",
        "test_transforms_take_the_random_numbers_that_they_take_without",
    ),
    Bug(
        5, "transforms run ahead with parameters of the past", "prefetch/*.py",
        "if self.transforms and not self.modules.same(modules_of(scene.steps)):", "if False:",
        "test_transforms_have_the_parameters_of_their_call",
    ),
    Bug(
        5, "the generator stays where it was when a batch came early", "prefetch/*.py",
        "        generator.set_state(first.behind[1])\n", "",
        "test_a_sample_that_was_drawn_ahead_leaves_everything_as_the_draw_would",
    ),
    Bug(
        5, "a pass stays where it was when a batch came early", "samplers/without_replacement.py",
        "self._passes[storage], self._ran_out = fork._passes[storage], fork._ran_out", "pass",
        "test_a_sample_that_was_drawn_ahead_leaves_everything_as_the_draw_would",
    ),
    Bug(
        5, "a sampler moves on with what is drawn ahead", "samplers/without_replacement.py",
        "fork._passes[storage] = copy.copy(current)", "fork._passes[storage] = current",
        "test_a_sample_that_was_drawn_ahead_leaves_everything_as_the_draw_would",
    ),
    Bug(
        6, "rewards are ranked by a float32 copy", _REFERENCE,
        "    wide = rewards.to(torch.float64)\n", "    wide = rewards.to(torch.float32).to(torch.float64)\n",
        "test_reward_ranks_every_pair_of_values_exactly",
    ),
    Bug(
        6, "integers are ranked as float64", _REFERENCE,
        "return rewards.to(torch.int64)", "return rewards.to(torch.float64).to(torch.int64)",
        "test_reward_ranks_every_pair_of_values_exactly",
    ),
    Bug(
        6, "the group's minimum is not subtracted before squaring", _REFERENCE,
        "return float(value - smallest)", "return float(value)",
        "test_variance_takes_the_best_of_all_subsets",
    ),
    Bug(
        6, "infinite rewards count as numbers in a variance", _REFERENCE,
        "torch.isfinite(reward) if strategy == _VARIANCE else ~reward.isnan()", "~reward.isnan()",
        "test_variance_counts_infinite_rewards_as_nan",
    ),
    Bug(
        7, "each draw builds the group index anew", "groups.py",
        "storage.journal, *column, always)", "storage.journal, *column, True)",
        "test_a_draw_looks_at_the_rows_written_since_the_last_and_at_no_other",
    ),
    Bug(
        7, "a pass without replacement is permuted whole when it begins", "samplers/without_replacement.py",
        "min(max(num, _BLOCK), self.left)", "self.left",
        "test_a_pass_is_computed_as_it_is_drawn",
    ),
    Bug(
        7, "an index that is up to date is brought up to date", "groups.py",
        "if always or numbers[INDEX_POSITION] != self.storage.journal_position:", "if True:",
        "test_what_a_call_does_depends_neither_on_fields_nor_on_rows",
    ),
    Bug(
        7, "what was read is copied once more, field by field", "storages/tensor.py",
        "        return self.structure.build(values,",
        "        return self.structure.build([v.clone() for v in values],",
        "test_what_a_call_does_depends_neither_on_fields_nor_on_rows",
    ),
    Bug(
        7, "each read looks at every record", "storages/tensor.py",
        "        return self.structure.build(values,",
        "        records.tables[0].sum()\n        return self.structure.build(values,",
        "test_the_memory_that_a_call_touches_does_not_grow_with_the_buffer",
    ),
    Bug(
        7, "a draw asks a GPU whether anything is stored", "samplers/base.py",
        "storage.known_nonempty or len(storage)", "len(storage)",
        "test_writing_and_drawing_on_a_gpu_wait_for_nothing",
    ),
    Bug(
        7, "the flags of a draw are read at once", "samplers/prompt_group.py",
        "if flags.is_cuda:", "if flags.is_meta:",
        "test_writing_and_drawing_on_a_gpu_wait_for_nothing",
    ),
    Bug(
        7, "data from the host is copied while the host waits", "storages/structure.py",
        "value = moved(value, device)", "value = value.to(device)",
        "test_data_from_the_host_goes_through_pinned_memory",
    ),
    Bug(
        8, "the switch is made before content is on the disk", "persistence/folder.py",
        "        entry = content.write(fd, tree)\n        os.fsync(fd)\n", "        entry = content.write(fd, tree)\n",
        "test_all_that_was_written_is_on_the_disk_before_the_switch",
    ),
    Bug(
        8, "files of the old dump go before the switch", "persistence/folder.py",
        "        os.replace(folder / aside, manifest)\n",
        "        _remove(folder, [n for n in os.listdir(folder) if _OWN_NAME.fullmatch(n) and n not in new])\n"
        "        os.replace(folder / aside, manifest)\n",
        "test_a_kill_at_any_step_leaves_the_old_dump_or_the_new_one",
    ),
    Bug(
        8, "what an error cut off stays in the directory", "persistence/folder.py",
        "        _remove(folder, new)\n        raise\n", "        raise\n",
        "test_an_error_at_any_step_leaves_the_directory_as_it_was",
    ),
    Bug(
        8, "a dump does not wait for a load", "persistence/folder.py",
        "            fcntl.flock(fd, mode)\n", "            pass\n",
        "test_nobody_sees_a_dump_while_it_is_replaced",
    ),
    Bug(
        8, "checksums of content are not looked at", "persistence/content.py",
        "None if _sum(views) == entry.sums[number] else block[0].offset", "None",
        "test_a_bit_that_changed_in_any_byte_of_any_file_is_an_error_that_names_it",
    ),
    Bug(
        8, "a manifest may name any file", "persistence/folder.py",
        "not isinstance(name, str) or not _OWN_NAME.fullmatch(name)", "not isinstance(name, str)",
        "test_no_name_leads_out_of_the_directory",
    ),
    Bug(
        8, "links are followed", "persistence/folder.py",
        " | os.O_NOFOLLOW", "",
        "test_a_file_that_is_none_is_not_opened",
    ),
    Bug(
        8, "records change before the rest of a dump was validated", "buffer/saving.py",
        "puts = [storage.plan_load(storage_state, call, loaded)]",
        "puts = [storage.plan_load(storage_state, call, loaded)()][:0]",
        "test_what_is_beside_the_records_is_validated_before_they_change",
    ),
    Bug(
        8, "a slot word from a file may say that it is being written", "storages/saving.py",
        "whole = ((words & SLOT_BUSY) == 0) & (counts >= 0)", "whole = (counts >= 0)",
        "test_rows_that_no_storage_saves_are_refused",
    ),
    Bug(
        3, "a load goes on counting where the dump left off", "storages/saving.py",
        "(CONTROL_EPOCH, new_epoch()),", "(CONTROL_EPOCH, 0),",
        "test_no_handle_is_given_out_twice_by_processes_that_go_on_from_one_dump",
    ),
    Bug(
        4, "who reads the journal is not told of a load", "storages/saving.py",
        "int(numbers[CONTROL_JOURNAL]) + journal.shape[0] + 1)", "int(numbers[CONTROL_JOURNAL]))",
        "test_groups_and_rewards_are_those_of_the_loaded_records",
    ),
    Bug(
        9, "a list keeps the caller's tensors", "storages/copies.py",
        "value.detach().to(device=device, copy=True)", "value.detach()",
        "test_a_list_storage_copies_objects_with_all_they_hold",
    ),
    Bug(
        9, "non-tensor fields are handed out as they are kept", "storages/tensor.py",
        "own_copy(column) for column in kept", "column for column in kept",
        "test_non_tensor_fields_are_copied_too",
    ),
    Bug(
        3, "files that are gone on with count on", "storages/memmap.py",
        "control[CONTROL_EPOCH] = new_epoch()", "pass",
        "test_files_that_are_gone_on_with_twice_give_no_handle_twice",
    ),
    Bug(
        8, "a directory of files is anybody's", "storages/scratch.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH",
        "test_two_processes_never_mix_their_records_in_one_directory",
    ),
    Bug(
        8, "files are gone on with as a killed process left them", "storages/memmap.py",
        "        control[CONTROL_LOCK] = 0\n", "        control[CONTROL_LOCK] = self._files.words[0] = 0\n",
        "test_records_that_a_killed_process_had_not_finished_are_dropped",
    ),
    Bug(
        8, "a record may name values that are not written yet", "storages/heap.py",
        "            self._words[self._at] = end\n", "            self._words[self._at] = begin + 1\n",
        "test_another_day_goes_on_with_strings_of_every_kind",
    ),
    Bug(
        8, "a class that a file names is imported", "storages/description.py",
        "found: Any = sys.modules.get(name[0])", "found: Any = __import__(name[0])",
        "test_nothing_is_imported_for_a_file",
    ),
    Bug(
        9, "the batch and the info of one sample share their indices", "buffer/reading.py",
        "{key: _own(value) for key, value in draw.info.items()}", "dict(draw.info)",
        "test_the_entries_of_one_answer_share_nothing",
    ),
    Bug(
        2, "the places in a record are told in the wrong order", "storages/cells.py",
        "return (rows, *reversed(inner))", "return (rows, *inner)",
        "test_draws_of_cells_tell_where_they_are",
    ),
    Bug(
        3, "a write to some cells renews them", "storages/cells.py",
        " and all(map(is_everything, inner, self.cells))", "",
        "test_a_write_to_some_cells_leaves_the_record_and_a_whole_one_does_not",
    ),
    Bug(
        3, "whole records of cells are written as parts", "storages/cells.py",
        "            if whole:\n                self._put(where.flat, taken, call)\n            else:\n"
        "                self._put_fields(where.flat, taken, call)\n",
        "            fields = self._take_cells(data, num_dims(parts), False, call)[1]\n"
        "            self._put_fields(where.flat, fields, call)\n",
        "test_a_write_to_some_cells_leaves_the_record_and_a_whole_one_does_not",
    ),
    Bug(
        3, "a state with records in part is loaded", "storages/tensor_state.py",
        "or not bool((words.view(-1, num) == words[::num, None]).all()):", "or words.numel() == 0:",
        "test_a_state_with_other_cells_is_refused",
    ),
    Bug(
        4, "cells are patched in a record next to theirs", "storages/cells.py",
        "place = place * size + at", "place = place + at",
        "test_a_cell_that_changes_its_group_is_drawn_in_the_new_one",
    ),
    Bug(
        10, "a shape error does not say what it expected", "storages/structure.py",
        "must have shape {[num, *leaf.shape]}, got {[*value.shape]}.", "has a wrong shape.",
        "test_a_bad_write_says_what_was_expected",
    ),
    Bug(
        10, "a mask is taken for the rows 0 and 1", "updates.py",
        "if tensor.dtype == torch.bool:", "if tensor.dtype == torch.complex64:",
        "test_a_bad_conditional_update_says_what_was_expected",
    ),
    Bug(
        10, "a batch size that does not divide is rounded down", "samplers/base.py",
        "if rest or not other:", "if not other:",
        "test_a_bad_draw_says_what_was_expected",
    ),
    Bug(
        1, "a sample that fails has used its records up", "buffer/reading.py",
        "                claim.consumption.give_back(claim)\n", "                pass\n",
        "test_a_sample_that_is_struck_has_used_nothing_up",
    ),
    Bug(
        1, "the best are counted only when nothing strikes", "storages/tensor.py",
        "            staging.note(finish)\n            generations = ops.write_rows_(*args)\n",
        "            generations = ops.write_rows_(*args)\n",
        "test_a_write_of_the_best_that_is_struck_is_whole_or_not_begun",
    ),
    Bug(
        2, "records of one batch are not held against each other", "consumption/counts.py",
        "+ earlier < self.limit)", "< self.limit)",
        "test_no_record_goes_to_more_batches_than_it_may_and_none_is_lost",
    ),
    Bug(
        2, "the ring goes on over records that nobody has drawn", "consumption/counts.py",
        "reused = min(len(self._spent), num) if num <= capacity else 0", "reused = 0",
        "test_no_record_goes_to_more_batches_than_it_may_and_none_is_lost",
    ),
    Bug(
        3, "a count stays with the slot", "consumption/counts.py",
        "return torch.where(counts[:, 0] == generations, counts[:, 1], 0)", "return counts[:, 1].clamp(min=0)",
        "test_a_count_follows_its_record_through_any_history",
    ),
    Bug(
        4, "a group sampler is not told which records are used up", "storages/filtered.py",
        "        control[CONTROL_JOURNAL] = position + num\n", "        control[CONTROL_JOURNAL] = position\n",
        "test_a_sampler_over_what_is_left_draws_what_a_new_one_draws",
    ),
    Bug(
        4, "the worst record is looked up once", "writers/ranking.py",
        "        if not self._reader.moved(storage.control):", "        if self._entries:",
        "test_the_worst_record_now_makes_way",
    ),
    Bug(
        6, "the best are compared as floats", "writers/ranking.py",
        "return _NAN if value != value else (True, value)", "return _NAN if value != value else (True, float(value))",
        "test_the_best_are_kept_by_their_own_values",
    ),
    Bug(
        1, "priorities that come with data are looked at when it is written", "buffer/tensordict.py",
        "        sampler.check(priorities, call)\n", "",
        "test_a_bad_priority_changes_nothing_whichever_way_it_comes",
    ),
    Bug(
        1, "of an update with a bad priority the good ones are set", _REFERENCE,
        "    if not refused.shape[0]:\n", "    slots, wanted = slots[wanted >= 0], wanted[wanted >= 0]\n    if True:\n",
        "test_a_bad_priority_changes_nothing_whichever_way_it_comes",
    ),
    Bug(
        3, "a late update reaches whatever record is there", "buffer/tensordict.py",
        "sampler.reduced(priority, one, call), generation=generation)", "sampler.reduced(priority, one, call))",
        "test_a_late_update_leaves_the_next_record_alone",
    ),
    Bug(
        4, "a new record keeps its predecessor's priority", _REFERENCE,
        "others = noted[seen[noted] != marks[noted]]", "others = noted[(seen[noted] > 0) != (marks[noted] > 0)]",
        "test_a_record_that_is_written_whole_is_another_one",
    ),
    Bug(
        4, "a record that is changed in part counts as a new one", _REFERENCE,
        "others = noted[seen[noted] != marks[noted]]", "others = noted",
        "test_a_record_that_is_changed_in_part_keeps_its_priority",
    ),
    Bug(
        5, "writes that nothing was drawn between count as one", "buffer/priorities.py",
        "                self._sampler.heed(self._drawn_from)\n                return slots, generations\n",
        "                return slots, generations\n",
        "test_each_write_counts_by_itself_whether_or_not_something_is_drawn_between",
    ),
    Bug(
        5, "priorities are weighted by torch's own power", _REFERENCE,
        "safe if exponent == 1.0 else exp2(log2(safe) * exponent)", "safe.float().pow(exponent).double()",
        "test_draws_and_weights_are_the_pinned_ones",
    ),
    Bug(
        7, "every update looks at all rows", "samplers/priorities.py",
        "rebuild = self._weighting is not weighting and self._weighting != weighting", "rebuild = True",
        "test_only_rows_written_since_are_looked_at",
    ),
    Bug(
        4, "a group that has become short is still drawn", "samplers/complete_groups.py",
        "            if complete != was:\n", "            if complete and not was:\n",
        "test_groups_that_are_complete_now_are_drawn_and_no_others",
    ),
]  # fmt: skip
