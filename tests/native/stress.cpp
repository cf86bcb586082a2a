// Writers, updaters and readers race on a small ring, through the kernels as the library has them, without any lock
// around them. Run under the thread, address and undefined-behaviour sanitizers; usage: stress SECONDS.
//
// A record is one number, spread over its leaves, and an answer that is computed from it later and patched in. So every
// record that is read tells by itself whether it is whole, and every patch whether it landed where it belonged.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

// One translation unit for all: each kernel lives in an unnamed namespace, and only the name of its op is there twice.
#define kOp kAppendOp
#include "cpu/append_rows.cpp"
#undef kOp
#define kOp kReadOp
#define register_kernel register_read
#include "cpu/read_rows.cpp"
#undef kOp
#undef register_kernel
#define kOp kUpdateOp
#define register_kernel register_update
#include "cpu/update_rows_if.cpp"

namespace torchrb {
namespace {

using torch::stable::make_tensor;

constexpr int64_t kCapacity = 12, kBatch = 5, kWide = 24, kAhead = 64;
// header 16, wide 24 * 8, answer 24 * 8, number 8, version 8
constexpr int64_t kRecordBytes = 16 + 2 * 8 * kWide + 8 + 8;
const std::vector<int64_t> kLayout = {0, 16, 8 * kWide,       0, 16 + 8 * kWide, 8 * kWide, 0, 16 + 16 * kWide,
                                      8, 0,  24 + 16 * kWide, 8};
const std::vector<int64_t> kAnswerLayout(kLayout.begin() + 3, kLayout.begin() + 6);
const std::vector<int64_t> kVersionLeaf(kLayout.begin() + 9, kLayout.end());

int64_t answer_to(int64_t number) { return number * 3 + 1; }

int64_t* data(const Tensor& tensor) { return static_cast<int64_t*>(tensor.data_ptr()); }

Tensor longs(std::vector<int64_t> sizes) { return make_tensor(std::move(sizes), ScalarType::Long); }

void fail_now(const char* what, int64_t a, int64_t b) {
  std::printf("FAILED: %s (%lld, %lld)\n", what, static_cast<long long>(a), static_cast<long long>(b));
  std::exit(1);
}

struct Ring {
  std::vector<Tensor> tables{make_tensor({kCapacity, kRecordBytes}, ScalarType::Byte)};
  Tensor control = longs({kControlSize}), journal = longs({64});
  std::vector<Tensor> templates{longs({0, kWide}), longs({0, kWide}), longs({0}), longs({0})};
  std::atomic<int64_t> next_number{1}, rows_read{0}, updated{0}, stale{0}, answers_seen{0};
  std::atomic<bool> stop{false};
  std::mutex book_lock;
  std::map<std::pair<int64_t, int64_t>, int64_t> numbers;   // (slot, generation) -> the number written there
  std::map<std::pair<int64_t, int64_t>, int64_t> versions;  // (slot, generation) -> highest version reported as written

  void write() {
    std::vector<Tensor> values{longs({kBatch, kWide}), longs({kBatch, kWide}), longs({kBatch}), longs({kBatch})};
    const int64_t first = next_number.fetch_add(kBatch);
    for (int64_t row = 0; row < kBatch; ++row) {
      for (int64_t i = 0; i < kWide; ++i) data(values[0])[row * kWide + i] = first + row;
      data(values[2])[row] = first + row;
    }
    const auto [slots, generations] = append_rows(tables, control, journal, kLayout, values, kBatch);
    const std::lock_guard<std::mutex> guard(book_lock);
    for (int64_t row = 0; row < kBatch; ++row) {
      const std::pair handle(data(slots)[row], data(generations)[row]);
      if (!numbers.emplace(handle, first + row).second)
        fail_now("a handle was given out twice", handle.first, handle.second);
    }
  }

