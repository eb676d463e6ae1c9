// Runs op scripts on PyTorch's own caching allocator, which runs on the simulated GPU.
//
// It prints what `larder` prints for the same script, byte for byte where the two allocators decide
// alike. Settings come from PYTORCH_CUDA_ALLOC_CONF, the device's memory from LARDER_SIM_MEMORY.
//
// Exit codes: 0 done; 1 the script is bad; 2 wrong usage; 3 the allocator itself gave up. A replay
// that does not end is ended by a signal, as an allocator that ends the process.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <torch/headeronly/version.h>

#include <dlfcn.h>
#include <unistd.h>

#include "bench.hpp"
#include "history.hpp"
#include "script.hpp"

namespace c10::cuda::_internal {
// Declared in no header that comes with the library.
C10_CUDA_API void setHasPrimaryContext(bool (*func)(DeviceIndex));
}  // namespace c10::cuda::_internal

extern "C" {
struct LarderCallCounts {
  uint64_t malloc, free, create, map, unmap;
};
int larder_sim_sync(cudaStream_t stream);
int larder_sim_capture(cudaStream_t stream, int on);
int larder_sim_launch(cudaStream_t stream);
int larder_sim_wait(cudaStream_t stream, cudaStream_t other);
uint64_t larder_sim_used();
int larder_sim_offer();
int larder_sim_calls(LarderCallCounts* counts);
}

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using script::BadInput;
using script::handle;
using script::Op;

constexpr c10::DeviceIndex kDevice = 0;

// The allocator refused an operation for another reason than out of memory.
struct GaveUp : std::runtime_error {
  using std::runtime_error::runtime_error;
};

c10::MempoolId_t pool_id(uint64_t pool) {
  return {0, pool};
}

// An allocator on the device, and the allocations of a script by their IDs.
class Replay {
 public:
  Replay(
      std::optional<std::string> placements,
      uint64_t shuffle,
      std::optional<history::Listing>& listing)
      : shuffle_(shuffle), listing_(listing) {
    if (placements) {
      placements_.open(*placements);
      if (!placements_) {
        throw BadInput(*placements + ": the file cannot be written");
      }
      placements_ << std::hex;
    }
  }

  void step(const Op& op) {
    if (op.name == "alloc") {
      alloc(op.words.at(0), op.number(1), stream(op.number(2)));
    } else if (op.name == "free") {
      free(op.words.at(0));
    } else if (op.name == "record") {
      record(op.words.at(0), stream(op.number(1)));
    } else if (op.name == "sync") {
      larder_sim_sync(stream(op.number(0)));
    } else if (op.name == "empty") {
      allocator::emptyCache();
    } else if (op.name == "fraction") {
      allocator::setMemoryFraction(std::stod(op.words.at(0)), kDevice);
    } else if (op.name == "reset-peak") {
      allocator::resetPeakStats(kDevice);
    } else if (op.name == "reset-accumulated") {
      allocator::resetAccumulatedStats(kDevice);
    } else if (op.name.rfind("pool-", 0) == 0) {
      pool_step(op);
    } else if (op.name == "checkpoint") {
      checkpoint(op.words.at(0), pool_id(op.number(1)));
    } else if (op.name == "restore") {
      restore(op.words.at(0));
    } else {
      device_step(op);
    }
  }

  uint64_t ooms() const {
    return ooms_;
  }

 private:
  cudaStream_t stream(uint64_t number) {
    auto found = handle(number, shuffle_);
    if (listing_) {
      listing_->know(found, number);
    }
    return found;
  }

  void alloc(const std::string& id, uint64_t size, cudaStream_t stream) {
    scatter();
    void* addr = nullptr;
    try {
      addr = allocator::raw_alloc_with_stream(size, stream);
      live_[id] = addr;
    } catch (const c10::OutOfMemoryError&) {
      ooms_ += 1;
    }
    if (placements_.is_open()) {
      placements_ << id << ' ' << reinterpret_cast<uintptr_t>(addr) << '\n';
    }
  }

  // Moves the host memory that the allocator gets for its own records. Blocks freed under a graph
  // capture wait in a hash table by their records' addresses, and are taken out in its order.
  void scatter() {
    if (shuffle_ != 0) {
      litter_.emplace_back(shuffle_ * (litter_.size() + 1) * 0x9e3779b97f4a7c15 >> 55);
    }
  }

  void free(const std::string& id) {
    auto found = live_.find(id);
    if (found != live_.end()) {
      void* addr = found->second;
      live_.erase(found);
      allocator::raw_delete(addr);
    }
  }

