// The plain build: bound launchers as a Python module, run in the interpreter on the tensors' own memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind.h"

namespace py = pybind11;

namespace {

simt::Argument argument_of(char kind, const py::handle& given) {
  simt::Argument argument;
  if (kind == 'p') argument.pointer = reinterpret_cast<void*>(given.cast<uintptr_t>());
  if (kind == 'i') argument.integer = given.cast<int64_t>();
  if (kind == 'r') argument.real = given.cast<double>();
  if (kind == 'n') argument.integers = given.cast<std::vector<int64_t>>();
  if (kind == 'l') {
    for (const uintptr_t address : given.cast<std::vector<uintptr_t>>()) {
      argument.pointers.push_back(reinterpret_cast<void*>(address));
    }
  }
  return argument;
}

void call(const std::string& name, const py::list& given, int order, uint64_t seed, unsigned resident, bool preempt) {
  for (const simt::Bound& one : simt::bound()) {
    if (one.name != name) continue;
    std::vector<simt::Argument> arguments;
    for (size_t i = 0; i < given.size(); ++i) arguments.push_back(argument_of(one.kinds[i], given[i]));
    simt::set_schedule({static_cast<simt::Order>(order), seed, resident, preempt});
    one.call(arguments);
    return;
  }
}

}  // namespace

PYBIND11_MODULE(emulated, module) {
  module.def("call", &call);
  module.def("kinds", [] {
    py::dict kinds;
    for (const simt::Bound& one : simt::bound()) kinds[py::str(one.name)] = one.kinds;
    return kinds;
  });
}