  // Reads the whole ring; every record must be whole. Returns handles and numbers.
  std::tuple<Tensor, Tensor, Tensor> read() {
    const Tensor slots = longs({kCapacity});
    for (int64_t slot = 0; slot < kCapacity; ++slot) data(slots)[slot] = slot;
    const auto [leaves, generations] = read_rows(tables, kLayout, templates, slots);
    for (int64_t row = 0; row < kCapacity; ++row) {
      if (data(generations)[row] < 0) continue;
      const int64_t number = data(leaves[2])[row], version = data(leaves[3])[row];
      for (int64_t i = 0; i < kWide; ++i) {
        const int64_t wide = data(leaves[0])[row * kWide + i], answer = data(leaves[1])[row * kWide + i];
        if (wide != number) fail_now("a record mixes two numbers", number, wide);
        const int64_t expected = version == 0 ? 0 : answer_to(number) + version;
        if (answer != expected) fail_now("an answer does not belong to its record and version", expected, answer);
      }
      answers_seen += version > 0;
    }
    rows_read += kCapacity;
    return {slots, generations, leaves[2]};
  }

  // Answers what it read, some turns of the ring later.
  void update(int64_t version, int64_t patience) {
    const auto [slots, generations, numbers_read] = read();
    for (int64_t turn = 0; turn < patience; ++turn) std::this_thread::yield();
    const Tensor answers = longs({kCapacity, kWide}), versions_in = longs({kCapacity});
    for (int64_t row = 0; row < kCapacity; ++row) {
      for (int64_t i = 0; i < kWide; ++i) data(answers)[row * kWide + i] = answer_to(data(numbers_read)[row]) + version;
      data(versions_in)[row] = version;
    }
    const Tensor status = update_rows_if(tables, control, journal, kAnswerLayout, slots, generations, {answers},
                                         kVersionLeaf, versions_in, true);
    const std::lock_guard<std::mutex> guard(book_lock);
    for (int64_t row = 0; row < kCapacity; ++row) {
      const auto outcome = static_cast<const uint8_t*>(status.data_ptr())[row];
      updated += outcome == kUpdated;
      stale += outcome == kStale;
      if (outcome != kUpdated) continue;
      int64_t& highest = versions[{data(slots)[row], data(generations)[row]}];
      highest = std::max(highest, version);
    }
  }

  // Whether every kind of outcome was seen.
  bool happened() const { return updated > 0 && stale > 0 && answers_seen > 0; }

  // After all threads are done: the last records are those of the book, and no update that was reported is lost.
  void check_end() {
    const auto [slots, generations, numbers_read] = read();
    const auto [leaves, again] = read_rows(tables, kLayout, templates, slots);
    for (int64_t row = 0; row < kCapacity; ++row) {
      const std::pair handle(data(slots)[row], data(generations)[row]);
      if (numbers.at(handle) != data(numbers_read)[row])
        fail_now("a handle names another record", handle.first, handle.second);
      const auto reported = versions.find(handle);
      const int64_t expected = reported == versions.end() ? 0 : reported->second;
      if (data(leaves[3])[row] != expected)
        fail_now("an update that was reported is lost", expected, data(leaves[3])[row]);
    }
    const int64_t written = next_number - 1;
    if (data(control)[kControlWrites] != written)
      fail_now("the write count is off", written, data(control)[kControlWrites]);
    if (data(control)[kControlJournal] != written + updated)
      fail_now("the journal missed a write", written + updated, data(control)[kControlJournal]);
  }
};

}  // namespace
}  // namespace torchrb

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 2.0;
  torchrb::Ring ring;
  ring.write();
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&] {
      while (!ring.stop) ring.write();
    });
  }
  for (int64_t updater = 0; updater < 2; ++updater) {
    threads.emplace_back([&, updater] {
      for (int64_t version = updater + 1; !ring.stop; version += 2) ring.update(version, version % 3);
    });
  }
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&] {
      while (!ring.stop) ring.read();
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  // On a busy machine some threads hardly run: go on until everything has happened once.
  constexpr int kMostTurns = 600;
  for (int turn = 0; turn < kMostTurns && !ring.happened(); ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ring.stop = true;
  for (std::thread& thread : threads) thread.join();
  ring.check_end();
  std::printf("%lld written, %lld read, %lld answers seen, %lld updated, %lld stale\n",
              static_cast<long long>(ring.next_number - 1), static_cast<long long>(ring.rows_read),
              static_cast<long long>(ring.answers_seen), static_cast<long long>(ring.updated),
              static_cast<long long>(ring.stale));
  return ring.happened() ? 0 : 2;
}
