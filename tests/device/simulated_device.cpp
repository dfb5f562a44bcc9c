// A simulated accelerator, registered with torch as its PrivateUse1 backend: two devices that use the CPU's kernels.
//
// Memory is mapped twice. Tensors show the first mapping, which no one may read or write, so that code which takes a
// device address for a host address dies on the spot. Kernels use the second mapping of the same pages.
//
// Every op arrives in `run_op`, boxed: its tensors are replaced by CPU tensors on the second mapping, and its CPU
// kernel is called. In the asynchronous modes that happens on a worker thread, in order, and the shapes of the results
// come from the meta kernel. All devices and streams share the worker, so that freed memory can be reused at once.
//
// The functions at the end are what Python calls, through ctypes (simulated_device.py).

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pthread.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;
using c10::kPrivateUse1;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr DeviceIndex kDevices = 2;
constexpr size_t kBytesPerDevice = size_t{1} << 35;  // addresses; pages are taken when they are written
constexpr size_t kGranule = 512;

bool has_fp64 = true;
bool in_forked_child = false;
thread_local DeviceIndex current_device = 0;
thread_local c10::StreamId current_streams[kDevices] = {};

void check_usable() {
  TORCH_CHECK(!in_forked_child, "the simulated device cannot be used in a forked child process");
}

// -- what happened, for Python to count -------------------------------------------------------------------------------

using Listener = void (*)(const char* kind, const char* name, int64_t bytes);
std::atomic<Listener> listener{nullptr};

void report(const char* kind, const std::string& name, int64_t bytes = 0) {
  if (auto hear = listener.load()) hear(kind, name.c_str(), bytes);
}

// -- the worker -------------------------------------------------------------------------------------------------------

enum class Execution { at_once, on_worker, when_waited_for };

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  std::vector<std::function<void()>> done;  // destroyed by the host: what they hold may belong to Python
  Execution execution = Execution::at_once;
  uint64_t submitted = 0, completed = 0;
  int waiting = 0;
  bool started = false;
  std::exception_ptr failure;

  void submit(std::function<void()> task) {
    check_usable();
    if (execution == Execution::at_once) return task();
    std::vector<std::function<void()>> finished;
    std::lock_guard lock(mutex);
    if (!std::exchange(started, true)) std::thread([this] { serve(); }).detach();
    finished.swap(done);
    work.push_back(std::move(task));
    ++submitted;
    changed.notify_all();
  }

  void wait(uint64_t until) {
    check_usable();
    std::vector<std::function<void()>> finished;
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [&] { return completed >= until; });
    --waiting;
    finished.swap(done);
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !work.empty() && (execution != Execution::when_waited_for || waiting); });
      auto task = std::move(work.front());
      work.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        task();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (error && !failure) failure = error;
      done.push_back(std::move(task));
      ++completed;
      changed.notify_all();
    }
  }
};

Queue& queue() {
  static auto* queue = new Queue;  // never destroyed: the worker outlives everything
  return *queue;
}

void wait_for_device(const std::string& why) {
  report("wait", why);
  queue().wait(queue().submitted);
}

// -- memory -----------------------------------------------------------------------------------------------------------

struct Block {
  char* address;
  size_t bytes, requested;
};

struct Memory final : c10::DeviceAllocator {
  char* shown;  // what tensors point to
  char* real;   // the same pages, for kernels
  std::mutex mutex;
  size_t next[kDevices] = {}, used[kDevices] = {}, peak[kDevices] = {};
  std::multimap<size_t, char*> free_blocks[kDevices];

  Memory() {
    int file = memfd_create("simulated device", MFD_CLOEXEC);
    size_t bytes = kBytesPerDevice * kDevices;
    TORCH_CHECK(file >= 0 && ftruncate(file, bytes) == 0, "no memory for the simulated device");
    auto map = [&](int rights) {
      return static_cast<char*>(mmap(nullptr, bytes, rights, MAP_SHARED | MAP_NORESERVE, file, 0));
    };
    shown = map(PROT_NONE);
    real = map(PROT_READ | PROT_WRITE);
    TORCH_CHECK(shown != MAP_FAILED && real != MAP_FAILED, "no memory for the simulated device");
    pthread_atfork(nullptr, nullptr, [] { in_forked_child = true; });
  }

