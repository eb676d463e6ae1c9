// What a dry run knows of the values in small tensors: each operator on such tensors is run once
// more, by the CPU, on the bytes that stand behind the simulated card's addresses.
//
// It is a boxed fallback under a dispatch key that PyTorch leaves to others, below autograd, and is
// on in the threads that were told so. The operator itself runs first, as it would on a card, so
// that its requests of memory are the same ones; its kernels do nothing. If all that it reads is
// known and small, the CPU's results are put where its own would be, and are known from then on;
// otherwise what it writes is not known any more. Reads of what is not known are asked about
// (`on_read`), and never answered by a silent zero.

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/library.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

// The simulated cards' library, which was loaded before all others.
extern "C" {
using Reader = int (*)(std::uint64_t to, std::uint64_t from, std::uint64_t size);
void larder_dry_on_read(Reader reader);
void larder_dry_learn(std::uint64_t place, std::uint64_t size);
void larder_dry_forget(std::uint64_t place, std::uint64_t size);
int larder_dry_is_known(std::uint64_t place, std::uint64_t size);
int larder_dry_is_capturing();
}

namespace {

using c10::DispatchKey;
using c10::IValue;
using Stack = torch::jit::Stack;

constexpr auto KEY = DispatchKey::Fake;
constexpr std::uint64_t KEPT_BYTES = 256 << 10;

// What a program that reads unknown data is answered: by the function of Python's that knows its
// line. Kinds are those below. It answers whether the program goes on, and with which value.
enum Kind : int { FLOAT = 0, INTEGER = 1, BOOL = 2, COUNT = 3, OTHER = 4 };
using Asked = int (*)(const char* op, int kind, std::uint64_t elements, double* value);
Asked asked = nullptr;

// What a thread is doing.
struct Doing {
  std::string op;
  c10::ScalarType type = c10::ScalarType::Undefined;
  // What a count that the operator reads is to be, because it is known or assumed.
  std::optional<std::int64_t> count;
  // All that it reads is known, and what its kernels did not compute is put right afterwards.
  bool is_known = false;
  // An operator within it has taken care of what is written.
  bool wrote = false;
  bool stopped = false;
};
thread_local Doing* doing = nullptr;

Kind kind_of(c10::ScalarType type) {
  if (c10::isFloatingType(type)) {
    return FLOAT;
  }
  return type == c10::ScalarType::Bool ? BOOL : c10::isIntegralType(type, false) ? INTEGER : OTHER;
}

template <typename T>
void fill(std::uint64_t to, std::uint64_t count, T value) {
  auto* place = reinterpret_cast<T*>(to);
  std::fill(place, place + count, value);
}

// Writes the value that a read is answered with, as the type has it.
bool write_value(c10::ScalarType type, std::uint64_t to, std::uint64_t count, double value) {
  switch (type) {
#define CASE(cpp, name)                            \
  case c10::ScalarType::name:                      \
    fill<cpp>(to, count, static_cast<cpp>(value)); \
    return true;
    AT_FORALL_SCALAR_TYPES_AND3(Half, BFloat16, Bool, CASE)
#undef CASE
    default:
      return false;
  }
}

// Operators that hand data to the host and do nothing else.
bool is_plain_read(const std::string& op) {
  return op == "aten::_local_scalar_dense" || op == "aten::copy_" || op == "aten::_to_copy";
}

int on_read(std::uint64_t to, std::uint64_t, std::uint64_t size) {
  if (doing != nullptr && doing->count) {
    if (size == 4) {
      fill<std::int32_t>(to, 1, static_cast<std::int32_t>(*doing->count));
    } else {
      std::memset(reinterpret_cast<void*>(to), 0, size);
      std::memcpy(reinterpret_cast<void*>(to), &*doing->count, std::min<std::uint64_t>(size, 8));
    }
    return 0;
  }
  if (doing != nullptr && doing->is_known) {
    std::memset(reinterpret_cast<void*>(to), 0, size);
    return 0;
  }
  const char* op = doing == nullptr ? "a copy" : doing->op.c_str();
  bool is_plain = doing != nullptr && is_plain_read(doing->op);
  auto type = is_plain ? doing->type : c10::ScalarType::Undefined;
  auto count = is_plain ? size / c10::elementSize(type) : 0;
  double value = 0;
  if (asked != nullptr && asked(op, is_plain ? kind_of(type) : OTHER, count, &value) != 0 &&
      is_plain && write_value(type, to, count, value)) {
    return 0;
  }
  if (doing != nullptr) {
    doing->stopped = true;
  }
  return 1;
}

// Tensors.

bool is_on_card(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

// Tensors of another kind than the plain one are made of others, which come by themselves.
bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.unsafeGetTensorImpl()->is_python_dispatch() &&
         tensor.has_storage() && !tensor.is_conj() && !tensor.is_neg();
}

struct Bytes {
  std::uint64_t place = 0, size = 0;
};

// From the first to the last byte of a tensor, and what lies between.
Bytes bytes_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return {};
  }
  std::uint64_t last = 0;
  for (std::int64_t at = 0; at < tensor.dim(); ++at) {
    last += static_cast<std::uint64_t>((tensor.size(at) - 1) * tensor.stride(at));
  }
  auto place = reinterpret_cast<std::uint64_t>(tensor.const_data_ptr());
  return {place, (last + 1) * tensor.element_size()};
}

