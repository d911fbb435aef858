// Every operator of the card: LibTorch's kernel for the CPU over the card's memory. Operators that
// CUDA has no kernel of are refused, and so are tensors of two devices where CUDA refuses them.
#include "operators.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "capture.h"
#include "memory.h"
#include "recorded_operator.h"

namespace host_backed {
namespace {

/// The memory of a storage, which stays as long.
c10::DataPtr host_data(const void* data, const c10::Storage& storage) {
  return {data ? host_view(data) : nullptr, new c10::Storage(storage),
          [](void* kept) { delete static_cast<c10::Storage*>(kept); }, c10::kCPU};
}

/// Zeros, as many and aligned as the memory is.
c10::DataPtr zeros_for(const void* data, size_t bytes) {
  constexpr size_t kPage = 4096;
  if (data == nullptr) return {nullptr, c10::kCPU};
  const size_t begin = reinterpret_cast<uintptr_t>(data) % kPage, length = begin + bytes;
  void* pages = mmap(nullptr, length, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) fail("no addresses for %zu bytes", length);
  using Pages = std::pair<void*, size_t>;
  return {static_cast<char*>(pages) + begin, new Pages(pages, length),
          [](void* context) {
            const std::unique_ptr<Pages> mapped(static_cast<Pages*>(context));
            munmap(mapped->first, mapped->second);
          },
          c10::kCPU};
}

}  // namespace

c10::Storage Call::host_storage(const c10::Storage& storage) {
  for (auto& [device_side, host_side] : storages_)
    if (device_side.is_alias_of(storage)) return host_side;
  void* data = storage.mutable_data();
  TORCH_CHECK(data == nullptr || is_device(data), "a CUDA tensor over memory that is no card's");
  c10::DataPtr pointer = is_captured ? zeros_for(data, storage.nbytes()) : host_data(data, storage);
  c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer),
                    c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  storages_.emplace_back(storage, host);
  return host;
}

c10::Storage Call::device_storage(const c10::Storage& storage) {
  for (auto& [device_side, host_side] : storages_)
    if (host_side.is_alias_of(storage)) return device_side;
  const c10::DeviceGuard guard(device);
  c10::Allocator* allocator = c10::GetAllocator(c10::kCUDA);
  c10::DataPtr pointer = allocator->allocate(storage.nbytes());
  if (storage.nbytes() > 0 && !is_captured)
    std::memcpy(host_view(pointer.get()), storage.data(), storage.nbytes());
  c10::Storage result(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer),
                      allocator, /*resizable=*/true);
  storages_.emplace_back(result, storage);
  return result;
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(),
                                                      like.storage_offset());
  if (like.is_conj()) tensor._set_conj(true);
  if (like.is_neg()) tensor._set_neg(true);
  return tensor;
}

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.storage_offset() == b.storage_offset();
}

at::Tensor Call::to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  if (device.index() < 0) device = tensor.device();
  for (auto& [device_side, host_side] : tensors_)
    if (device_side.is_same(tensor)) return host_side;
  at::Tensor host = tensor_over(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
  tensors_.emplace_back(tensor, host);
  return host;
}

at::Tensor Call::to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  for (auto& [device_side, host_side] : tensors_)
    if (host_side.is_same(tensor)) return device_side;
  return tensor_over(device_storage(tensor.storage()), c10::DispatchKey::CUDA, tensor);
}

void Call::write_back() {
  for (auto& [device_side, host_side] : storages_) {
    if (host_side.nbytes() == device_side.nbytes()) continue;  // grown by resize_
    TORCH_CHECK(!is_captured || device_side.nbytes() == 0,
                "host-backed device: a tensor with values is resized in a capture");
    const c10::DeviceGuard guard(device);
    c10::DataPtr pointer = c10::GetAllocator(c10::kCUDA)->allocate(host_side.nbytes());
    if (!is_captured) std::memcpy(host_view(pointer.get()), host_side.data(), host_side.nbytes());
    device_side.set_data_ptr(std::move(pointer));
    device_side.set_nbytes(host_side.nbytes());
  }
  for (auto& [device_side, host_side] : tensors_) {
    c10::TensorImpl* impl = device_side.unsafeGetTensorImpl();
    if (!host_side.storage().is_alias_of(host_storage(device_side.storage())))
      impl->set_storage_keep_dtype(device_storage(host_side.storage()));
    if (!same_layout(device_side, host_side))
      impl->set_sizes_and_strides(host_side.sizes(), host_side.strides(),
                                  host_side.storage_offset());
  }
}

namespace {

/// How often each operator was called: SFTRUN_HOST_BACKED_COUNTS=file.
class Counts {
 public:
  void add(const std::string& name) {
    if (!file_) return;
    const std::lock_guard lock(mutex_);
    ++calls_[name];
  }
  ~Counts() {
    if (!file_) return;
    std::ofstream out(file_, std::ios::app);
    for (const auto& [name, calls] : calls_) out << calls << " " << name << "\n";
  }

 private:
  const char* file_ = std::getenv("SFTRUN_HOST_BACKED_COUNTS");
  std::map<std::string, int64_t> calls_;
  std::mutex mutex_;
};
Counts counts;

/// Names of operators that CUDA has a kernel of: cuda_operators.txt, named by
/// SFTRUN_HOST_BACKED_OPERATORS.
const std::set<std::string>& operators_of_cuda() {
  static const std::set<std::string> names = [] {
    const char* file = std::getenv("SFTRUN_HOST_BACKED_OPERATORS");
    if (file == nullptr) fail("SFTRUN_HOST_BACKED_OPERATORS does not name cuda_operators.txt");
    std::set<std::string> all;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) all.insert(line);
    if (all.empty()) fail("%s holds no operator", file);
    return all;
  }();
  return names;
}