  bool holds(const void* p) const { return p >= shown && p < shown + kBytesPerDevice * kDevices; }
  DeviceIndex device_of(const void* p) const { return (static_cast<const char*>(p) - shown) / kBytesPerDevice; }
  char* host_address(const void* p) const { return p ? real + (static_cast<const char*>(p) - shown) : nullptr; }

  c10::DataPtr allocate(size_t requested) override {
    check_usable();
    Device device(kPrivateUse1, current_device);
    if (!requested) return {nullptr, nullptr, &release, device};
    size_t bytes = (requested + kGranule - 1) / kGranule * kGranule;
    std::lock_guard lock(mutex);
    auto& blocks = free_blocks[current_device];
    auto block = blocks.lower_bound(bytes);
    char* address;
    if (block != blocks.end() && block->first <= 2 * bytes) {
      bytes = block->first;
      address = block->second;
      blocks.erase(block);
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, next[current_device] + bytes <= kBytesPerDevice, "the device is full");
      address = shown + current_device * kBytesPerDevice + next[current_device];
      next[current_device] += bytes;
    }
    used[current_device] += requested;
    peak[current_device] = std::max(peak[current_device], used[current_device]);
    return {address, new Block{address, bytes, requested}, &release, device};
  }

  static void release(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (block) get().give_back(*block);
  }

  void give_back(const Block& block) {
    std::lock_guard lock(mutex);
    auto device = device_of(block.address);
    used[device] -= block.requested;
    free_blocks[device].emplace(block.bytes, block.address);
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    queue().submit([=, this] { std::memcpy(host_address(to), host_address(from), bytes); });
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    std::lock_guard lock(mutex);
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto* bytes : {&stats.allocated_bytes[0], &stats.reserved_bytes[0]}) {
      bytes->current = used[device];
      bytes->peak = peak[device];
    }
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override { peak[device] = used[device]; }

  static Memory& get() {
    static auto* memory = new Memory;
    return *memory;
  }
};

// Pinned memory is ordinary memory that is remembered: a copy from or to it does not wait.
struct PinnedMemory final : c10::Allocator {
  std::mutex mutex;
  std::map<const char*, size_t> blocks;

  c10::DataPtr allocate(size_t bytes) override {
    auto* address = static_cast<char*>(std::malloc(std::max<size_t>(bytes, 1)));
    std::lock_guard lock(mutex);
    blocks[address] = bytes;
    return {address, address, &release, Device(c10::kCPU)};
  }
  static void release(void* address) {
    {
      std::lock_guard lock(get().mutex);
      get().blocks.erase(static_cast<char*>(address));
    }
    std::free(address);
  }
  bool holds(const void* p) {
    std::lock_guard lock(mutex);
    auto after = blocks.upper_bound(static_cast<const char*>(p));
    return after != blocks.begin() && p < std::prev(after)->first + std::max<size_t>(std::prev(after)->second, 1);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  static PinnedMemory& get() {
    static auto* memory = new PinnedMemory;
    return *memory;
  }
};

Device device_or_current(std::optional<Device> device) {
  auto index = device && device->has_index() ? device->index() : current_device;
  TORCH_CHECK(index >= 0 && index < kDevices, "there is no simulated device ", int(index));
  return {kPrivateUse1, index};
}

struct OnDevice {
  explicit OnDevice(Device device) : before(current_device) { current_device = device.index(); }
  ~OnDevice() { current_device = before; }
  DeviceIndex before;
};

Tensor make_empty(c10::IntArrayRef size, at::ScalarType dtype, Device device, std::optional<c10::IntArrayRef> stride,
                  std::optional<c10::MemoryFormat> format = {}) {
  TORCH_CHECK_TYPE(has_fp64 || (dtype != at::kDouble && dtype != at::kComplexDouble),
                   "the simulated device has no ", dtype);
  OnDevice on(device);
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  if (stride) return at::detail::empty_strided_generic(size, *stride, &Memory::get(), keys, dtype);
  return at::detail::empty_generic(size, &Memory::get(), keys, dtype, format);
}

bool is_on_device(const Tensor& x) { return x.defined() && x.device().type() == kPrivateUse1; }

/** The same elements as a CPU tensor, for kernels only. */
Tensor host_alias(const Tensor& x) {
  auto alias = at::from_blob(Memory::get().host_address(x.data_ptr()), x.sizes(), x.strides(),
                             at::TensorOptions().dtype(x.scalar_type()));
  if (x.is_conj()) alias = alias.conj();
  if (x.is_neg()) alias = alias._neg_view();
  return alias;
}

// -- random numbers ---------------------------------------------------------------------------------------------------

// A seed and a counter of kernels, both on the host: a kernel gets a CPU generator made of the two.
struct Generator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::detail::getNonDeterministicRandom(), offset_ = 0;