  void record(const std::string& id, cudaStream_t stream) {
    auto found = live_.find(id);
    if (found == live_.end() || found->second == nullptr) {
      return;
    }
    // Recording goes by an owner. This one owns nothing: it lets go before it could free.
    c10::DataPtr owner(
        found->second, found->second, allocator::get()->raw_deleter(),
        c10::Device(c10::DeviceType::CUDA, kDevice));
    struct LetGo {
      c10::DataPtr& owner;
      ~LetGo() {
        owner.release_context();
      }
    } let_go{owner};
    allocator::recordStream(owner, c10::cuda::getStreamFromExternal(stream, kDevice));
  }

  // What the program does to the device and not to the allocator.
  void device_step(const Op& op) {
    if (op.name == "capture-begin") {
      begin_capture(stream(op.number(0)));
    } else if (op.name == "capture-end") {
      end_capture(stream(op.number(0)));
    } else if (op.name == "launch") {
      larder_sim_launch(stream(op.number(0)));
    } else if (op.name == "wait") {
      larder_sim_wait(stream(op.number(0)), stream(op.number(1)));
    } else {
      throw BadInput("there is no operation '" + op.name + "'");
    }
  }

  // A program works on the stream that it captures, and since 2.13 it says that a capture is on: by
  // these two the allocator knows one from then on.
  void begin_capture(cudaStream_t stream) {
    larder_sim_capture(stream, 1);
#if TORCH_VERSION_MINOR >= 13
    captured_.push_back(stream);
    work_on_last();
    allocator::markCaptureBegin(kDevice);
#endif
  }

  void end_capture(cudaStream_t stream) {
    larder_sim_capture(stream, 0);
#if TORCH_VERSION_MINOR >= 13
    std::erase(captured_, stream);
    work_on_last();
    allocator::markCaptureEnd(kDevice);
#endif
  }

  void work_on_last() {
    cudaStream_t last = captured_.empty() ? nullptr : captured_.back();
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(last, kDevice));
  }

  void checkpoint(const std::string& name, c10::MempoolId_t pool) {
    Checkpoint checkpoint{allocator::getCheckpointState(kDevice, pool), {}};
    for (const auto& [id, addr] : live_) {
      checkpoint.ids[addr] = id;
    }
    checkpoints_[name] = std::move(checkpoint);
  }

  // What was freed is no longer live, and what came back is live under the ID that it had.
  void restore(const std::string& name) {
    const Checkpoint& checkpoint = checkpoints_.at(name);
    auto delta = allocator::setCheckpointPoolState(kDevice, checkpoint.state);
    for (void* freed : delta.ptrs_freed) {
      for (auto it = live_.begin(); it != live_.end();) {
        it = it->second == freed ? live_.erase(it) : std::next(it);
      }
    }
    for (auto& owner : delta.dataptrs_allocd) {
      void* addr = owner.release_context();
      auto found = checkpoint.ids.find(addr);
      if (found != checkpoint.ids.end()) {
        live_[found->second] = addr;
      }
    }
  }

  // The streams under one capture have one number in common.
  static std::optional<unsigned long long> capture_of(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    unsigned long long number = 0;
    cudaStreamGetCaptureInfo(stream, &status, &number, nullptr, nullptr, nullptr, nullptr);
    return status == cudaStreamCaptureStatusNone ? std::nullopt : std::optional(number);
  }

  std::function<bool(cudaStream_t)> filter(const Op& op) {
    if (op.words.at(1) == "*") {
      return [](cudaStream_t) { return true; };
    }
    if (op.words.at(1) == "capture") {
      cudaStream_t origin = stream(op.number(2));
      return [=](cudaStream_t asked) {
        auto number = capture_of(asked);
        return number && number == capture_of(origin);
      };
    }
    cudaStream_t only = stream(op.number(1));
    return [=](cudaStream_t asked) { return asked == only; };
  }

  void pool_step(const Op& op) {
    auto id = [&] { return pool_id(op.number(0)); };
    if (op.name == "pool-new") {
      allocator::createOrIncrefPool(kDevice, id());
    } else if (op.name == "pool-begin") {
      allocator::beginAllocateToPool(kDevice, id(), filter(op));
    } else if (op.name == "pool-end") {
      allocator::endAllocateToPool(kDevice, id());
    } else if (op.name == "pool-release") {
      allocator::releasePool(kDevice, id());
    } else if (op.name == "pool-empty") {
      allocator::emptyCache(id());
    } else if (op.name == "pool-use-on-oom") {
      allocator::setUseOnOOM(kDevice, id(), op.words.at(1) == "on");
    } else if (op.name == "pool-no-split") {
      allocator::setNoSplit(kDevice, id());
    } else {
      throw BadInput("there is no operation '" + op.name + "'");
    }
  }

  // A pool's layout, with the allocations that were live when it was saved.
  struct Checkpoint {
    std::shared_ptr<allocator::AllocatorState> state;
    std::unordered_map<void*, std::string> ids;
  };

  std::unordered_map<std::string, void*> live_;
  // The streams on which captures began and are not over, the newest last.
  std::vector<cudaStream_t> captured_;
  std::unordered_map<std::string, Checkpoint> checkpoints_;
  std::ofstream placements_;
  std::vector<std::vector<char>> litter_;
  uint64_t shuffle_;
  std::optional<history::Listing>& listing_;
  uint64_t ooms_ = 0;
};

