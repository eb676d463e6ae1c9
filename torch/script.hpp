// Op scripts: their lines, and the streams that they name.

#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

namespace script {

// A script's mistake, or a file's; what it says is one sentence.
struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The handle of a numbered stream: even, as PyTorch wants it, and rising with the number.
//
// PyTorch looks at the streams on which events wait in the order of a hash table, and the sums of
// what was split and merged on the way depend on that order. With these handles it is the order of
// the numbers for streams 0 to 3, which is the order that we take. Beyond those, each `shuffle` has
// an order of its own.
inline cudaStream_t handle(uint64_t stream, uint64_t shuffle = 0) {
  constexpr uint64_t kFirst[] = {0, 96, 208, 304};
  if (stream < 4) {
    return reinterpret_cast<cudaStream_t>(kFirst[stream]);
  }
  uint64_t offset = (stream + shuffle) * shuffle * 0x9e3779b97f4a7c15 >> 58;
  return reinterpret_cast<cudaStream_t>((stream * 64 + offset) * 16);
}

// One line of a script. The reader of the program `larder` is the strict one; this one trusts the
// words to be there and to be numbers.
struct Op {
  std::string name;
  std::vector<std::string> words;

  uint64_t number(size_t at) const {
    return std::stoull(words.at(at));
  }
};

inline std::vector<Op> read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw BadInput(path + ": the file cannot be read");
  }
  std::vector<Op> ops;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream stream(line);
    Op op;
    if (!(stream >> op.name) || op.name.front() == '#') {
      continue;
    }
    for (std::string word; stream >> word;) {
      op.words.push_back(word);
    }
    ops.push_back(std::move(op));
  }
  return ops;
}

}  // namespace script