  explicit Generator(DeviceIndex device)
      : GeneratorImpl(Device(kPrivateUse1, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16 && state.device().is_cpu(), "not a state of a simulated device's generator");
    auto* numbers = static_cast<const uint64_t*>(state.data());
    seed_ = numbers[0];
    offset_ = numbers[1];
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte));
    auto* numbers = static_cast<uint64_t*>(state.data_ptr());
    numbers[0] = seed_;
    numbers[1] = offset_;
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  static c10::DeviceType device_type() { return kPrivateUse1; }

  at::Generator next() {
    std::lock_guard lock(mutex_);
    return at::detail::createCPUGenerator(seed_ * 0x9E3779B97F4A7C15ull + ++offset_);
  }
};

at::Generator& default_generator(DeviceIndex device) {
  static auto* generators = new std::array<at::Generator, kDevices>{at::make_generator<Generator>(DeviceIndex(0)),
                                                                     at::make_generator<Generator>(DeviceIndex(1))};
  return (*generators)[device < 0 ? current_device : device];
}

// -- faults -----------------------------------------------------------------------------------------------------------

struct Fault {
  std::string op;
  double factor;              // of the result
  int64_t channel;            // -1: all
  std::vector<int64_t> shape;  // empty: any
  bool varies;                // another factor every time
};
std::vector<Fault> faults;
std::mutex faults_mutex;

/** The name of an op without namespace, overload and the underscore of in-place ops. */
std::string plain_name(const OperatorHandle& op) {
  auto name = op.schema().name();
  name = name.substr(name.find("::") + 2);
  return name.back() == '_' ? name.substr(0, name.size() - 1) : name;
}

void damage(const std::string& name, const std::vector<Tensor>& results) {
  static std::atomic<uint64_t> turn{0};
  std::lock_guard lock(faults_mutex);
  for (const auto& fault : faults) {
    if (fault.op != name) continue;
    for (auto x : results) {
      if (!x.defined() || !x.is_floating_point() || x.scalar_type() == at::kDouble) continue;  // another kernel
      if (!fault.shape.empty() && x.sizes() != c10::IntArrayRef(fault.shape)) continue;
      auto channels = x.dim() >= 4 ? 1 : x.dim() - 1;
      if (fault.channel >= 0 && (!x.dim() || fault.channel >= x.size(channels))) continue;
      auto part = fault.channel < 0 ? x : x.select(channels, fault.channel);
      auto factor = fault.varies ? 1 + (fault.factor - 1) * double(1 + turn++ % 7) / 7 : fault.factor;
      part.copy_(part.to(at::kDouble).mul(factor));
    }
  }
}

// -- ops --------------------------------------------------------------------------------------------------------------

template <class F>
IValue map_tensors(const IValue& value, F change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& x : value.toTensorVector()) list.push_back(change(x));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& x : value.toOptionalTensorVector()) list.push_back(x ? std::make_optional(change(*x)) : x);
    return list;
  }
  return value;
}

std::vector<Tensor> tensors_of(const Stack& values) {
  std::vector<Tensor> found;
  for (const auto& value : values) map_tensors(value, [&](const Tensor& x) { return found.push_back(x), x; });
  return found;
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }

