// Where threads of a block meet: barriers, and the collectives of a warp. The last to arrive checks that all agree.
#include <cstdio>
#include <cstring>

#include "block.h"

namespace simt {
namespace {

const char* const kBlockNames[] = {"__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or"};
const char* const kWarpNames[] = {"__syncwarp",        "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",
                                  "__shfl_xor_sync",   "__ballot_sync",     "__any_sync",        "__all_sync",
                                  "__match_any_sync",  "__match_all_sync",  "__reduce_add_sync", "__reduce_min_sync",
                                  "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync"};

std::string place(const Site& site) { return std::string(site.file_name()) + ":" + std::to_string(site.line()); }

bool same_line(const Site& a, const Site& b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string hex(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08x", mask);
  return text;
}

std::string waits_at(const Thread& thread) {
  if (thread.state == State::kAtBarrier) {
    return std::string(kBlockNames[static_cast<int>(thread.block_op)]) + " (" + place(thread.site) + ")";
  }
  return std::string(kWarpNames[static_cast<int>(thread.warp_op)]) + " of lanes " + hex(thread.mask) + " (" +
         place(thread.site) + ")";
}

std::string named(const Thread& thread) { return "thread " + std::to_string(thread.view.rank); }

void release_barrier(Block& block) {
  std::vector<Thread*> threads;
  int count = 0;
  for (Thread* thread : block.threads) {
    if (thread->state != State::kAtBarrier) continue;
    count += thread->value != 0;
    threads.push_back(thread);
  }
  const int num = static_cast<int>(threads.size());
  for (Thread* thread : threads) {
    const BlockOp op = thread->block_op;
    thread->answer = static_cast<uint64_t>(op == BlockOp::kCount ? count
                                           : op == BlockOp::kAnd ? count == num
                                                                 : count != 0);
  }
  block.at_barrier = 0;
  order_all(threads, block.token);
  wake(block, threads);
}

uint64_t combine(WarpOp op, uint64_t a, uint64_t b) {
  const auto x = static_cast<int64_t>(a), y = static_cast<int64_t>(b);
  switch (op) {
    case WarpOp::kReduceAdd:
      return a + b;
    case WarpOp::kReduceMin:
      return static_cast<uint64_t>(x < y ? x : y);
    case WarpOp::kReduceMax:
      return static_cast<uint64_t>(x < y ? y : x);
    case WarpOp::kReduceAnd:
      return a & b;
    case WarpOp::kReduceOr:
      return a | b;
    default:
      return a ^ b;
  }
}

// Everybody named has come: the answer of each.
void answer(const Block& block, Threads lanes) {
  const Thread& first = *lanes[0];
  const unsigned base = first.view.rank / kWarp * kWarp;
  unsigned votes = 0, present = 0;
  uint64_t reduced = first.value;
  bool all_same = true;
  for (const Thread* lane : lanes) {
    present |= 1u << lane->lane();
    if (lane->value != 0) votes |= 1u << lane->lane();
    if (lane != lanes[0]) reduced = combine(first.warp_op, reduced, lane->value);
    all_same = all_same && lane->value == first.value;
  }
  for (Thread* lane : lanes) {
    switch (first.warp_op) {
      case WarpOp::kSync:
        break;
      case WarpOp::kShuffle:
      case WarpOp::kShuffleUp:
      case WarpOp::kShuffleDown:
      case WarpOp::kShuffleXor:
        if ((present >> lane->source & 1u) == 0) {
          fail(std::string(kWarpNames[static_cast<int>(first.warp_op)]) + ": lane " + std::to_string(lane->lane()) +
                   " reads lane " + std::to_string(lane->source) + ", which is not among the lanes " + hex(lane->mask) +
                   " or has left the kernel",
               lane->site);
        }
        lane->answer = block.threads[base + static_cast<unsigned>(lane->source)]->value;
        break;
      case WarpOp::kBallot:
        lane->answer = votes;
        break;
      case WarpOp::kAny:
        lane->answer = votes != 0;
        break;
      case WarpOp::kAll:
        lane->answer = votes == present;
        break;
      case WarpOp::kMatchAny:
        lane->answer = 0;
        for (const Thread* other : lanes) lane->answer |= uint64_t{other->value == lane->value} << other->lane();
        break;
      case WarpOp::kMatchAll:
        lane->answer = all_same ? present : 0;
        break;
      default:
        lane->answer = reduced;
    }
  }
}

const void* token_of(Block& block, unsigned warp, unsigned mask) {
  for (const WarpToken& known : block.warp_tokens) {
    if (known.warp == warp && known.mask == mask) return known.token;
  }
  block.warp_tokens.push_back({warp, mask, new_token()});
  return block.warp_tokens.back().token;
}

// Whether all lanes that `mask` names wait for the same; then they get their answer. Lanes that have left the kernel,
// or that the block does not have, are not waited for.
void meet_in_warp(Block& block, unsigned warp, unsigned mask) {
  Thread* named_lanes[kWarp];
  size_t num = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const unsigned rank = warp * kWarp + lane;
    if ((mask >> lane & 1u) == 0 || rank >= block.threads.size()) continue;
    Thread* thread = block.threads[rank];
    if (thread->state == State::kGone) continue;
    if (thread->state != State::kAtWarp) return;
    named_lanes[num++] = thread;
  }
  const Threads lanes(named_lanes, num);
  if (lanes.empty()) return;
  const Thread& first = *lanes[0];
  for (const Thread* lane : lanes) {
    if (lane->mask == first.mask && lane->warp_op == first.warp_op) continue;
    fail("lanes of a warp disagree: " + named(first) + " waits at " + waits_at(first) + ", " + named(*lane) + " at " +
             waits_at(*lane),
         first.site);
  }
  answer(block, lanes);
  if (first.warp_op == WarpOp::kSync) order_all(lanes, token_of(block, warp, mask));
  wake(block, lanes);
}

}  // namespace

int block_barrier(BlockOp op, bool predicate, const Site& site) {
  const AsHost quiet;
  Thread& thread = *running;
  Block& block = *thread.block;
  if (block.at_barrier == 0) block.first_at_barrier = &thread;
  const Thread& first = *block.first_at_barrier;
  if (block.at_barrier != 0 && (first.block_op != op || !same_line(first.site, site))) {
    fail("a divergent barrier: " + named(first) + " waits at " + waits_at(first) + ", " + named(thread) + " comes to " +
             kBlockNames[static_cast<int>(op)],
         site);
  }
  thread.state = State::kAtBarrier;
  thread.block_op = op;
  thread.value = predicate;
  thread.site = site;
  if (++block.at_barrier == block.alive) release_barrier(block);
  Fiber::switch_to(Fiber::host());
  return static_cast<int>(thread.answer);
}

uint64_t warp_collective(WarpOp op, unsigned mask, uint64_t value, int source, const Site& site) {
  const AsHost quiet;
  Thread& thread = *running;
  thread.warp_op = op;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.site = site;
  if ((mask >> thread.lane() & 1u) == 0) {
    fail(std::string(kWarpNames[static_cast<int>(op)]) + ": lane " + std::to_string(thread.lane()) +
             " calls it with lanes " + hex(mask) + ", and is not one of them",
         site);
  }
  thread.state = State::kAtWarp;
  meet_in_warp(*thread.block, thread.view.rank / kWarp, mask);
  Fiber::switch_to(Fiber::host());
  return thread.answer;
}

void thread_left(Block& block, const Thread& thread) {
  if (block.at_barrier != 0 && block.at_barrier == block.alive) release_barrier(block);
  const unsigned warp = thread.view.rank / kWarp;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    const unsigned rank = warp * kWarp + lane;
    if (rank >= block.threads.size()) break;
    const Thread& waiting = *block.threads[rank];
    if (waiting.state == State::kAtWarp && (waiting.mask >> thread.lane() & 1u) != 0) {
      meet_in_warp(block, warp, waiting.mask);
    }
  }
}

std::string describe_deadlock(const Block& block) {
  struct Group {
    std::string where;
    unsigned first, num;
  };
  std::vector<Group> groups;
  for (const Thread* thread : block.threads) {
    if (thread->state == State::kGone) continue;
    const std::string where = waits_at(*thread);
    Group* known = nullptr;
    for (Group& group : groups) known = group.where == where ? &group : known;
    if (known != nullptr) {
      ++known->num;
    } else {
      groups.push_back({where, thread->view.rank, 1});
    }
  }
  std::string text = "simt: deadlock in block " + std::to_string(block.index) + ", where nobody can go on:";
  for (const Group& group : groups) {
    text += "\n  " + std::to_string(group.num) + " waiting at " + group.where + ", the first is thread " +
            std::to_string(group.first);
  }
  return text + "\n  " + std::to_string(block.threads.size() - block.alive) + " have left the kernel";
}

}  // namespace simt
