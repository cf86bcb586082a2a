// The scheduler: which block, which thread, and what a launch comes to. One OS thread runs it all, so that a run can be
// repeated from its seed.
#include "block.h"
#include "sanitizers.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace simt {

View now;
Thread* running = nullptr;
Schedule schedule;
Random chance(0);

namespace {

// A thread that waits in __nanosleep for something that never comes is found by counting: so many naps, and in all that
// time nobody has changed a word, met a barrier or left.
constexpr uint64_t kNaps = 20000, kNapsPerThread = 200;

// One launch on its way.
struct Work {
  std::unique_ptr<Launch> launch;
  std::vector<unsigned> sequence;  // of its blocks, where that is not ascending
  unsigned started = 0, finished = 0;
  void *before = nullptr, *done = nullptr;  // tokens: what its threads know from the start, and what they did
};

struct Stream {
  CUstream_st* id;
  std::vector<std::unique_ptr<Work>> queue;
  size_t at = 0;
  unsigned resident = 0;
};

std::vector<std::unique_ptr<Stream>> streams;
std::vector<Block*> residents;
std::vector<std::unique_ptr<Thread>> idle;
std::vector<std::unique_ptr<Thread>> done_for_now;  // not in this launch again, so that no block orders another
Block* holder = nullptr;                            // of the baton
bool baton_passed = false;
bool collecting = false;
bool failed = false;
std::string failure;
uint64_t naps = 0;

void entry() {
  Fiber::arrived();
  try {
    running->block->launch->thread();
  } catch (...) {
    fail("the kernel threw an exception", Site::current());
  }
  running->state = State::kGone;
  clocks::release(running->block->done);
  Fiber::switch_to(Fiber::host(), true);
  __builtin_unreachable();
}

unsigned char* map_arena(size_t bytes) {
  if (!kThreadSanitizer) return static_cast<unsigned char*>(std::aligned_alloc(kPieceAlignment, bytes));
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("simt: no memory for a block's shared memory.");
  return static_cast<unsigned char*>(mapped);
}

void unmap_arena(unsigned char* arena, size_t bytes) {
  if (kThreadSanitizer) {
    munmap(arena, bytes);
  } else {
    unpoison(arena, bytes);
    std::free(arena);
  }
}

unsigned block_in_sequence(Work& work, unsigned place) {
  constexpr unsigned kMostShuffled = 1 << 16;
  const unsigned grid = work.launch->grid;
  if (schedule.order == Order::kBackwards) return grid - 1 - place;
  if (schedule.order == Order::kForwards || grid > kMostShuffled) return place;
  if (work.sequence.empty()) {
    for (unsigned i = 0; i < grid; ++i) work.sequence.push_back(i);
    for (unsigned i = grid - 1; i > 0; --i) std::swap(work.sequence[i], work.sequence[chance.below(i + 1)]);
  }
  return work.sequence[place];
}

Thread* fresh_thread() {
  auto& from = idle.empty() && !more_clocks() ? done_for_now : idle;
  if (from.empty()) return new Thread;
  Thread* thread = from.back().release();
  from.pop_back();
  return thread;
}

// The threads' clocks start where the work may: after what came before it on its stream, and after one of them, the
// first, has laid out their shared memory. Blocks stay without order among each other.
void lay_out(Block& block, const Work& work) {
  for (Thread* thread : block.threads) {
    clocks::become(thread->fiber.order);
    clocks::acquire(work.before);
  }
  clocks::become(block.threads[0]->fiber.order);
  const size_t bytes = (work.launch->shared + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  block.arena_bytes = bytes + kPieceAlignment;
  block.arena = map_arena(block.arena_bytes);
  std::memset(block.arena, kFill, block.arena_bytes);
  poison(block.arena, block.arena_bytes);
  clocks::become(Fiber::host().order);
  order_all(block.threads, block.token);
}

void start_block(Stream& stream, Work& work) {
  const Launch& launch = *work.launch;
  const unsigned index = block_in_sequence(work, work.started++);
  if (work.done == nullptr) work.done = new_token();
  auto* block = new Block;
  block->launch = &launch;
  block->index = index;
  block->stream = &stream;
  block->work = &work;
  block->done = work.done;
  block->token = new_token();
  block->alive = launch.block;
  residents.push_back(block);
  ++stream.resident;
  for (unsigned rank = 0; rank < launch.block; ++rank) {
    Thread* thread = fresh_thread();
    block->threads.push_back(thread);
    thread->view.thread = {rank, 0, 0};
    thread->view.block = {index, 0, 0};
    thread->view.block_dim = dim3(launch.block);
    thread->view.grid_dim = dim3(launch.grid);
    thread->view.rank = rank;
    thread->block = block;
    thread->state = State::kReady;
    thread->snapshot = thread->courier = nullptr;
    thread->carried = false;
    thread->seen.clear();
    thread->fiber.prepare(entry);
    if (thread->fiber.order == nullptr) thread->fiber.order = new_clock();
  }
  lay_out(*block, work);
  wake(*block, block->threads);
}

void finish_block(Block* block, bool in_peace) {
  if (in_peace) {
    check_red_zones(*block);
  } else {  // its threads stopped where they were, and what they did is over, too
    for (const Thread* thread : block->threads) {
      if (thread->fiber.order == nullptr) continue;
      clocks::become(thread->fiber.order);
      clocks::release(block->done);
    }
    clocks::become(Fiber::host().order);
  }
  for (Thread* thread : block->threads) {
    std::unique_ptr<Thread> owned(thread);
    if (in_peace) (kThreadSanitizer ? done_for_now : idle).push_back(std::move(owned));
  }
  if (block->arena != nullptr) unmap_arena(block->arena, block->arena_bytes);
  auto* stream = static_cast<Stream*>(block->stream);
  auto* work = static_cast<Work*>(block->work);
  --stream->resident;
  if (++work->finished == work->launch->grid) {
    if (++stream->at < stream->queue.size()) stream->queue[stream->at]->before = work->done;
  }
  std::erase(residents, block);
  if (holder == block) holder = nullptr;
  delete block;
}

// Brings in blocks while there is room; of several streams each takes its turn.
void fill_residents() {
  for (bool more = true; more;) {
    more = false;
    for (const auto& stream : streams) {
      if (stream->at == stream->queue.size() || stream->resident >= schedule.resident) continue;
      Work& work = *stream->queue[stream->at];
      if (work.started == work.launch->grid) continue;
      start_block(*stream, work);
      more = true;
    }
  }
}

Block* next_block() {
  if (holder == nullptr || baton_passed) {
    holder = residents[residents.size() == 1 ? 0 : chance.below(residents.size())];
    baton_passed = false;
  }
  return holder;
}

void run_one(Block* block) {
  Thread* thread = block->ready.pop();
  running = thread;
  now = thread->view;
  Fiber::switch_to(thread->fiber);
  running = nullptr;
  if (failed) return;
  if (thread->state == State::kGone) {
    progress();
    --block->alive;
    thread_left(*block, *thread);
  }
  if (failed) return;
  if (block->alive == 0) {
    finish_block(block, true);
  } else if (block->ready.empty()) {
    failed = true;
    failure = describe_deadlock(*block);
  }
}

void run() {
  naps = 0;
  failed = false;
  failure.clear();
  chance = Random(schedule.seed);
  Fiber::host().order = clocks::current();
  void* const start = new_token();
  clocks::release(start);
  for (const auto& stream : streams) stream->queue[0]->before = start;
  try {
    for (fill_residents(); !residents.empty() && !failed; fill_residents()) run_one(next_block());
  } catch (const std::exception& error) {
    failed = true;
    failure = error.what();
  }
  running = nullptr;
  while (!residents.empty()) finish_block(residents.back(), false);
  // Only now: a clock made on the way knows what the host knows, and must not learn of another stream by that.
  for (const auto& stream : streams) {
    for (const auto& work : stream->queue) {
      if (work->done != nullptr) clocks::acquire(work->done);
    }
  }
  streams.clear();
  holder = nullptr;
  for (auto& thread : done_for_now) idle.push_back(std::move(thread));
  done_for_now.clear();
  end_of_launch();
  if (failed) throw std::runtime_error(failure);
}

}  // namespace

Thread::~Thread() { free_clock(fiber.order); }

void set_schedule(const Schedule& chosen) {
  schedule = chosen;
  if (schedule.resident == 0) schedule.resident = 1;
}

void submit(std::unique_ptr<Launch> launch) {
  if (running != nullptr) fail("a kernel launches a kernel", Site::current());
  Stream* stream = nullptr;
  for (const auto& known : streams) {
    if (known->id == launch->stream) stream = known.get();
  }
  if (stream == nullptr) {
    streams.push_back(std::make_unique<Stream>());
    stream = streams.back().get();
    stream->id = launch->stream;
  }
  stream->queue.push_back(std::make_unique<Work>());
  stream->queue.back()->launch = std::move(launch);
  if (!collecting) run();
}

void begin_together() { collecting = true; }

void end_together(bool run_them) {
  collecting = false;
  if (run_them) {
    run();
  } else {
    streams.clear();
  }
}

void fail(const std::string& what, const Site& site) {
  char place[64];
  std::string message = "simt: " + what;
  message +=
      std::string("\n  at ") + site.file_name() + ":" + std::to_string(site.line()) + " in " + site.function_name();
  if (running == nullptr) {
    throw std::runtime_error(message);
  }
  std::snprintf(place, sizeof(place), "\n  by thread %u of block %u", running->view.rank, running->view.block.x);
  failed = true;
  failure = message + place;
  Fiber::switch_to(Fiber::host(), true);
  __builtin_unreachable();
}

void progress() { naps = 0; }

void give_up_turn(bool to_the_end) {
  if (to_the_end) {
    running->block->ready.push(running);
  } else {
    running->block->ready.push_front(running);
  }
  Fiber::switch_to(Fiber::host());
}

void turn() {
  if (running == nullptr || (schedule.resident == 1 && !schedule.preempt && residents.size() == 1)) return;
  if (chance.below(2) == 0) return;
  const AsHost quiet;
  baton_passed = true;
  give_up_turn(schedule.preempt);
}

void sleep_a_moment(const Site& site) {
  const AsHost quiet;
  uint64_t threads = 0;
  for (const Block* block : residents) threads += block->alive;
  if (++naps > kNaps + kNapsPerThread * threads) {
    fail("every thread naps or waits, and what they wait for does not come", site);
  }
  baton_passed = true;
  give_up_turn(true);
}

}  // namespace simt