/// Operators that take a tensor of the CPU beside the card's.
bool mixes_devices(const std::string& name) {
  static const std::set<std::string> mixing = {
      "aten::copy_",     "aten::index.Tensor",     "aten::index_put_", "aten::_index_put_impl_",
      "aten::index_put", "aten::index.Tensor_out", "aten::_to_copy",
  };
  return mixing.contains(name);
}

std::string full_name(const c10::FunctionSchema& schema) {
  const std::string& name = schema.operator_name().name;
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

/// The arguments of one call, on the interpreter's stack.
std::span<c10::IValue> last(torch::jit::Stack& stack, size_t count) {
  return {stack.data() + stack.size() - count, count};
}

/// Where the operator computes. @throws c10::Error where its tensors are on different devices.
void choose_device(Call& call, const std::string& name, std::span<c10::IValue> arguments) {
  bool has_host_tensor = false;
  std::optional<c10::Device> asked;
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) asked = argument.toDevice();
    replace_tensors(argument, [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return tensor;
      if (!tensor.is_cuda()) {
        has_host_tensor = has_host_tensor || tensor.dim() > 0;
        return tensor;
      }
      TORCH_CHECK(
          call.device.index() < 0 || call.device == tensor.device() || name == "aten::copy_",
          "Expected all tensors to be on the same device, but found at least two devices, ",
          call.device, " and ", tensor.device(), " in ", name);
      if (call.device.index() < 0) call.device = tensor.device();
      return tensor;
    });
  }
  TORCH_CHECK(!has_host_tensor || mixes_devices(name),
              "Expected all tensors to be on the same device, but found at least two devices, cpu "
              "and ",
              call.device, " in ", name);
  if (call.device.index() < 0)
    call.device = asked && asked->has_index()
                      ? *asked
                      : c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
}

/// cuBLAS would otherwise be free to add partial sums in 16 bits.
void require_full_reductions(const std::string& name) {
  static const std::set<std::string> products = {"aten::mm",  "aten::addmm",   "aten::addmm_",
                                                 "aten::bmm", "aten::baddbmm", "aten::baddbmm_"};
  if (!products.contains(name)) return;
  constexpr auto kAllowed = at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
  if (at::globalContext().allowBF16ReductionCuBLAS() == kAllowed ||
      at::globalContext().allowFP16ReductionCuBLAS() == kAllowed)
    fail("products may be summed in 16 bits");
}

void check_operator(const std::string& name) {
  counts.add(name);
  require_full_reductions(name);
  if (name.starts_with("aten::"))
    TORCH_CHECK_NOT_IMPLEMENTED(operators_of_cuda().contains(name), name,
                                " has no kernel for CUDA");
}

std::map<std::string, c10::KernelFunction>& host_kernels() {
  static std::map<std::string, c10::KernelFunction> kernels;
  return kernels;
}

}  // namespace

void set_host_kernel(const std::string& name, c10::KernelFunction kernel) {
  host_kernels().emplace(name, std::move(kernel));
}

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  constexpr c10::DispatchKeySet kHost(c10::DispatchKey::CPU);
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto own = host_kernels().find(full_name(op.schema()));
  if (own != host_kernels().end())
    own->second.callBoxed(op, kHost, &stack);
  else
    op.redispatchBoxed(kHost, &stack);
}

void run(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = full_name(schema);
  check_operator(name);
  Call call;
  const auto arguments = last(*stack, schema.arguments().size());
  choose_device(call, name, arguments);
  for (c10::IValue& argument : arguments)
    if (argument.isDevice() && argument.toDevice().is_cuda()) argument = c10::Device(c10::kCPU);
  const c10::StreamId stream = current_stream_id(call.device.index());
  call.is_captured = is_captured(stream);
  std::vector<c10::IValue> given;
  if (call.is_captured) {
    if (waits_for_the_card(name, arguments)) refuse_on_captured(stream, name.c_str());
    given.assign(arguments.begin(), arguments.end());
  }
  for (c10::IValue& argument : arguments)
    replace_tensors(argument, [&](const at::Tensor& tensor) { return call.to_host(tensor); });
  call_on_host(op, *stack);
  call.write_back();
  const auto results = last(*stack, schema.returns().size());
  for (c10::IValue& result : results)
    replace_tensors(result, [&](const at::Tensor& tensor) { return call.to_device(tensor); });
  if (call.is_captured) record_operator(stream, op, std::move(given), results);
}

namespace {

/// Between tensors of any devices.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  counts.add(self.is_cuda() == source.is_cuda() ? "copy_.device"
             : self.is_cuda()                   ? "copy_.to_device"
                                                : "copy_.to_host");
  const at::AutoDispatchBelowADInplaceOrView below;
  for (const at::Tensor& side : {std::as_const(self), source}) {
    const c10::StreamId stream = side.is_cuda() ? current_stream_id(side.device().index()) : 0;
    if (!is_captured(stream)) continue;
    record_copy(stream, self, source, non_blocking);
    return self;
  }
  Call call;
  call.to_host(self).copy_(call.to_host(source));
  return self;
}

c10::Device device_or_current(std::optional<at::Device> device) {
  return device.value_or(c10::Device(c10::kCUDA));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                 std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, c10::GetAllocator(c10::kCUDA),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<at::Device> device, std::optional<bool> /*pinned*/) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::kCUDA),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           dtype.value_or(at::kFloat));
}

/// Memory is not reused while anything runs: nothing runs beside the host.
void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(self.device() == stream.device(), "memory of ", self.device(), " on a stream of ",
              stream.device());
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("copy_", copy_);
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("record_stream", record_stream);
}

}  // namespace host_backed
