// Memory as the kernels share it: turns at atomics, fences, the arena and its red zones, the sanitizer's clocks.
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

#include "block.h"

namespace simt {
namespace {

// Old versions of the thread sanitizer know 8,128 threads. Beyond these a launch goes on, and some races would be
// missed: threads of later blocks take over the clocks of blocks that have ended, and atomics leave what their thread
// knows now in place of what it knew at its last fence.
constexpr size_t kMostThreadClocks = 6000, kMostCouriers = 2000;
constexpr size_t kTokenBytes = 8, kTokenChunk = 65536;

size_t num_thread_clocks = 0, num_couriers = 0;
std::vector<void*> couriers, idle_couriers;
std::vector<unsigned char*> chunks;  // of tokens; an address is never used twice in a launch
size_t chunk_used = kTokenChunk;

void* new_courier() {
  void* courier = nullptr;
  if (!idle_couriers.empty()) {
    courier = idle_couriers.back();
    idle_couriers.pop_back();
  } else if (num_couriers < kMostCouriers) {
    courier = clocks::create();
    ++num_couriers;
  } else {
    return nullptr;
  }
  couriers.push_back(courier);
  return courier;
}

}  // namespace

// --- the ready queue ------------------------------------------------------------------------------------------------

void Ready::push_front(Thread* thread) {
  kept_ = true;
  if (head_ > 0) {
    threads_[--head_] = thread;
  } else {
    threads_.insert(threads_.begin(), thread);
  }
}

Thread* Ready::pop() {
  if (schedule.order == Order::kRandom && !kept_) {
    std::swap(threads_[head_], threads_[head_ + chance.below(threads_.size() - head_)]);
  }
  kept_ = false;
  Thread* thread = threads_[head_++];
  if (head_ == threads_.size()) {
    threads_.clear();
    head_ = 0;
  }
  return thread;
}

void wake(Block& block, Threads threads) {
  progress();
  const size_t n = threads.size();
  for (size_t i = 0; i < n; ++i) {
    Thread* thread = threads[schedule.order == Order::kBackwards ? n - 1 - i : i];
    thread->state = State::kReady;
    block.ready.push(thread);
  }
}

// --- shared memory --------------------------------------------------------------------------------------------------

unsigned char* shared_arena() { return running->block->arena; }

void carved(unsigned char* piece, size_t bytes, unsigned char* end, const Site& site) {
  const AsHost quiet;
  Block& block = *running->block;
  if (end > block.arena + block.launch->shared) {
    fail("shared memory: the pieces taken come to " + std::to_string(end - block.arena) +
             " bytes, and the launch has " + std::to_string(block.launch->shared),
         site);
  }
  unpoison(piece, bytes);
  unsigned char* const begin = piece + bytes;
  poison(begin, static_cast<size_t>(end - begin));
  if (kAddressSanitizer || kThreadSanitizer) return;
  for (const RedZone& zone : block.zones) {
    if (zone.begin == begin && zone.end == end) return;
  }
  // The arena is carved anew: the zones inside this piece are none any more.
  std::erase_if(block.zones, [&](const RedZone& zone) { return zone.begin < end && piece < zone.end; });
  std::memset(begin, kFill, static_cast<size_t>(end - begin));
  block.zones.push_back({begin, end, site});
}

void check_red_zones(const Block& block) {
  for (const RedZone& zone : block.zones) {
    for (const unsigned char* at = zone.begin; at < zone.end; ++at) {
      if (*at == kFill) continue;
      fail("shared memory: something was written " + std::to_string(at - zone.begin) +
               " bytes past the end of the piece taken here, in block " + std::to_string(block.index),
           zone.site);
    }
  }
}

// --- atomics and fences ---------------------------------------------------------------------------------------------

// A release fence makes what was before it visible with every later atomic write: the courier, who knows no more than
// the last fence did, leaves its clock at the word. A plain atomic leaves nothing, so a missing fence is seen.
void before_atomic(const void* at, bool writes) {
  turn();
  if (!kThreadSanitizer || running == nullptr || !writes || running->snapshot == nullptr) return;
  Thread& thread = *running;
  const AsHost quiet;
  if (thread.courier == nullptr) thread.courier = new_courier();
  clocks::become(thread.courier != nullptr ? thread.courier : thread.fiber.order);
  if (!thread.carried) clocks::acquire(thread.snapshot);
  clocks::release(at);
  thread.carried = true;
}

void after_atomic(const void* at, bool reads, bool changed) {
  if (changed) progress();
  if (!kThreadSanitizer || running == nullptr || !reads) return;
  const AsHost quiet;
  // A word that a thread spins on is noted once; looking far back would cost more than noting another one twice.
  constexpr size_t kLookBack = 64;
  std::vector<Address>& seen = running->seen;
  for (size_t i = seen.size(); i > 0 && i + kLookBack > seen.size(); --i) {
    if (seen[i - 1].at == at) return;
  }
  seen.push_back({at});
}

void fence() {
  turn();
  if (!kThreadSanitizer || running == nullptr) return;
  Thread& thread = *running;
  for (const Address& seen : thread.seen) clocks::acquire(seen.at);
  thread.carried = false;
  {
    const AsHost quiet;
    thread.seen.clear();
    if (thread.snapshot == nullptr) thread.snapshot = new_token();
  }
  clocks::release(thread.snapshot);
}

// --- clocks ---------------------------------------------------------------------------------------------------------

// A clock is dear (200 us), so that threads and couriers keep theirs from launch to launch.
bool more_clocks() { return !kThreadSanitizer || num_thread_clocks < kMostThreadClocks; }

void* new_clock() {
  if (!kThreadSanitizer) return nullptr;
  if (!more_clocks()) {
    fail("too many CUDA threads at once under the thread sanitizer: at most " + std::to_string(kMostThreadClocks),
         Site::current());
  }
  ++num_thread_clocks;
  return clocks::create();
}

void free_clock(void* clock) {
  if (clock == nullptr) return;
  clocks::destroy(clock);
  --num_thread_clocks;
}

void* new_token() {
  if (!kThreadSanitizer) return nullptr;
  if (chunk_used + kTokenBytes > kTokenChunk) {
    void* const self = clocks::current();
    clocks::become(Fiber::host().order);
    void* mapped = mmap(nullptr, kTokenChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("simt: no memory for the thread sanitizer's tokens.");
    chunks.push_back(static_cast<unsigned char*>(mapped));
    clocks::become(self);
    chunk_used = 0;
  }
  chunk_used += kTokenBytes;
  return chunks.back() + chunk_used - kTokenBytes;
}

void end_of_launch() {
  idle_couriers.insert(idle_couriers.end(), couriers.begin(), couriers.end());
  couriers.clear();
  for (unsigned char* chunk : chunks) munmap(chunk, kTokenChunk);
  chunks.clear();
  chunk_used = kTokenChunk;
}

void order_all(Threads threads, const void* token) {
  if (!kThreadSanitizer) return;
  for (const Thread* thread : threads) {
    clocks::become(thread->fiber.order);
    clocks::release(token);
  }
  for (const Thread* thread : threads) {
    clocks::become(thread->fiber.order);
    clocks::acquire(token);
  }
  clocks::become(Fiber::host().order);
}

}  // namespace simt