using Report = std::map<std::string, int64_t>;

void add(Report& report, const std::string& name, const Stat& stat) {
  report[name + ".allocated"] = stat.allocated;
  report[name + ".current"] = stat.current;
  report[name + ".freed"] = stat.freed;
  report[name + ".peak"] = stat.peak;
}

void add(Report& report, const std::string& name, const StatArray& stats) {
  add(report, name + ".all", stats[static_cast<size_t>(StatType::AGGREGATE)]);
  add(report, name + ".small_pool", stats[static_cast<size_t>(StatType::SMALL_POOL)]);
  add(report, name + ".large_pool", stats[static_cast<size_t>(StatType::LARGE_POOL)]);
}

// Every statistic, the allocations that failed, and the device's calls.
Report report(uint64_t ooms) {
  Report report;
  auto stats = allocator::getDeviceStats(kDevice);
  add(report, "allocation", stats.allocation);
  add(report, "segment", stats.segment);
  add(report, "active", stats.active);
  add(report, "inactive_split", stats.inactive_split);
  add(report, "allocated_bytes", stats.allocated_bytes);
  add(report, "reserved_bytes", stats.reserved_bytes);
  add(report, "active_bytes", stats.active_bytes);
  add(report, "inactive_split_bytes", stats.inactive_split_bytes);
  add(report, "requested_bytes", stats.requested_bytes);
  add(report, "oversize_allocations", stats.oversize_allocations);
  add(report, "oversize_segments", stats.oversize_segments);
  report["num_alloc_retries"] = stats.num_alloc_retries;
  report["num_ooms"] = stats.num_ooms;
  report["num_sync_all_streams"] = stats.num_sync_all_streams;
  report["num_device_alloc"] = stats.num_device_alloc;
  report["num_device_free"] = stats.num_device_free;
  report["max_split_size"] = stats.max_split_size;
#if TORCH_VERSION_MINOR >= 12
  report["num_oom_rejections"] = stats.num_oom_rejections;
#endif
#if TORCH_VERSION_MINOR >= 13
  for (const auto& [pool, reserved] : stats.reserved_bytes_by_private_pools) {
    auto name = std::to_string(pool.first) + "_" + std::to_string(pool.second);
    add(report, "reserved_bytes_by_private_pools." + name, reserved);
  }
#endif
  LarderCallCounts calls{};
  larder_sim_calls(&calls);
  report["ooms"] = static_cast<int64_t>(ooms);
  report["device.used"] = static_cast<int64_t>(larder_sim_used());
  report["device.malloc"] = static_cast<int64_t>(calls.malloc);
  report["device.free"] = static_cast<int64_t>(calls.free);
  report["device.create"] = static_cast<int64_t>(calls.create);
  report["device.map"] = static_cast<int64_t>(calls.map);
  report["device.unmap"] = static_cast<int64_t>(calls.unmap);
  return report;
}

void print(const Report& report) {
  char separator = '{';
  for (const auto& [key, value] : report) {
    std::cout << separator << '"' << key << "\":" << value;
    separator = ',';
  }
  std::cout << "}\n";
}

// Whether the allocator's list of its segments has every byte that it says it holds, in pools that
// there are. PyTorch's has not where it deletes a private pool too soon: it counts a pool's memory
// up once for each request that maps pages and down once for each range of them that is unmapped.
void audit(const std::string& place, const std::set<uint64_t>& pools) {
  constexpr auto all = static_cast<size_t>(StatType::AGGREGATE);
  int64_t held = allocator::getDeviceStats(kDevice).reserved_bytes[all].current;
  int64_t listed = 0;
  for (const auto& segment : allocator::snapshot().segments) {
    listed += static_cast<int64_t>(segment.total_size);
    auto [owner, pool] = segment.owner_private_pool_id;
    if (owner != 0 || pools.count(pool) == 0) {
      throw GaveUp(place + "a segment lies in a pool that was deleted");
    }
  }
  if (listed != held) {
    throw GaveUp(
        place + "it holds " + std::to_string(held) + " bytes and lists " + std::to_string(listed));
  }
}

