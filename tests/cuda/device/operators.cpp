// Every operator of the card: LibTorch's kernel for the CPU over the card's memory. Operators that
// CUDA has no kernel of are refused, and so are tensors of two devices where CUDA refuses them.
#include "operators.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "memory.h"

namespace host_backed {

c10::Storage Call::host_storage(const c10::Storage& storage) {
  for (auto& [device_side, host_side] : storages_)
    if (device_side.is_alias_of(storage)) return host_side;
  void* data = storage.mutable_data();
  TORCH_CHECK(data == nullptr || is_device(data), "a CUDA tensor over memory that is no card's");
  auto* keep = new c10::Storage(storage);
  c10::DataPtr pointer(
      data ? host_view(data) : nullptr, keep,
      [](void* kept) { delete static_cast<c10::Storage*>(kept); }, c10::kCPU);
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
  if (storage.nbytes() > 0) std::memcpy(host_view(pointer.get()), storage.data(), storage.nbytes());
  c10::Storage result(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(pointer),
                      allocator, /*resizable=*/true);
  storages_.emplace_back(result, storage);
  return result;
}

namespace {

at::Tensor over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
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

}  // namespace

at::Tensor Call::to_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  if (device.index() < 0) device = tensor.device();
  for (auto& [device_side, host_side] : tensors_)
    if (device_side.is_same(tensor)) return host_side;
  at::Tensor host = over(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
  tensors_.emplace_back(tensor, host);
  return host;
}

at::Tensor Call::to_device(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return tensor;
  for (auto& [device_side, host_side] : tensors_)
    if (host_side.is_same(tensor)) return device_side;
  return over(device_storage(tensor.storage()), c10::DispatchKey::CUDA, tensor);
}

void Call::write_back() {
  for (auto& [device_side, host_side] : storages_) {
    if (host_side.nbytes() == device_side.nbytes()) continue;  // grown by resize_
    const c10::DeviceGuard guard(device);
    c10::DataPtr pointer = c10::GetAllocator(c10::kCUDA)->allocate(host_side.nbytes());
    std::memcpy(host_view(pointer.get()), host_side.data(), host_side.nbytes());
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

/// Calls body(tensor) for every tensor among the values, and replaces it by what that returns.
template <typename Body>
void replace_tensors(c10::IValue& value, const Body& body) {
  if (value.isTensor()) {
    value = body(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(body(tensor));
    value = list;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor ? std::optional<at::Tensor>(body(*tensor)) : std::nullopt);
    value = list;
  }
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
      call.to_host(tensor);
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

void run(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string name = full_name(schema);
  counts.add(name);
  require_full_reductions(name);
  if (name.starts_with("aten::"))
    TORCH_CHECK_NOT_IMPLEMENTED(operators_of_cuda().contains(name), name,
                                " has no kernel for CUDA");
  Call call;
  const auto arguments = last(*stack, schema.arguments().size());
  choose_device(call, name, arguments);
  for (c10::IValue& argument : arguments) {
    replace_tensors(argument, [&](const at::Tensor& tensor) { return call.to_host(tensor); });
    if (argument.isDevice() && argument.toDevice().is_cuda()) argument = c10::Device(c10::kCPU);
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.write_back();
  for (c10::IValue& result : last(*stack, schema.returns().size()))
    replace_tensors(result, [&](const at::Tensor& tensor) { return call.to_device(tensor); });
}

/// Between tensors of any devices.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool /*non_blocking*/) {
  counts.add(self.is_cuda() == source.is_cuda() ? "copy_.device"
             : self.is_cuda()                   ? "copy_.to_device"
                                                : "copy_.to_host");
  Call call;
  const at::AutoDispatchBelowADInplaceOrView below;
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
