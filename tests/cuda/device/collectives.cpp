// In place of src/cuda/nccl_backend.cpp: "NCCL" that is Gloo over the card's memory, with the
// checks of NCCL's process group.
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <cstdio>
#include <type_traits>

#include "capture.h"
#include "operators.h"
#include "sftrun/parallel/nccl_factory.h"

namespace {

class HostNccl final : public c10d::Backend {
 public:
  HostNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int world,
           std::chrono::milliseconds timeout)
      : c10d::Backend(rank, world) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), rank, world, options);
  }
  ~HostNccl() override {
    if (is_open_) std::fputs("host-backed device: NCCL's group was never shut down\n", stderr);
  }
  const std::string getBackendName() const override { return "nccl"; }
  void shutdown() override { is_open_ = false; }
  void abort() override { is_open_ = false; }
  c10d::ErrorType getError() override { return c10d::ErrorType::SUCCESS; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    auto host = on_host(tensors);
    return gloo_->allreduce(host, options);
  }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    TORCH_CHECK(
        output.numel() == getSize() * input.numel() && output.scalar_type() == input.scalar_type(),
        "an all-gather of ", input.sizes(), " into ", output.sizes());
    std::vector<at::Tensor> inputs = on_host({input});
    std::vector<std::vector<at::Tensor>> outputs = {on_host({output})[0].chunk(getSize())};
    return gloo_->allgather(outputs, inputs, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(
        input.numel() == getSize() * output.numel() && output.scalar_type() == input.scalar_type(),
        "a reduce-scatter of ", input.sizes(), " into ", output.sizes());
    std::vector<at::Tensor> host = on_host({output, input});
    return gloo_->_reduce_scatter_base(host[0], host[1], options);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_rows,
                                               std::vector<int64_t>& input_rows,
                                               const c10d::AllToAllOptions& options) override {
    TORCH_CHECK(output.scalar_type() == input.scalar_type(), "an all-to-all of two types");
    std::vector<at::Tensor> host = on_host({output, input});
    return gloo_->alltoall_base(host[0], host[1], output_rows, input_rows, options);
  }

  // NCCL knows no tags: messages between two ranks arrive in order.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int) override {
    auto host = on_host(tensors);
    return gloo_->send(host, to, 0);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int) override {
    auto host = on_host(tensors);
    return gloo_->recv(host, from, 0);
  }

 private:
  std::vector<at::Tensor> on_host(const std::vector<at::Tensor>& tensors) const {
    TORCH_CHECK(is_open_, "NCCL's group was shut down");
    for (const at::Tensor& tensor : tensors)
      if (tensor.is_cuda())
        host_backed::refuse_on_captured(host_backed::current_stream_id(tensor.device().index()),
                                        "a collective");
    host_backed::Call call;
    std::vector<at::Tensor> host;
    for (const at::Tensor& tensor : tensors) {
      TORCH_CHECK(tensor.is_cuda(), "NCCL takes tensors of a GPU");
      TORCH_CHECK(tensor.is_contiguous(), "NCCL takes dense tensors");
      host.push_back(call.to_host(tensor));
    }
    return host;
  }
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  bool is_open_ = true;
};

}  // namespace

extern "C" void sftrun_nccl_backend(void* store, int rank, int world, long timeout_ms,
                                    void* result) {
  *static_cast<c10::intrusive_ptr<c10d::Backend>*>(result) =
      c10::make_intrusive<HostNccl>(*static_cast<c10::intrusive_ptr<c10d::Store>*>(store), rank,
                                    world, std::chrono::milliseconds(timeout_ms));
}
static_assert(std::is_same_v<decltype(&sftrun_nccl_backend), sftrun::parallel::NcclFactory>);
