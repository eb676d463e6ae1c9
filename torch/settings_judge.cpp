// Reads settings texts with PyTorch's own parser, and prints what came of each.
//
// Lines of standard input are `start TEXT`, what a new process finds in its environment, and
// `update TEXT`, what a program sets while it runs. For each it prints a line: `refused`, or
// `accepted` and the value of every setting, as the example read_settings of larder-core prints
// them of ours.
//
// A refused text leaves PyTorch's settings half changed. So each is tried in a process of its own,
// and one that is refused is forgotten with it: the next text finds the settings that were in force
// before. A text that ends the process is a refused one.

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
using Cuda = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

constexpr int kRefused = 3;
// A text takes no time; one that is read for ever ends by this.
constexpr unsigned kSeconds = 20;

template <typename Value>
void show(const char* name, const Value& value) {
  std::cout << ' ' << name << '=' << value;
}

void show(const char* name, double value) {
  std::cout << ' ' << name << '=' << std::hex << std::bit_cast<uint64_t>(value) << std::dec;
}

#if TORCH_VERSION_MINOR >= 15
// What a segment reserves by default and for some classes of streams, on two devices.
void show_reserves() {
  for (const char* name : {"", "a", "serve", "train", ":", "[", ",", "0.5", ">"}) {
    for (size_t total : {size_t{80} << 30, size_t{12345678}}) {
      auto decision = Cuda::expandable_segments_reserve_decision(name, total);
      std::cout << " reserve[" << name << "]=";
      if (decision.reserve_bytes) {
        std::cout << *decision.reserve_bytes;
      } else {
        std::cout << "none";
      }
    }
  }
}
#endif

// Every setting of this version.
void show_all() {
  std::cout << "accepted";
  show("backend", c10::cuda::CUDACachingAllocator::get()->name());
  show("large_segment", Common::large_segment_size());
  show("max_split", Common::max_split_size());
  show("max_non_split_rounding", Common::max_non_split_rounding_size());
  show("garbage_collection", Common::garbage_collection_threshold());
  std::cout << " divisions=";
  for (size_t divisions : Common::roundup_power2_divisions()) {
    std::cout << divisions << ';';
  }
  std::cout << " divisions_of=";
  for (size_t shift = 9; shift < 40; ++shift) {
    std::cout << Common::roundup_power2_divisions((size_t{1} << shift) + 512) << ';';
  }
  show("expandable", Common::use_expandable_segments());
  show("release_lock", Cuda::release_lock_on_cudamalloc());
  show("capture_reuse", Cuda::graph_capture_record_stream_reuse());
  show("memory_fraction", Cuda::per_process_memory_fraction());
  show("host_register", Cuda::pinned_use_cuda_host_register());
  show("register_threads", Cuda::pinned_num_register_threads());
  show("background_threads", Common::pinned_use_background_threads());
  // As who reserves it counts it in bytes.
  show("reserve_segment", Cuda::pinned_reserve_segment_size_mb() << 20);
#if TORCH_VERSION_MINOR >= 12
  show("reject_above_fraction", Cuda::throw_on_cudamalloc_oom());
  show("free_catch_all", Cuda::pinned_free_catch_all());
#endif
#if TORCH_VERSION_MINOR >= 13
  show("max_round_threshold", Common::pinned_max_round_threshold());
  show("max_cached", Common::pinned_max_cached_size());
#endif
#if TORCH_VERSION_MINOR >= 15
  show_reserves();
#endif
  show("text", Common::last_allocator_settings());
  std::cout << std::endl;
}

bool start() {
  try {
    Common::instance();
    Cuda::instance();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool update(const char* text) {
  try {
    c10::CachingAllocator::setAllocatorSettings(text);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// The exit code of a child; none if something else ended it.
int code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A process that the texts find: the first in its environment, where `is_started`, and the others
// as changes. Whoever reads one that is accepted goes on in its parent's place.
int live(bool is_started, char** texts) {
  alarm(kSeconds);
  if (!start()) {
    return kRefused;
  }
  if (is_started) {
    show_all();
  }
  for (; *texts != nullptr; ++texts) {
    pid_t child = fork();
    if (child != 0) {
      alarm(0);
      if (code_of(child) == 0) {
        return 0;
      }
      std::cout << "refused" << std::endl;
      continue;
    }
    alarm(kSeconds);
    if (!update(*texts)) {
      _exit(kRefused);
    }
    show_all();
  }
  return 0;
}

// Runs a process on texts, of which the first is the one it finds in its environment, unless there
// is none.
bool run_process(const char* variable, const char* first, const std::vector<std::string>& updates) {
  pid_t child = fork();
  if (child != 0) {
    return code_of(child) == 0;
  }
  if (first != nullptr) {
    setenv(variable, first, 1);
  }
  std::vector<const char*> words{"settings_judge", first != nullptr ? "started" : "bare"};
  for (const auto& text : updates) {
    words.push_back(text.c_str());
  }
  words.push_back(nullptr);
  execv("/proc/self/exe", const_cast<char**>(words.data()));
  _exit(kRefused);
}

// The two variables are as good as each other, so that each has every other case.
void run_case(size_t number, const std::string& first, const std::vector<std::string>& updates) {
  const char* variable = number % 2 == 0 ? "PYTORCH_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF";
  if (!run_process(variable, first.c_str(), updates)) {
    std::cout << "refused" << std::endl;
    run_process(variable, nullptr, updates);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    // The libraries' own ends are nobody's business here.
    std::_Exit(live(std::string(argv[1]) == "started", argv + 2));
  }
  for (const char* name :
       {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}) {
    unsetenv(name);
  }
  std::string first;
  std::vector<std::string> updates;
  size_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    auto end = line.find(' ');
    std::string word = line.substr(0, end);
    std::string text = end == std::string::npos ? "" : line.substr(end + 1);
    if (word != "start") {
      updates.push_back(text);
      continue;
    }
    if (number > 0) {
      run_case(number, first, updates);
    }
    first = text;
    updates.clear();
    number += 1;
  }
  if (number > 0) {
    run_case(number, first, updates);
  }
  return 0;
}
