// A record's header: the slot word, `count << 2 | live << 1 | busy`, and the write stamp, `sequence << 12 | patches`.
//
// `count` steps with every whole-record write and every clearing; `count - 1` is the generation. A storage that took up
// a saved state counts in a new epoch: the next write of a record whose count is of another goes on from the epoch's
// first, so that what was counted since the save, and is lost, is never counted again. `busy` is set while
// somebody writes the record. A partial write puts the same word back, so it steps `patches`: without it, a reader
// whose two looks enclose a whole patch would see the same header twice and believe what it copied in between.
// `patches` wraps; a reader is fooled only by a multiple of 4,096 patches of one record within one copy of it.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace torchrb {

constexpr int64_t kBusy = 1;
constexpr int64_t kLive = 2;
constexpr int kCountShift = 2;
constexpr uint64_t kEpochCounts = uint64_t{1} << 48;  // how many counts are an epoch
constexpr int kStampShift = 12;
constexpr int64_t kPatchMask = (int64_t{1} << kStampShift) - 1;

TORCHRB_HOST_DEVICE inline int64_t word_count(int64_t word) { return word >> kCountShift; }
TORCHRB_HOST_DEVICE inline int64_t word_generation(int64_t word) { return (word >> kCountShift) - 1; }
TORCHRB_HOST_DEVICE inline bool word_busy(int64_t word) { return (word & kBusy) != 0; }
TORCHRB_HOST_DEVICE inline bool word_live(int64_t word) { return (word & kLive) != 0; }

// The word after `writes` whole-record writes on top of `word`, in an epoch that begins with the count `epoch`.
TORCHRB_HOST_DEVICE inline int64_t word_renewed(int64_t word, int64_t writes, int64_t epoch) {
  const int64_t count = word_count(word);
  const bool of_epoch = static_cast<uint64_t>(count) - static_cast<uint64_t>(epoch) < kEpochCounts;
  return (((of_epoch ? count : epoch) + writes) << kCountShift) | kLive;
}

TORCHRB_HOST_DEVICE inline int64_t word_cleared(int64_t word) { return (word_count(word) + 1) << kCountShift; }

// Whether a handle of this generation names the record that lives here.
TORCHRB_HOST_DEVICE inline bool word_holds(int64_t word, int64_t generation) {
  return word_live(word) && word_generation(word) == generation;
}

TORCHRB_HOST_DEVICE inline int64_t stamp_of(int64_t sequence) { return sequence << kStampShift; }
TORCHRB_HOST_DEVICE inline int64_t stamp_patched(int64_t stamp) {
  return (stamp & ~kPatchMask) | ((stamp + 1) & kPatchMask);
}

}  // namespace torchrb
