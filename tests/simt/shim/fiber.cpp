#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <stdexcept>

#include "sanitizers.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace simt {
namespace {

constexpr size_t kGuard = 4096 * 16;  // a page, whatever its size
constexpr size_t kStack = 1 << (kAddressSanitizer || kThreadSanitizer ? 18 : 16);

}  // namespace

#if defined(__x86_64__)

// void simt_switch(void** save, void* to): what a call keeps goes onto the stack, and another stack gives its own back.
extern "C" void simt_switch(void** save, void* to);
asm(R"(
.text
.p2align 4
.globl simt_switch
.hidden simt_switch
.type simt_switch, @function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, .-simt_switch
)");

namespace {

void* prepared(char* stack, size_t bytes, void (*entry)()) {
  // Six registers, the entry, and where it would return to: the stack is as after a call.
  auto* top = reinterpret_cast<uint64_t*>(stack + bytes);
  for (int i = 1; i <= 8; ++i) top[-i] = 0;
  top[-2] = reinterpret_cast<uint64_t>(entry);
  return top - 8;
}

}  // namespace

#else  // slower, and everywhere

namespace {

void simt_switch(void** save, void* to) {
  ucontext_t here;
  *save = &here;
  swapcontext(&here, static_cast<ucontext_t*>(to));
}

void* prepared(char* stack, size_t bytes, void (*entry)()) {
  auto* context = reinterpret_cast<ucontext_t*>(stack);  // at the low end, which a stack reaches last
  getcontext(context);
  const size_t taken = (sizeof(ucontext_t) + 63) / 64 * 64;
  context->uc_stack.ss_sp = stack + taken;
  context->uc_stack.ss_size = bytes - taken;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
  return context;
}

}  // namespace

#endif

Fiber* Fiber::running_ = &Fiber::host();

Fiber& Fiber::host() {
  static Fiber host;
  return host;
}

Fiber::~Fiber() {
  if (mapped_ != nullptr) munmap(mapped_, kGuard + kStack);
}

void Fiber::prepare(void (*entry)()) {
  if (mapped_ == nullptr) {
    void* mapped = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("simt: no memory for the stack of a CUDA thread.");
    mprotect(mapped, kGuard, PROT_NONE);
    mapped_ = static_cast<char*>(mapped);
    stack_ = mapped_ + kGuard;
    bytes_ = kStack;
  }
  unpoison(stack_, bytes_);
  fake_stack_ = nullptr;
  pointer_ = prepared(mapped_ + kGuard, bytes_, entry);
}

void Fiber::arrived() {
#if SIMT_ADDRESS
  __sanitizer_finish_switch_fiber(nullptr, &host().stack_, &host().bytes_);
#endif
}

void Fiber::switch_to(Fiber& to, bool last) {
  Fiber& from = *running_;
  running_ = &to;
#if SIMT_ADDRESS
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack_, to.stack_, to.bytes_);
#endif
#if SIMT_THREAD
  __tsan_switch_to_fiber(to.order, __tsan_switch_to_fiber_no_sync);
#endif
  (void)last;
  simt_switch(&from.pointer_, to.pointer_);
#if SIMT_ADDRESS
  __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
}

}  // namespace simt
