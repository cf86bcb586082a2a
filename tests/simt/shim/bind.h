// Binds launchers, so that a test can call them: SIMT_BIND(name, launcher) in a file bind_<op>.cpp.
//
// A launcher takes pointers, numbers, enums, bools, and the stream, which the caller does not give; also
// `const std::vector<void*>&` (a list of tensors) and `const std::vector<int64_t>&`. Where a kernel wants a struct,
// bind a function that builds it from those. What it returns, if anything, is a cudaError_t.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "simt.h"

namespace simt {

struct Argument {
  int64_t integer = 0;
  double real = 0;
  void* pointer = nullptr;
  std::vector<void*> pointers;
  std::vector<int64_t> integers;
};

struct Bound {
  std::string name;
  std::string kinds;  // one letter an argument: p(ointer), i(nteger), r(eal), l(ist of pointers), n(umbers)
  void (*call)(const std::vector<Argument>& arguments);
};

inline std::vector<Bound>& bound() {
  static std::vector<Bound> all;
  return all;
}

template <typename P>
struct Parameter {
  using T = std::remove_cvref_t<P>;
  static constexpr bool kStream = std::is_same_v<T, cudaStream_t>;
  static constexpr char kKind = std::is_pointer_v<T>                      ? 'p'
                                : std::is_floating_point_v<T>             ? 'r'
                                : std::is_same_v<T, std::vector<void*>>   ? 'l'
                                : std::is_same_v<T, std::vector<int64_t>> ? 'n'
                                                                          : 'i';
  static decltype(auto) from(const Argument& argument) {
    if constexpr (kKind == 'p') {
      return static_cast<T>(argument.pointer);
    } else if constexpr (kKind == 'r') {
      return static_cast<T>(argument.real);
    } else if constexpr (kKind == 'l') {
      return (argument.pointers);
    } else if constexpr (kKind == 'n') {
      return (argument.integers);
    } else {
      static_assert(std::is_integral_v<T> || std::is_enum_v<T>, "bind a function that builds it from plain arguments");
      return static_cast<T>(argument.integer);
    }
  }
};

template <auto function>
struct Caller;

template <typename R, typename... P, R (*function)(P...)>
struct Caller<function> {
  static std::string kinds() {
    std::string letters;
    ((letters += Parameter<P>::kStream ? "" : std::string(1, Parameter<P>::kKind)), ...);
    return letters;
  }
  static void call(const std::vector<Argument>& arguments) { call(arguments, std::index_sequence_for<P...>()); }

 private:
  template <size_t... i>
  static void call(const std::vector<Argument>& arguments, std::index_sequence<i...>) {
    // Where each parameter's argument is: streams have none, and count as a last one that is null.
    constexpr bool streams[] = {Parameter<P>::kStream..., false};
    size_t place[sizeof...(P) + 1] = {}, next = 0;
    for (size_t p = 0; p < sizeof...(P); ++p) place[p] = streams[p] ? arguments.size() : next++;
    static const Argument none;
    const auto at = [&](size_t p) -> const Argument& {
      return place[p] < arguments.size() ? arguments[place[p]] : none;
    };
    if constexpr (std::is_void_v<R>) {
      function(Parameter<P>::from(at(i))...);
    } else {
      const auto status = static_cast<int>(function(Parameter<P>::from(at(i))...));
      if (status != 0) throw std::runtime_error("simt: the launcher returned error " + std::to_string(status));
    }
  }
};

template <auto function>
bool bind_as(const char* name) {
  bound().push_back({name, Caller<function>::kinds(), &Caller<function>::call});
  return true;
}

}  // namespace simt

#define SIMT_JOIN_(a, b) a##b
#define SIMT_JOIN(a, b) SIMT_JOIN_(a, b)
#define SIMT_BIND(name, ...) \
  [[maybe_unused]] static const bool SIMT_JOIN(bound_, __COUNTER__) = simt::bind_as<__VA_ARGS__>(name)
