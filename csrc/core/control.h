// The numbers that the ops share with torchrb/ops/schemas.py, which says what they mean.
#pragma once

#include <cstdint>

namespace torchrb {

// Places in `control`. The lock is 0 whenever no op is running: it guards the others for the moment it takes to move
// them.
enum : int {
  kControlCursor,
  kControlLength,
  kControlWrites,
  kControlJournal,
  kControlStamp,
  kControlLock,
  kControlClears,
  kControlEpoch,
};
constexpr int64_t kControlSize = 8;

// Places in the state of a group index.
enum : int { kIndexPosition, kIndexGroups, kIndexSingletons, kIndexOutcast, kIndexVisited };
constexpr int64_t kIndexStateSize = 8;

// Places in the state of priorities.
enum : int { kPriorityPosition, kPriorityRefused, kPriorityDrawable, kPriorityVisited, kPrioritySet };
constexpr int64_t kPriorityStateSize = 8;

constexpr int64_t kHeaderBytes = 16;  // slot word, write stamp
constexpr int64_t kStampOffset = 8;

enum : int64_t { kRandom, kRecency, kReward, kVariance, kNumStrategies };
enum : uint8_t { kUpdated, kStale, kVersionRejected, kSuperseded };
enum : int64_t { kFewGroups = 1, kShortGroup = 2, kNanDrawn = 4, kNanKey = 8, kNoGroup = 16 };

}  // namespace torchrb
