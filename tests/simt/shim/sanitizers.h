// What the runtime tells a sanitizer. The kernels are built with -fsanitize=..., the runtime only with
// -DSIMT_ADDRESS=1 or -DSIMT_THREAD=1: it speaks to the sanitizer and is not watched by it.
#pragma once

#include <cstddef>

#if SIMT_ADDRESS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if SIMT_THREAD
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

#if SIMT_ADDRESS
inline constexpr bool kAddressSanitizer = true;
inline void poison(const void* at, size_t bytes) { __asan_poison_memory_region(at, bytes); }
inline void unpoison(const void* at, size_t bytes) { __asan_unpoison_memory_region(at, bytes); }
#else
inline constexpr bool kAddressSanitizer = false;
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
#endif

// A clock is what the thread sanitizer calls a fiber. Two of them are ordered only by what is said here.
namespace clocks {
#if SIMT_THREAD
}
inline constexpr bool kThreadSanitizer = true;
namespace clocks {
inline void* current() { return __tsan_get_current_fiber(); }
inline void* create() { return __tsan_create_fiber(0); }  // knows what the current one knows
inline void destroy(void* clock) { __tsan_destroy_fiber(clock); }
inline void become(void* clock) { __tsan_switch_to_fiber(clock, __tsan_switch_to_fiber_no_sync); }
inline void acquire(const void* at) { __tsan_acquire(const_cast<void*>(at)); }
inline void release(const void* at) { __tsan_release(const_cast<void*>(at)); }
#else
}
inline constexpr bool kThreadSanitizer = false;
namespace clocks {
inline void* current() { return nullptr; }
inline void* create() { return nullptr; }
inline void destroy(void*) {}
inline void become(void*) {}
inline void acquire(const void*) {}
inline void release(const void*) {}
#endif
}  // namespace clocks

}  // namespace simt