Device device_of(const OperatorHandle& op, const Stack& arguments) {
  std::optional<Device> found;
  bool takes_host_tensors = plain_name(op).rfind("index", 0) == 0 || plain_name(op).rfind("_index_put", 0) == 0;
  for (const auto& x : tensors_of(arguments)) {
    if (!is_on_device(x)) {
      TORCH_CHECK(!x.defined() || x.dim() == 0 || takes_host_tensors, op.schema().name(),
                  ": expected all tensors to be on the same device, but one is on ", x.device());
      continue;
    }
    TORCH_CHECK(!found || *found == x.device(), op.schema().name(),
                ": expected all tensors to be on the same device, but found ", *found, " and ", x.device());
    found = x.device();
  }
  for (const auto& value : arguments)
    if (!found && value.isDevice()) found = device_or_current(value.toDevice());
  return found ? *found : device_or_current({});
}

/** The arguments as the kernel of another backend expects them. */
template <class F>
Stack arguments_for(const OperatorHandle& op, const Stack& arguments, Device on, Device target, bool draws, F change) {
  Stack call;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = arguments[i];
    auto type = op.schema().arguments()[i].type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (value.isDevice()) {
      call.push_back(target);
    } else if (type->kind() == c10::TypeKind::GeneratorType) {
      auto generator = value.isNone() ? default_generator(on.index()) : value.toGenerator();
      call.push_back(draws ? IValue(generator.get<Generator>()->next()) : IValue());
    } else if (type->kind() == c10::TypeKind::DeviceObjType) {
      call.push_back(target);
    } else {
      call.push_back(map_tensors(value, change));
    }
  }
  return call;
}

/** A host scalar as it is now: the host may change it before the kernel runs. */
Tensor kept(const Tensor& x) {
  if (!x.defined()) return x;
  auto copy = x.clone();
  if (x.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

/** What an op would return, as meta tensors; nothing if that depends on the data or is unknown. */
std::optional<std::vector<Tensor>> inferred(const OperatorHandle& op, const Stack& arguments, Device on) {
  for (const auto& result : op.schema().returns())
    if (result.type()->kind() != c10::TypeKind::TensorType && !result.type()->isSubtypeOf(*c10::ListType::ofTensors()))
      return {};
  auto call = arguments_for(op, arguments, on, c10::kMeta, false, [](const Tensor& x) {
    return is_on_device(x) ? at::empty_strided(x.sizes(), x.strides(), x.options().device(c10::kMeta)) : x;
  });
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &call);
  } catch (const std::exception&) {
    return {};
  }
  return tensors_of(call);
}

/** Put on the stack what an op returns: the arguments that it wrote, and the new tensors in order. */
void return_results(const OperatorHandle& op, const Stack& arguments, const Stack& computed,
                    const std::vector<Tensor>& fresh, Stack* stack) {
  auto next = fresh.begin();
  const auto& schema = op.schema();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (!is_written(schema.returns()[i])) {
      stack->push_back(map_tensors(computed[i], [&](const Tensor&) { return *next++; }));
      continue;
    }
    for (size_t j = 0; j < arguments.size(); ++j) {
      auto* alias = schema.arguments()[j].alias_info();
      if (alias && alias->beforeSets() == schema.returns()[i].alias_info()->beforeSets()) {
        stack->push_back(arguments[j]);
        break;
      }
    }
  }
}

