// What the runtime's own files share: threads, blocks, chance, and the clocks of the thread sanitizer.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "fiber.h"
#include "runtime.h"
#include "sanitizers.h"

namespace simt {

inline constexpr size_t kPieceAlignment = 16;
inline constexpr unsigned char kFill = 0xff;  // shared memory before anybody has written it

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t end) { return next() % end; }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

enum class State { kReady, kAtBarrier, kAtWarp, kGone };

struct Address {
  const void* at;
};

struct Block;
struct Thread;
using Threads = std::span<Thread* const>;

struct Thread {
  View view;
  Fiber fiber;
  Block* block = nullptr;
  State state = State::kReady;
  // What it waits for, and the answer.
  BlockOp block_op{};
  WarpOp warp_op{};
  unsigned mask = 0;
  uint64_t value = 0, answer = 0;
  int source = 0;
  Site site;
  // Fences, for the thread sanitizer: a token of what this thread knew at its last fence, a clock that has learned that
  // and no more, and the words that the thread has looked at since.
  void* snapshot = nullptr;
  bool carried = false;  // whether the courier has learned the snapshot
  void* courier = nullptr;
  std::vector<Address> seen;

  Thread() = default;
  Thread(const Thread&) = delete;
  ~Thread();
  int lane() const { return static_cast<int>(view.rank % kWarp); }
};

// Threads that can run, in the order that the schedule says.
class Ready {
 public:
  bool empty() const { return head_ == threads_.size(); }
  void push(Thread* thread) { threads_.push_back(thread); }
  void push_front(Thread* thread);
  Thread* pop();

 private:
  std::vector<Thread*> threads_;
  size_t head_ = 0;
  bool kept_ = false;  // whether the first one goes on whatever the order
};

struct RedZone {
  unsigned char *begin, *end;
  Site site;
};

// A token of lanes that met before: they know already what it holds, so it can be theirs again.
struct WarpToken {
  unsigned warp, mask;
  void* token;
};

struct Block {
  const Launch* launch = nullptr;
  unsigned index = 0;
  void *stream = nullptr, *work = nullptr;
  void* done = nullptr;  // a token: what its threads did, for whatever comes after the launch
  std::vector<Thread*> threads;
  Ready ready;
  unsigned alive = 0, at_barrier = 0;
  const Thread* first_at_barrier = nullptr;
  unsigned char* arena = nullptr;
  size_t arena_bytes = 0;
  std::vector<RedZone> zones;
  void* token = nullptr;  // of all its threads
  std::vector<WarpToken> warp_tokens;
};

extern Thread* running;
extern Schedule schedule;
extern Random chance;

void progress();  // something happened that others may wait for
void give_up_turn(bool to_the_end);
void wake(Block& block, Threads threads);
void thread_left(Block& block, const Thread& thread);
void check_red_zones(const Block& block);
std::string describe_deadlock(const Block& block);

// --- the thread sanitizer's clocks ----------------------------------------------------------------------------------

bool more_clocks();
void* new_clock();
void free_clock(void* clock);
void* new_token();
void end_of_launch();  // tokens are forgotten, couriers can serve others
// What each of these threads did is before what all of them do next.
void order_all(Threads threads, const void* token);

// The runtime's own memory is touched by no thread in particular.
class AsHost {
 public:
  AsHost() { clocks::become(Fiber::host().order); }
  ~AsHost() {
    if (running != nullptr) clocks::become(running->fiber.order);
  }
  AsHost(const AsHost&) = delete;
  AsHost& operator=(const AsHost&) = delete;
};

}  // namespace simt
