// The door between what a kernel sees (simt.h and the headers it includes, compiled with the kernel) and the scheduler
// (runtime.cpp, compiled apart and never instrumented by a sanitizer).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>

#include "vector_types.h"

struct CUstream_st;

namespace simt {

using Site = std::source_location;  // where in the kernel; a default argument, so that it is the caller's line

inline constexpr int kWarp = 32;

// What the running CUDA thread knows of itself.
struct View {
  uint3 thread{}, block{};
  dim3 block_dim, grid_dim;
  unsigned rank = 0;  // in its block
};
extern View now;  // a copy: static memory, of which the thread sanitizer knows no owner

// How threads and blocks take turns. Everything random comes from `seed`, so that a run can be repeated.
enum class Order : int { kForwards = 0, kBackwards = 1, kRandom = 2 };
struct Schedule {
  Order order = Order::kForwards;
  uint64_t seed = 0;
  unsigned resident = 1;  // blocks that run at once
  bool preempt = false;   // whether a thread may lose its turn to others of its block at atomics and fences
};
void set_schedule(const Schedule& schedule);

// A kernel with its arguments, and the shape of its launch.
struct Launch {
  unsigned grid = 0, block = 0;
  size_t shared = 0;
  CUstream_st* stream = nullptr;

  virtual ~Launch() = default;
  virtual void thread() const = 0;  // runs the kernel as the current thread
};
void submit(std::unique_ptr<Launch> launch);

// What `body` launches runs at its end: in order on one stream, interleaved across streams (with `resident` blocks
// each).
void begin_together();
void end_together(bool run_them);
template <typename Body>
void together(const Body& body) {
  begin_together();
  try {
    body();
  } catch (...) {
    end_together(false);
    throw;
  }
  end_together(true);
}

// Says what is wrong and ends the launch, which throws it as a std::runtime_error.
[[noreturn]] void fail(const std::string& what, const Site& site);

// --- the block ------------------------------------------------------------------------------------------------------

enum class BlockOp { kSync, kCount, kAnd, kOr };
int block_barrier(BlockOp op, bool predicate, const Site& site);

unsigned char* shared_arena();
// Notes that a thread has carved `bytes` at `piece`, followed by a red zone that ends at `end`.
void carved(unsigned char* piece, size_t bytes, unsigned char* end, const Site& site);

// --- the warp -------------------------------------------------------------------------------------------------------

enum class WarpOp {
  kSync,
  kShuffle,
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kAny,
  kAll,
  kMatchAny,
  kMatchAll,
  kReduceAdd,
  kReduceMin,
  kReduceMax,
  kReduceAnd,
  kReduceOr,
  kReduceXor,
};
// Posts a lane's value and sleeps until all lanes of the mask have; `source` is the lane that a shuffle reads.
uint64_t warp_collective(WarpOp op, unsigned mask, uint64_t value, int source, const Site& site);
inline int lane() { return static_cast<int>(now.rank % kWarp); }

// --- memory order ---------------------------------------------------------------------------------------------------

// Around each atomic access; another thread may run before it.
void before_atomic(const void* at, bool writes);
void after_atomic(const void* at, bool reads, bool changed);
void fence();
void sleep_a_moment(const Site& site);
void turn();  // another thread may run here

}  // namespace simt
