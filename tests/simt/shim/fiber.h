// A fiber: a stack with a guard page below it, and the switch from one to another. 15 ns on x86-64.
#pragma once

#include <cstddef>

namespace simt {

class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  // Starts anew at `entry`, which never returns, the next time somebody switches here.
  void prepare(void (*entry)());
  // What `entry` does first.
  static void arrived();
  // Leaves the fiber that runs for `to`; `last`: for good.
  static void switch_to(Fiber& to, bool last = false);
  // The fiber that the operating system gave us.
  static Fiber& host();

  void* order = nullptr;  // this fiber's clock in the thread sanitizer

 private:
  void* pointer_ = nullptr;      // of the stack, while another runs
  char* mapped_ = nullptr;       // the guard page, and the stack above it; the host's is not ours
  const void* stack_ = nullptr;  // its low end
  size_t bytes_ = 0;
  void* fake_stack_ = nullptr;  // the address sanitizer's

  static Fiber* running_;
};

}  // namespace simt