bool is_small(const at::Tensor& tensor) {
  return bytes_of(tensor).size <= KEPT_BYTES && tensor.nbytes() <= KEPT_BYTES;
}

bool is_known(const at::Tensor& tensor) {
  auto [place, size] = bytes_of(tensor);
  return size == 0 || larder_dry_is_known(place, size) != 0;
}

// The tensor as one of the CPU's, in the same memory.
at::Tensor as_cpu(const at::Tensor& tensor) {
  return at::from_blob(
      const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
      tensor.options().device(c10::kCPU));
}

void forget(const at::Tensor& tensor) {
  if (is_on_card(tensor) && is_plain(tensor)) {
    auto [place, size] = bytes_of(tensor);
    larder_dry_forget(place, size);
  }
}

// Puts a result of the CPU's where the operator's own is.
void put(const at::Tensor& tensor, const at::Tensor& result) {
  if (!is_on_card(tensor) || !is_plain(tensor)) {
    return;
  }
  if (!is_small(tensor) || !result.defined() || tensor.sizes() != result.sizes()) {
    forget(tensor);
    return;
  }
  as_cpu(tensor).copy_(result);
  auto [place, size] = bytes_of(tensor);
  larder_dry_learn(place, size);
}

// Calls for each tensor of a value, which may be a list.
template <typename Act>
void each_tensor(const IValue& value, Act act) {
  if (value.isTensor()) {
    act(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      act(tensor);
    }
  } else if (value.isList()) {
    for (const IValue& one : value.toListRef()) {
      each_tensor(one, act);
    }
  }
}

