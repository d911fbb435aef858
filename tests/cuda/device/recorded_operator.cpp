#include "recorded_operator.h"

#include <ATen/ATen.h>

#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "capture.h"
#include "memory.h"
#include "operators.h"

namespace host_backed {
namespace {

/// Storages by address. Nobody is kept from releasing what is there.
class Addresses {
 public:
  /// Over the same memory, whose size is fixed.
  at::Tensor on_host(const at::Tensor& tensor) {
    return tensor_over(storage_at(tensor.storage()), c10::DispatchKey::CPU, tensor);
  }
  bool has(const c10::Storage& storage) const {
    for (const auto& [address, host] : storages_)
      if (address == storage.data()) return true;
    return false;
  }
  /// A tensor that on_host() returned.
  bool owns(const at::Tensor& host_side) const {
    for (const auto& [address, host] : storages_)
      if (host.is_alias_of(host_side.storage())) return true;
    return false;
  }
  void require_there(const char* what) const {
    for (const auto& [address, host] : storages_) {
      const bool is_there_still = address == nullptr   ? true
                                  : is_device(address) ? is_there(address)
                                                       : is_registered(address);
      if (!is_there_still) fail("a graph's %s is replayed over memory that was released", what);
    }
  }

 private:
  c10::Storage storage_at(const c10::Storage& storage) {
    const void* address = storage.data();
    for (const auto& [known, host] : storages_)
      if (known == address && host.nbytes() == storage.nbytes()) return host;
    void* data = is_device(address) ? host_view(address) : const_cast<void*>(address);
    c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(),
                      c10::DataPtr(data, c10::kCPU), /*allocator=*/nullptr, /*resizable=*/false);
    storages_.emplace_back(address, host);
    return host;
  }
  std::vector<std::pair<const void*, c10::Storage>> storages_;
};

/// The same tensor for one call, which may change its sizes.
at::Tensor anew(const at::Tensor& tensor) {
  return tensor_over(tensor.storage(), c10::DispatchKey::CPU, tensor);
}

/// A number of the host, by value.
at::Tensor copied(const at::Tensor& number) {
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor copy = number.clone();
  // A number of the program's text promotes no tensor's type.
  if (number.unsafeGetTensorImpl()->is_wrapped_number())
    copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

class RecordedOperator {
 public:
  RecordedOperator(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
                   std::span<const c10::IValue> results)
      : op_(op), arguments_(std::move(arguments)) {
    for (c10::IValue& argument : arguments_)
      replace_tensors(argument, [&](const at::Tensor& tensor) { return kept(tensor); });
    const Addresses given = addresses_;
    for (c10::IValue result : results)
      replace_tensors(result, [&](const at::Tensor& tensor) {
        const bool is_new = tensor.defined() && tensor.is_cuda() && !given.has(tensor.storage());
        results_.push_back(is_new ? addresses_.on_host(tensor) : at::Tensor());
        return tensor;
      });
  }

  bool writes() const {
    if (op_.hasTag(at::Tag::inplace_view)) return false;  // which is done
    for (const at::Tensor& result : results_)
      if (result.defined() && result.storage().nbytes() > 0) return true;
    return op_.schema().is_mutable();
  }

  void replay() const {
    const char* name = op_.schema().name().c_str();
    addresses_.require_there(name);
    torch::jit::Stack stack = arguments_;
    for (c10::IValue& argument : stack)
      replace_tensors(argument, [&](const at::Tensor& tensor) {
        return tensor.defined() && addresses_.owns(tensor) ? anew(tensor) : tensor;
      });
    call_on_host(op_, stack);
    auto result = results_.begin();
    for (c10::IValue& value : stack)
      replace_tensors(value, [&](const at::Tensor& tensor) {
        leave(*result++, tensor, name);
        return tensor;
      });
  }

 private:
  at::Tensor kept(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    return tensor.is_cuda() ? addresses_.on_host(tensor) : copied(tensor);
  }
  static void leave(const at::Tensor& to, const at::Tensor& from, const char* name) {
    if (!to.defined() || to.storage().nbytes() == 0) return;
    if (!same_layout(to, from) || to.storage().nbytes() != from.storage().nbytes())
      fail("%s has a result of another shape in a graph's replay", name);
    std::memcpy(to.storage().mutable_data(), from.storage().data(), to.storage().nbytes());
  }

  c10::OperatorHandle op_;
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> results_;  // undefined where they are arguments
  Addresses addresses_;
};

/// cudaMemcpyAsync does it alone.
bool is_one_transfer(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() &&
         to.is_neg() == from.is_neg() && to.is_conj() == from.is_conj() &&
         (to.numel() == 1 || (to.strides() == from.strides() && to.is_non_overlapping_and_dense()));
}

/// index_put_ of one number of the host, which is masked_fill_ then.
bool fills_by_mask(const std::string& name, std::span<const c10::IValue> arguments) {
  if (name.find("index_put") == std::string::npos || !arguments[2].isTensor()) return false;
  const at::Tensor& value = arguments[2].toTensor();
  return value.is_cpu() && value.numel() == 1 && !arguments[3].toBool();
}

}  // namespace

bool waits_for_the_card(const std::string& name, std::span<const c10::IValue> arguments) {
  static const std::set<std::string> waiting = {
      "aten::_local_scalar_dense",
      "aten::nonzero",
      "aten::nonzero.out",
      "aten::masked_select",
      "aten::masked_select.out",
      "aten::equal",
      "aten::_unique",
      "aten::_unique2",
      "aten::unique_dim",
      "aten::unique_consecutive",
      "aten::bincount",
      "aten::unique_dim_consecutive",
      "aten::histc",
  };
  if (waiting.contains(name)) return true;
  if (name == "aten::repeat_interleave.Tensor") return arguments[1].isNone();  // the output's size
  if (fills_by_mask(name, arguments)) return false;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isOptionalTensorList()) continue;
    for (const std::optional<at::Tensor>& index : argument.toOptionalTensorList()) {
      if (!index || !index->defined()) continue;
      if (!index->is_cuda()) return true;  // a copy of pageable memory
      if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) return true;
    }
  }
  return false;
}

void record_operator(c10::StreamId stream, const c10::OperatorHandle& op,
                     std::vector<c10::IValue> arguments, std::span<const c10::IValue> results) {
  const auto recorded = std::make_shared<const RecordedOperator>(op, std::move(arguments), results);
  if (recorded->writes()) record(stream, [recorded] { recorded->replay(); });
}

void record_copy(c10::StreamId stream, const at::Tensor& to, const at::Tensor& from,
                 bool non_blocking) {
  if (to.numel() == 0) return;
  if (to.is_cuda() != from.is_cuda()) {
    const at::Tensor& host = to.is_cuda() ? from : to;
    if (!non_blocking) refuse_on_captured(stream, "a copy that the host waits for");
    if (!is_registered(host.const_data_ptr()) || !is_one_transfer(to, from))
      refuse_on_captured(stream, "a copy of pageable memory");
  }
  Addresses addresses;
  const at::Tensor target = addresses.on_host(to), source = addresses.on_host(from);
  record(stream, [=] {
    addresses.require_there("copy");
    anew(target).copy_(source);
  });
}

}  // namespace host_backed
