// What the allocator remembers of a script, as lines of text: the history, and the state at the
// end. `larder replay --history` writes the same lines.
//
// A script says nothing of contexts, remarks or snapshots, so both sides make them up alike: the
// context of an event is the number of the operation, and the numbers also say when a remark
// changes, when something is compiled, when a snapshot is taken and when an annotation begins.

#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

namespace history {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::AnnotationEntry;
using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::SegmentInfo;
using c10::CachingDeviceAllocator::TraceEntry;

// The number of an operation, counted from 1.
struct Operation : c10::GatheredContext {
  explicit Operation(uint64_t number) : number(number) {}
  uint64_t number;
};

inline uint64_t current_operation = 0;

inline std::shared_ptr<c10::GatheredContext> gather() {
  return std::make_shared<Operation>(current_operation);
}

// What is remembered.
struct Wishes {
  RecordContext level = RecordContext::NEVER;
  size_t max_entries = SIZE_MAX;
  std::vector<std::string> skip;
};

inline RecordContext level_of(const std::string& name) {
  const std::map<std::string, RecordContext> levels{
      {"never", RecordContext::NEVER},
      {"state", RecordContext::STATE},
      {"alloc", RecordContext::ALLOC},
      {"all", RecordContext::ALL},
  };
  return levels.at(name);
}

// Everything that trackers were told, as one number and how often.
struct Tracked {
  uint64_t count = 0;
  uint64_t sum = 0;

  void add(uint64_t number) {
    sum = (sum ^ number) * 0x100000001b3;
  }

  void operator()(const TraceEntry& entry) {
    count += 1;
    add(static_cast<uint64_t>(entry.action_));
    add(entry.addr_);
    add(entry.size_);
  }
};

class Listing {
 public:
  // How many private pools a script may have.
  static constexpr uint64_t kPools = 8;

  Listing(const std::string& path, const Wishes& wishes) : file_(path) {
    if (!file_) {
      throw std::runtime_error(path + ": the file cannot be written");
    }
    auto hook = wishes.level == RecordContext::NEVER ? nullptr : gather;
    allocator::recordHistory(true, hook, wishes.max_entries, wishes.level, true, wishes.skip);
    auto tracked = tracked_;
    allocator::attachAllocatorTraceTracker([=](const TraceEntry& entry) { (*tracked)(entry); });
  }

  void know(void* stream, uint64_t number) {
    streams_[stream] = number;
  }

  // What goes on beside the operation of this number.
  void before(uint64_t number) {
    current_operation = number;
    if (number % 16 == 0) {
      allocator::setUserMetadata("part " + std::to_string(number / 16));
    }
    if (number % 10 == 3) {
      std::string name = "graph " + std::to_string(number);
      allocator::pushCompileContext(name);
    } else if (number % 10 == 7) {
      allocator::popCompileContext();
    }
    if (number % 32 == 0) {
      std::string name = "step " + std::to_string(number / 64);
      std::string stage = number % 64 == 0 ? "START" : "END";
      allocator::recordAnnotation({{"name", name}, {"stage", stage}});
    }
    if (number % 100 == 50) {
      annotations_without_traces_ += allocator::snapshot({0, 0}, false).external_annotations.size();
    }
  }

  // Writes everything down.
  void finish() {
    auto all = allocator::snapshot({0, 0}, true);
    for (const TraceEntry& entry : all.device_traces.at(0)) {
      line(entry);
    }
    file_ << "annotations without traces " << annotations_without_traces_ << '\n';
    for (const AnnotationEntry& entry : all.external_annotations) {
      file_ << "annotation " << entry.metadata_.at("stage") << ' ' << entry.metadata_.at("name")
            << '\n';
    }
    lines(all.segments);
    for (uint64_t pool = 1; pool <= kPools; ++pool) {
      file_ << "pool " << pool << '\n';
      lines(allocator::snapshot({0, pool}, false).segments);
    }
    file_ << "tracked " << tracked_->count << ' ' << tracked_->sum << '\n';
    settings(all.config_metadata);
    file_.flush();
  }