// A value with tensors of the CPU's in place of the card's.
IValue on_cpu(const IValue& value) {
  auto moved = [](const at::Tensor& tensor) {
    return is_on_card(tensor) ? as_cpu(tensor).clone() : tensor;
  };
  if (value.isTensor()) {
    return moved(value.toTensor());
  }
  if (value.isTensorList()) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) {
      tensors.push_back(moved(tensor));
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      tensors.push_back(tensor ? std::optional(moved(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  if (value.isDevice()) {
    return value.toDevice().is_cuda() ? c10::Device(c10::kCPU) : value;
  }
  return value;
}

// Operators.

// Those that read nothing of what they write.
bool overwrites(const std::string& op) {
  static const std::unordered_set<std::string> known{
      "aten::fill_", "aten::zero_", "aten::copy_", "aten::set_", "aten::resize_"};
  return known.count(op) != 0;
}

// Those that read how many results there are, and make so many.
bool counts(const std::string& op) {
  static const std::unordered_set<std::string> known{
      "aten::nonzero", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"};
  return known.count(op) != 0;
}

// Whether data is taken for finite numbers where it is not known: a finite number is not infinite.
std::optional<bool> of_finite(const std::string& op) {
  if (op == "aten::isnan" || op == "aten::isinf") {
    return false;
  }
  return std::nullopt;
}

// What is known of an operator and what it was called with.
struct Call {
  const c10::OperatorHandle& op;
  std::string name;
  // For each argument, whether it is written, and whether it is read.
  std::vector<bool> writes, reads;
  bool has_card = false, is_view = false, is_plain_call = true, is_known = true, is_random = false;
  c10::ScalarType type = c10::ScalarType::Undefined;

  Call(const c10::OperatorHandle& op, const Stack& stack) : op(op), name(op.operator_name().name) {
    const auto& schema = op.schema();
    for (const auto& result : schema.returns()) {
      const auto* how = result.alias_info();
      is_view |= how != nullptr && !how->isWrite();
    }
    is_random = op.hasTag(at::Tag::nondeterministic_seeded);
    auto count = schema.arguments().size();
    for (size_t at = 0; at < count; ++at) {
      const auto& argument = schema.arguments()[at];
      const auto* how = argument.alias_info();
      bool is_written = how != nullptr && how->isWrite();
      bool is_out = is_written && argument.kwarg_only();
      bool is_read = !is_out && !(is_written && at == 0 && overwrites(name));
      writes.push_back(is_written);
      reads.push_back(is_read);
      const auto& value = torch::jit::peek(stack, at, count);
      is_known &= !value.isGenerator();
      each_tensor(value, [&](const at::Tensor& tensor) {
        if (!is_on_card(tensor)) {
          is_known &= !tensor.defined() || tensor.nbytes() <= KEPT_BYTES;
          return;
        }
        has_card = true;
        if (!is_plain(tensor)) {
          is_plain_call = false;
          return;
        }
        if (type == c10::ScalarType::Undefined) {
          type = tensor.scalar_type();
        }
        is_known = is_known && is_small(tensor) && (!is_read || ::is_known(tensor));
      });
    }
    // What it is read as is the type of what is read.
    if (name == "aten::copy_") {
      type = torch::jit::peek(stack, 1, count).toTensor().scalar_type();
    }
  }
};

struct DoingGuard {
  Doing own;
  Doing* before;
  DoingGuard() : before(doing) {
    doing = &own;
  }
  ~DoingGuard() {
    doing = before;
    if (before != nullptr) {
      before->wrote |= own.wrote;
      before->stopped |= own.stopped;
    }
  }
};

// Runs the operator on the CPU's copies of what it was called with, which are then its results too.
Stack run_on_cpu(const c10::OperatorHandle& op, Stack& arguments) {
  c10::impl::ExcludeDispatchKeyGuard without(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet(KEY));
  Stack stack = arguments;
  op.callBoxed(stack);
  return stack;
}

// A count that is known or assumed, of an operator that makes as many results.
std::optional<std::int64_t> counted(Call& call, const Stack& arguments, const Stack& results) {
  if (call.is_known && !results.empty()) {
    return results[0].toTensor().size(0);
  }
  double share = 0;
  auto elements = static_cast<std::uint64_t>(arguments[0].toTensor().numel());
  if (asked != nullptr && asked(call.name.c_str(), COUNT, elements, &share) != 0) {
    return std::llround(share * static_cast<double>(elements));
  }
  return std::nullopt;
}

[[noreturn]] void stop(const std::string& name) {
  // The sentence is Python's, which knows the line: larder.dryrun puts it in place of this one.
  TORCH_CHECK(false, "larder.dryrun: ", name, " reads data that nobody computed");
}

void act(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
  if (c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    op.redispatchBoxed(below, stack);
    return;
  }
  Call call(op, *stack);
  if (!call.has_card || !call.is_plain_call || call.is_view) {
    op.redispatchBoxed(below, stack);
    return;
  }
  auto count = op.schema().arguments().size();
  // Under a capture nothing runs, and at its replays nobody asks.
  call.is_known = call.is_known && !call.is_random && larder_dry_is_capturing() == 0;
  auto arguments = torch::jit::last(*stack, count).vec();
  Stack copies, results;
  if (call.is_known) {
    for (const IValue& argument : arguments) {
      copies.push_back(on_cpu(argument));
    }
  }
  DoingGuard guard;
  guard.own.op = call.name;
  guard.own.type = call.type;
  if (counts(call.name)) {
    if (call.is_known) {
      results = run_on_cpu(op, copies);
    }
    guard.own.count = counted(call, arguments, results);
    if (!guard.own.count) {
      guard.own.stopped = true;
      stop(call.name);
    }
  }
  guard.own.is_known = call.is_known && !is_plain_read(call.name);
  try {
    op.redispatchBoxed(below, stack);
  } catch (const std::exception&) {
    if (guard.own.stopped) {
      stop(call.name);
    }
    throw;
  }
  auto made = torch::jit::last(*stack, op.schema().returns().size());
  auto is_large = false;
  for (const IValue& value : made) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      is_large |= is_on_card(tensor) && is_plain(tensor) && !is_small(tensor);
    });
  }
  if (call.is_known && !is_large) {
    try {
      if (results.empty()) {
        results = run_on_cpu(op, copies);
      }
    } catch (const std::exception&) {
      // The CPU cannot do this: then nobody knows what comes of it.
      call.is_known = false;
    }
  }
  if (call.is_known && !is_large) {
    for (size_t at = 0; at < made.size() && at < results.size(); ++at) {
      const IValue &own = made[at], &result = results[at];
      if (own.isTensor() && result.isTensor()) {
        put(own.toTensor(), result.toTensor());
      } else if (own.isTensorList() && result.isTensorList()) {
        auto to = own.toTensorList(), from = result.toTensorList();
        for (size_t one = 0; one < to.size() && one < from.size(); ++one) {
          put(to.get(one), from.get(one));
        }
      } else if (!own.isTensor() && !own.isTensorList()) {
        stack->at(stack->size() - made.size() + at) = result;
      }
    }
    for (size_t at = 0; at < count; ++at) {
      if (call.writes[at] && arguments[at].isTensorList()) {
        auto to = arguments[at].toTensorList(), from = copies[at].toTensorList();
        for (size_t one = 0; one < to.size(); ++one) {
          put(to.get(one), from.get(one));
        }
      } else if (call.writes[at] && arguments[at].isTensor()) {
        put(arguments[at].toTensor(), copies[at].toTensor());
      }
    }
    guard.own.wrote = true;
    return;
  }
  if (auto answer = of_finite(call.name); answer && made[0].isTensor()) {
    const auto& tensor = made[0].toTensor();
    if (is_on_card(tensor) && is_plain(tensor) && is_small(tensor)) {
      put(tensor, at::full(tensor.sizes(), *answer, at::kBool));
      return;
    }
  }
  // GradScaler's flag stays what it was: data is taken for finite numbers.
  if (call.name == "aten::_amp_foreach_non_finite_check_and_unscale_") {
    for (const at::Tensor& tensor : arguments[0].toTensorList()) {
      forget(tensor);
    }
    guard.own.wrote = true;
    return;
  }
  if (!guard.own.wrote) {
    for (size_t at = 0; at < count; ++at) {
      if (call.writes[at]) {
        each_tensor(arguments[at], forget);
        guard.own.wrote = true;
      }
    }
  }
}

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&act>());
}

}  // namespace

extern "C" {

// Who is asked about reads. New memory is not known from then on.
__attribute__((visibility("default"))) void larder_dry_begin(Asked who) {
  asked = who;
  larder_dry_on_read(on_read);
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
    if (entry.action_ == TraceEntry::ALLOC) {
      larder_dry_forget(static_cast<std::uint64_t>(entry.addr_), entry.size_);
    }
  });
}

// From now on this thread, and all that run backward passes for it, know values, or not.
__attribute__((visibility("default"))) void larder_dry_enter(int on) {
  c10::impl::tls_set_dispatch_key_included(KEY, on != 0);
}

}  // extern "C"
