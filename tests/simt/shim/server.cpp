// The sanitized build: a program that runs one call after another, since a sanitizer wants the whole process. Requests
// come on stdin, answers go to stdout; a sanitizer's report goes to stderr and ends the program.
//
// Request: a line "name order seed resident preempt | bytes shift ... | arguments", then the bytes of each memory.
// An argument: "i 5", "r 0x1.8p+1", "p memory offset" (memory -1: null), "l count memory offset ...", "n count 1 2
// ...". Answer: "ok" and the bytes of each memory as they are now, or "fault" and the message in one length-counted
// piece.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>

#include "bind.h"

namespace {

// Just as long as the caller's and as far from an alignment of 64, so that what is beyond its end is not ours.
struct Memory {
  char* mapped = nullptr;
  char* data = nullptr;
  size_t bytes = 0;

  Memory(size_t bytes_, size_t shift) : bytes(bytes_) {
    void* at = nullptr;
    if (posix_memalign(&at, 64, shift + bytes) != 0) std::abort();
    mapped = static_cast<char*>(at);
    data = mapped + shift;
  }
  Memory(const Memory&) = delete;
  ~Memory() { std::free(mapped); }
};
using Memories = std::vector<std::unique_ptr<Memory>>;

void* read_pointer(std::istream& line, const Memories& memories) {
  long memory = 0, offset = 0;
  line >> memory >> offset;
  return memory < 0 ? nullptr : memories[static_cast<size_t>(memory)]->data + offset;
}

simt::Argument read_argument(std::istream& line, const Memories& memories) {
  simt::Argument argument;
  char kind = 0;
  size_t count = 0;
  line >> kind;
  if (kind == 'i') line >> argument.integer;
  if (kind == 'p') argument.pointer = read_pointer(line, memories);
  if (kind == 'r') {
    std::string word;
    line >> word;
    argument.real = std::strtod(word.c_str(), nullptr);
  }
  if (kind == 'l') {
    line >> count;
    for (size_t i = 0; i < count; ++i) argument.pointers.push_back(read_pointer(line, memories));
  }
  if (kind == 'n') {
    line >> count;
    argument.integers.resize(count);
    for (int64_t& number : argument.integers) line >> number;
  }
  return argument;
}

std::string serve(const std::string& request, Memories& memories) {
  std::istringstream line(request);
  std::string name, word;
  int order = 0;
  uint64_t seed = 0;
  unsigned resident = 1;
  bool preempt = false;
  line >> name >> order >> seed >> resident >> preempt >> word;
  for (size_t bytes, shift; line >> word && word != "|";) {
    bytes = std::stoull(word);
    line >> shift;
    memories.push_back(std::make_unique<Memory>(bytes, shift));
    if (!std::cin.read(memories.back()->data, static_cast<std::streamsize>(bytes))) std::exit(3);
  }
  for (const simt::Bound& one : simt::bound()) {
    if (one.name != name) continue;
    std::vector<simt::Argument> arguments;
    for (size_t i = 0; i < one.kinds.size(); ++i) arguments.push_back(read_argument(line, memories));
    simt::set_schedule({static_cast<simt::Order>(order), seed, resident, preempt});
    try {
      one.call(arguments);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
  return "simt: nothing is bound as " + name;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (const simt::Bound& one : simt::bound()) std::cout << one.name << ' ' << one.kinds << '\n';
  std::cout << std::endl;
  for (std::string request; std::getline(std::cin, request);) {
    Memories memories;
    const std::string fault = serve(request, memories);
    if (fault.empty()) {
      std::cout << "ok\n";
      for (const auto& memory : memories) std::cout.write(memory->data, static_cast<std::streamsize>(memory->bytes));
    } else {
      std::cout << "fault " << fault.size() << '\n' << fault;
    }
    std::cout.flush();
  }
}