void run_op(const OperatorHandle& op, Stack* stack) {
  check_usable();
  const auto& schema = op.schema();
  Stack arguments(stack->end() - schema.arguments().size(), stack->end());
  stack->erase(stack->end() - schema.arguments().size(), stack->end());
  auto name = plain_name(op);
  auto device = device_of(op, arguments);
  OnDevice on(device);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  at::AutoDispatchBelowADInplaceOrView below_autograd;

  bool is_in_place = true, has_empty_result = false, can_draw = !op.hasTag(at::Tag::nondeterministic_seeded);
  for (const auto& result : schema.returns()) {
    TORCH_CHECK(!result.alias_info() || is_written(result), "the simulated device lacks the view ", schema.name());
    is_in_place &= is_written(result);
  }
  std::vector<Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    can_draw |= schema.arguments()[i].type()->str().find("Generator") != std::string::npos;
    if (!is_written(schema.arguments()[i])) continue;
    for (const auto& x : tensors_of({arguments[i]})) {
      written.push_back(x);
      has_empty_result |= x.numel() == 0;
    }
  }
  TORCH_CHECK(can_draw, "the simulated device would draw from the host's generator in ", schema.name());

  bool is_queued = queue().execution != Execution::at_once && !has_empty_result;
  std::optional<std::vector<Tensor>> metas;
  if (is_queued && !is_in_place) is_queued = (metas = inferred(op, arguments, device)).has_value();
  std::map<const void*, Tensor> resized;  // results without elements: the kernel may give them a size
  auto call = arguments_for(op, arguments, device, c10::kCPU, true, [&](const Tensor& x) {
    if (!is_on_device(x)) return kept(x);
    if (!has_empty_result || x.numel()) return host_alias(x);
    return resized[x.unsafeGetTensorImpl()] = at::empty(x.sizes(), x.options().device(c10::kCPU));
  });
  std::vector<Tensor> aliases;
  for (const auto& x : written)
    if (!resized.count(x.unsafeGetTensorImpl())) aliases.push_back(host_alias(x));
  report("launch", name);

  if (is_queued) {
    std::vector<Tensor> fresh, targets;
    if (metas) {
      for (const auto& x : *metas) {
        fresh.push_back(x.defined() ? make_empty(x.sizes(), x.scalar_type(), device, x.strides()) : x);
        targets.push_back(x.defined() ? host_alias(fresh.back()) : x);
      }
    }
    queue().submit([=, call = std::move(call)]() mutable {
      at::AutoDispatchBelowADInplaceOrView guard;
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
      if (!targets.empty()) {
        auto results = tensors_of(call);
        for (size_t i = 0; i < targets.size(); ++i)
          if (targets[i].defined() && results[i].numel()) targets[i].copy_(results[i]);  // some save nothing on the CPU
      }
      auto changed = aliases;
      changed.insert(changed.end(), targets.begin(), targets.end());
      damage(name, changed);
    });
    if (!metas) return return_results(op, arguments, {}, fresh, stack);
    size_t next = 0;
    for (const auto& result : schema.returns()) {
      if (result.type()->kind() == c10::TypeKind::TensorType) {
        stack->push_back(fresh[next++]);
      } else {  // a list takes all the rest: no op returns two
        stack->push_back(std::vector<Tensor>(fresh.begin() + next, fresh.end()));
      }
    }
    return;
  }

  bool is_read_by_host = op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output);
  if (is_read_by_host) wait_for_device(name);
  queue().wait(queue().submitted);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &call);
  std::vector<Tensor> fresh, targets = aliases;
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (is_written(schema.returns()[i])) continue;
    for (const auto& x : tensors_of({call[i]})) {
      fresh.push_back(x.defined() ? make_empty(x.sizes(), x.scalar_type(), device, x.strides()) : x);
      if (!x.defined()) continue;
      targets.push_back(host_alias(fresh.back()));
      targets.back().copy_(x);
    }
  }
  for (const auto& x : written) {
    auto found = resized.find(x.unsafeGetTensorImpl());
    if (found == resized.end() || !found->second.numel()) continue;
    at::native::resize_impl_cpu_(x.unsafeGetTensorImpl(), found->second.sizes(), {}, true);
    targets.push_back(host_alias(x));
    targets.back().copy_(found->second);
  }
  damage(name, targets);
  return_results(op, arguments, call, fresh, stack);
}

const OperatorHandle& find_op(const char* name, const char* overload = "") {
  static auto* found = new std::map<std::string, OperatorHandle>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto key = std::string(name) + "." + overload;
  auto at = found->find(key);
  if (at != found->end()) return at->second;
  return found->emplace(key, c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)).first->second;
}

void run_convolution(const OperatorHandle&, Stack* stack) { run_op(find_op("aten::convolution"), stack); }

