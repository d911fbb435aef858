#include "sftrun/kernels/cuda_device.h"

namespace sftrun::kernels {

const CudaEntry<std::string(at::Device device)> card_name("card_name");
const CudaEntry<std::string(at::Device device)> card_bus_id("card_bus_id");
const CudaEntry<int(at::Device device)> compute_capability("compute_capability");
const CudaEntry<int(at::Device device)> multiprocessors("multiprocessors");
const CudaEntry<at::Tensor(at::IntArrayRef shape, at::ScalarType dtype, at::Device device)>
    pinned_zeros("pinned_zeros");
const CudaEntry<CUstream_st*(at::Device device)> current_cuda_stream("current_cuda_stream");
const CudaEntry<void()> check_cuda_launch("check_cuda_launch");

}  // namespace sftrun::kernels