void replay(
    const std::string& path,
    std::optional<std::string> placements,
    uint64_t shuffle,
    bool is_audited,
    std::optional<history::Listing> listing) {
  auto ops = script::read(path);
  Replay replay(std::move(placements), shuffle, listing);
  // The default pool has the number 0.
  std::set<uint64_t> pools{0};
  for (size_t index = 0; index < ops.size(); ++index) {
    auto place = "operation " + std::to_string(index + 1) + ": ";
    try {
      if (listing) {
        listing->before(index + 1);
      }
      replay.step(ops[index]);
      if (ops[index].name.rfind("pool-", 0) == 0) {
        pools.insert(ops[index].number(0));
      }
      if (is_audited) {
        audit(place, pools);
      }
    } catch (const c10::Error& error) {
      throw GaveUp(place + error.what_without_backtrace());
    }
  }
  auto counted = report(replay.ooms());
  if (listing) {
    listing->finish();
  }
  print(counted);
}

// The value behind an option, if the option is there.
std::optional<std::string> option(const std::vector<std::string>& words, const std::string& name) {
  auto found = std::find(words.begin(), words.end(), name);
  if (found == words.end() || found + 1 == words.end()) {
    return std::nullopt;
  }
  return *(found + 1);
}

// The listing of the history, if one is asked for.
std::optional<history::Listing> listing(const std::vector<std::string>& words) {
  auto path = option(words, "--history");
  if (!path) {
    return std::nullopt;
  }
  history::Wishes wishes;
  wishes.level = history::level_of(option(words, "--level").value_or("never"));
  if (auto max = option(words, "--max-entries")) {
    wishes.max_entries = std::stoull(*max);
  }
  std::istringstream skip(option(words, "--skip").value_or(""));
  for (std::string action; std::getline(skip, action, ',');) {
    wishes.skip.push_back(action);
  }
  return std::optional<history::Listing>(std::in_place, *path, wishes);
}

// Puts Larder in the place of PyTorch's allocator, behind the same interface and on the same
// device.
void install(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw BadInput(dlerror());
  }
  auto function = [&](const char* name) {
    void* found = dlsym(library, name);
    return found != nullptr ? found : throw BadInput(path + ": there is no function " + name);
  };
  larder_sim_offer();
  setenv("LARDER_DEVICE", "process", 1);
  auto* put_in = reinterpret_cast<int (*)(const char*)>(function("larder_torch_install"));
  auto* reason = reinterpret_cast<const char* (*)()>(function("larder_torch_last_error"));
  // That of this very PyTorch.
  if (put_in("policy:torch") != 0) {
    throw BadInput(path + ": " + reason());
  }
}

int run(const std::vector<std::string>& words) {
  if (words.size() < 2 || (words[0] != "replay" && words[0] != "bench")) {
    std::cerr << "usage: judge replay FILE.ops [--placements OUT] [--shuffle SEED] [--audit]\n"
                 "                             [--history OUT] [--level never|state|alloc|all]\n"
                 "                             [--max-entries N] [--skip ACTION,…]\n"
                 "       judge bench FILE.ops [--repeat N] [--threads T] [--history N]\n"
                 "                            [--between KIB]\n"
                 "both:  [--backend LIBRARY]\n";
    return 2;
  }
  if (auto backend = option(words, "--backend")) {
    install(*backend);
  }
  // The allocator asks whether somebody uses the device before it answers for it.
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  allocator::init(1);
  c10::cuda::detail::init_p2p_access_cache(1);
  if (words[0] == "replay") {
    // A script takes a fraction of a second. PyTorch's sets of blocks can come out of order, and
    // then it searches one of them for ever.
    alarm(60);
    uint64_t shuffle = std::stoull(option(words, "--shuffle").value_or("0"));
    bool is_audited = std::find(words.begin(), words.end(), "--audit") != words.end();
    replay(words[1], option(words, "--placements"), shuffle, is_audited, listing(words));
  } else {
    uint64_t repeat = std::stoull(option(words, "--repeat").value_or("10"));
    if (auto entries = option(words, "--history")) {
      auto never = c10::CachingDeviceAllocator::RecordContext::NEVER;
      allocator::recordHistory(true, nullptr, std::stoull(*entries), never, true, {});
    }
    uint64_t threads = std::stoull(option(words, "--threads").value_or("1"));
    uint64_t between_bytes = std::stoull(option(words, "--between").value_or("0")) << 10;
    bench::run(words[1], repeat, threads, between_bytes);
  }
  std::cout.flush();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int code = run(std::vector<std::string>(argv + 1, argv + argc));
    // The allocator's own end would free block by block on a device that is going away as well.
    std::_Exit(code);
  } catch (const GaveUp& error) {
    std::cerr << "judge: " << error.what() << '\n';
    return 3;
  } catch (const c10::Error& error) {
    std::cerr << "judge: " << error.what_without_backtrace() << '\n';
    return 3;
  } catch (const std::exception& error) {
    std::cerr << "judge: " << error.what() << '\n';
    return 1;
  }
}