void run_convolution_backward(const OperatorHandle&, Stack* stack) {
  auto arguments = stack->end() - 10;  // without the bias's shape, which is that of the result's channels
  stack->insert(arguments + 3, IValue(std::vector<int64_t>{arguments[0].toTensor().size(1)}));
  run_op(find_op("aten::convolution_backward"), stack);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, std::optional<bool> train) {
  if (!train.value_or(true) || p == 0) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  auto mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {p == 1 ? x * 0 : x * mask * (1 / (1 - p)), mask};
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return make_empty(size, c10::dtype_or_default(dtype), device_or_current(device), {}, format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  return make_empty(size, c10::dtype_or_default(dtype), device_or_current(device), stride);
}

const Tensor& resize_(const Tensor& x, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  OnDevice on(x.device());
  at::native::resize_impl_cpu_(x.unsafeGetTensorImpl(), size, {}, true);
  if (format) x.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return x;
}

Tensor& set_storage(Tensor& x, c10::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  x.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  x.unsafeGetTensorImpl()->set_storage_offset(offset);
  x.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return x;
}

Tensor& set_whole_storage(Tensor& x, c10::Storage storage) {
  auto numbers = static_cast<int64_t>(storage.nbytes() / x.dtype().itemsize());
  return set_storage(x, std::move(storage), 0, {numbers}, {1});
}

Tensor& set_tensor(Tensor& x, const Tensor& source) {
  return set_storage(x, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Scalar local_scalar_dense(const Tensor& x) {
  wait_for_device("item");
  return at::native::_local_scalar_dense_cpu(host_alias(x));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  check_usable();
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  bool from_device = is_on_device(from), to_device = is_on_device(to);
  auto target = to_device ? host_alias(to) : to;
  if (from_device && to_device) {
    report("launch", "copy", from.nbytes());
    queue().submit([source = host_alias(from), target]() mutable { target.copy_(source); });
    return to;
  }
  report(from_device ? "to_host" : "to_device", "copy", from.nbytes());
  const auto& host = from_device ? to : from;
  bool is_pinned = PinnedMemory::get().holds(host.data_ptr());
  if (!non_blocking || (from_device && !is_pinned)) {
    wait_for_device(from_device ? "copy to host" : "copy to device");
    target.copy_(from_device ? host_alias(from) : from);
    return to;
  }
  auto source = from_device ? host_alias(from) : is_pinned ? from : from.clone();
  queue().submit([source, target]() mutable {
    at::AutoDispatchBelowADInplaceOrView guard;
    target.copy_(source);
  });
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return 0;  // the one made of other ops
}

// -- autocast ---------------------------------------------------------------------------------------------------------

enum class Cast { narrow, wide, promote };

template <Cast cast>
void autocast(const OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKeySet(c10::DispatchKey::AutocastPrivateUse1));
  size_t first = stack->size() - op.schema().arguments().size();
  auto dtype = cast == Cast::wide ? at::kFloat : at::autocast::get_autocast_dtype(kPrivateUse1);
  if (cast == Cast::promote)
    for (const auto& x : tensors_of({stack->begin() + first, stack->end()}))
      if (x.defined()) dtype = at::autocast::prioritize(dtype, x, kPrivateUse1);
  for (size_t i = first; i < stack->size(); ++i)
    (*stack)[i] = map_tensors((*stack)[i], [&](const Tensor& x) {
      return x.defined() ? at::autocast::cached_cast(dtype, x, kPrivateUse1) : x;
    });
  op.callBoxed(stack);
}

/** The name in an entry of torch's lists, which is `op` or `op, overload`. */
std::string op_name(std::string text) {
  auto comma = text.find(", ");
  return comma == std::string::npos ? text : text.replace(comma, 2, ".");
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_op>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("native_dropout", native_dropout);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&run_convolution_backward>());
  // The CPU kernels of these give their result another size on the way, which works only with memory of their own.
  for (auto* name : {"mse_loss", "smooth_l1_loss"}) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_op>());
  // Lists of tensors are one launch, as on every accelerator; without a kernel torch would take them apart.
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.rfind("aten::_foreach_", 0) == 0)
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_op>());
}