 private:
  static const char* name(TraceEntry::Action action) {
    switch (action) {
      case TraceEntry::ALLOC:
        return "alloc";
      case TraceEntry::FREE_REQUESTED:
        return "free_requested";
      case TraceEntry::FREE_COMPLETED:
        return "free_completed";
      case TraceEntry::SEGMENT_ALLOC:
        return "segment_alloc";
      case TraceEntry::SEGMENT_FREE:
        return "segment_free";
      case TraceEntry::SEGMENT_MAP:
        return "segment_map";
      case TraceEntry::SEGMENT_UNMAP:
        return "segment_unmap";
      case TraceEntry::SNAPSHOT:
        return "snapshot";
      case TraceEntry::OOM:
        return "oom";
#if TORCH_VERSION_MINOR >= 14
      case TraceEntry::ANNOTATE:
        return "annotate";
#endif
    }
    return "unknown";
  }

  static std::string context(const std::shared_ptr<c10::GatheredContext>& context) {
    auto* operation = dynamic_cast<Operation*>(context.get());
    return operation == nullptr ? "-" : std::to_string(operation->number);
  }

  static std::string pool(const c10::MempoolId_t& id) {
    return std::to_string(id.first) + "," + std::to_string(id.second);
  }

  std::string stream(void* handle) const {
    auto found = streams_.find(handle);
    if (handle == nullptr) {
      return "0";
    }
    return found == streams_.end() ? "?" : std::to_string(found->second);
  }

  void line(const TraceEntry& entry) {
    file_ << name(entry.action_) << ' ' << entry.addr_ << ' ' << entry.size_ << ' '
          << stream(entry.stream_) << ' ' << pool(entry.mempool_) << ' ' << context(entry.context_)
          << " [" << entry.compile_context_ << "] [" << entry.user_metadata_ << "]\n";
  }

  void lines(const std::vector<SegmentInfo>& segments) {
    for (const SegmentInfo& segment : segments) {
      file_ << "segment " << segment.address << ' ' << segment.total_size << ' '
            << segment.allocated_size << ' ' << segment.active_size << ' ' << segment.requested_size
            << ' ' << stream(segment.stream) << ' ' << (segment.is_large ? "large" : "small") << ' '
            << pool(segment.owner_private_pool_id) << ' '
            << (segment.is_expandable ? "expandable" : "fixed") << ' '
            << context(segment.context_when_allocated) << '\n';
      size_t address = segment.address;
      for (const BlockInfo& block : segment.blocks) {
        const char* state = block.allocated ? "active_allocated"
                            : block.active  ? "active_pending_free"
                                            : "inactive";
        file_ << "block " << address << ' ' << block.size << ' ' << block.requested_size << ' '
              << state << ' ' << context(block.context_when_allocated) << '\n';
        address += block.size;
      }
    }
  }

  void settings(const allocator::AllocatorConfigInfo& config) {
    file_ << "setting PYTORCH_CUDA_ALLOC_CONF " << config.last_allocator_settings << '\n'
          << "setting max_split_size " << static_cast<int64_t>(config.max_split_size) << '\n'
          << "setting garbage_collection_threshold " << config.garbage_collection_threshold << '\n'
          << "setting expandable_segments " << config.expandable_segments << '\n'
          << "setting pinned_num_register_threads " << config.pinned_num_register_threads << '\n'
          << "setting release_lock_on_cudamalloc " << config.release_lock_on_malloc << '\n'
          << "setting pinned_use_cuda_host_register " << config.pinned_use_host_register << '\n'
          << "setting graph_capture_record_stream_reuse "
          << config.graph_capture_record_stream_reuse << '\n'
          << "setting roundup_power2_divisions";
    for (size_t divisions : config.roundup_power2_divisions) {
      file_ << ' ' << divisions;
    }
    file_ << '\n';
#if TORCH_VERSION_MINOR >= 13
    file_ << "setting max_round_threshold " << static_cast<int64_t>(config.max_round_threshold)
          << '\n'
          << "setting max_cached_size " << static_cast<int64_t>(config.max_cached_size) << '\n';
#endif
  }

  std::ofstream file_;
  // How many annotations the snapshots showed that were asked for without the history.
  uint64_t annotations_without_traces_ = 0;
  std::map<void*, uint64_t> streams_;
  std::shared_ptr<Tracked> tracked_ = std::make_shared<Tracked>();
};

}  // namespace history