// Of torch's own lists the names are enough to register one boxed kernel for all.
#define OP_TEXT(...) #__VA_ARGS__,
#define OP_TEXT_OF_CHANGED(FUNCTION, NAME, ...) NAME,
const char* const narrow_ops[] = {AT_FORALL_LOWER_PRECISION_FP(OP_TEXT)};
const char* const wide_ops[] = {AT_FORALL_FP32(OP_TEXT) AT_FORALL_FP32_SET_OPT_DTYPE(OP_TEXT)
                                    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(OP_TEXT_OF_CHANGED)};
const char* const promoted_ops[] = {AT_FORALL_PROMOTE(OP_TEXT)};

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  using torch::CppFunction;
  for (auto* op : narrow_ops) m.impl(op_name(op).c_str(), CppFunction::makeFromBoxedFunction<&autocast<Cast::narrow>>());
  for (auto* op : wide_ops) m.impl(op_name(op).c_str(), CppFunction::makeFromBoxedFunction<&autocast<Cast::wide>>());
  for (auto* op : promoted_ops)
    m.impl(op_name(op).c_str(), CppFunction::makeFromBoxedFunction<&autocast<Cast::promote>>());
}

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &choose_attention)
}

namespace {

// -- devices, streams, events -----------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPrivateUse1; }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {kPrivateUse1, current_device}; }
  void setDevice(Device device) const override { current_device = device_or_current(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current_device = device.index(); }
  c10::Stream stream(Device device, c10::StreamId id) const { return c10::Stream(c10::Stream::UNSAFE, device, id); }
  c10::Stream getStream(Device device) const override {
    device = device_or_current(device);
    return stream(device, current_streams[device.index()]);
  }
  c10::Stream getDefaultStream(Device device) const override { return stream(device_or_current(device), 0); }
  c10::Stream getNewStream(Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return stream(device_or_current(device), next++);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(to.device(), std::exchange(current_streams[to.device_index()], to.id()));
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  // An event is the number of tasks that must have ended.
  void record(void** event, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new uint64_t;
    std::lock_guard lock(queue().mutex);
    *static_cast<uint64_t*>(*event) = queue().submitted;
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    std::lock_guard lock(queue().mutex);
    return !event || queue().completed >= *static_cast<uint64_t*>(event);
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<uint64_t*>(event); }
  void synchronizeEvent(void* event) const override {
    report("wait", "event");
    if (event) queue().wait(*static_cast<uint64_t*>(event));
  }
  bool queryStream(const c10::Stream&) const override {
    std::lock_guard lock(queue().mutex);
    return queue().completed == queue().submitted;
  }
  void synchronizeStream(const c10::Stream&) const override { wait_for_device("stream"); }
  void synchronizeDevice(DeviceIndex) const override { wait_for_device("device"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override {
    current_device = device_or_current(Device(kPrivateUse1, device)).index();
  }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current_device, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device : device);
  }
  Device getDeviceFromPtr(void* p) const override { return {kPrivateUse1, Memory::get().device_of(p)}; }
  bool isPinnedPtr(const void* p) const override { return PinnedMemory::get().holds(p); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &PinnedMemory::get(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    OnDevice on(storage.device());
    auto& memory = Memory::get();
    auto fresh = memory.allocate(bytes);
    memory.copy_data(fresh.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace

// -- for Python -------------------------------------------------------------------------------------------------------

extern "C" {

void simulated_register() {
  c10::SetAllocator(kPrivateUse1, &Memory::get());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

void simulated_configure(int execution, int fp64) {
  queue().wait(queue().submitted);
  queue().execution = static_cast<Execution>(execution);
  has_fp64 = fp64;
}

void simulated_listen(Listener to) { listener = to; }

void simulated_plant(const char* op, double factor, int64_t channel, const int64_t* shape, int dims, int varies) {
  std::lock_guard lock(faults_mutex);
  faults.push_back({op, factor, channel, {shape, shape + dims}, varies != 0});
}

void simulated_repair() {
  std::lock_guard lock(faults_mutex);
  faults.clear();
}

void simulated_random_state(int device, uint64_t* numbers, int is_set) {
  auto* generator = default_generator(device).get<Generator>();
  if (is_set) {
    generator->seed_ = numbers[0];
    generator->offset_ = numbers[1];
  }
  numbers[0] = generator->seed_;
  numbers[1] = generator->offset_;
}
}
