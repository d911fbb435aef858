// What the stand-in promises: which mistakes stop a program, what a captured stream does, and that
// ranks exchange real bytes. Without LibTorch: the runtime's functions alone, in child processes.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

extern "C" void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*,
                                       void*, void*, int*);

namespace {

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("FAIL %s\n", what.c_str());
  ++failures;
}

struct Ended {
  int status = 0;
  std::string output;
};

/// `body` in a process of its own, with what it wrote to stderr.
Ended in_child(const std::function<void()>& body) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) std::abort();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 2);
    failures = 0;
    body();
    std::fflush(stdout);
    _exit(failures);
  }
  close(ends[1]);
  Ended ended;
  std::array<char, 4096> part;
  for (ssize_t n = 0; (n = read(ends[0], part.data(), part.size())) > 0;)
    ended.output.append(part.data(), static_cast<size_t>(n));
  close(ends[0]);
  waitpid(child, &ended.status, 0);
  return ended;
}

/// The mistake ends the process, with a line that says so.
void stops(const std::string& line, const std::function<void()>& mistake) {
  const Ended ended = in_child(mistake);
  const bool aborted = WIFSIGNALED(ended.status) && WTERMSIG(ended.status) == SIGABRT;
  expect(aborted && ended.output.starts_with("stand-in: ") &&
             ended.output.find(line) != std::string::npos,
         "stops with \"" + line + "\", not: " + ended.output);
}

void passes(const std::string& what, const std::function<void()>& body) {
  const Ended ended = in_child(body);
  expect(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0, what + ": " + ended.output);
}

char* device_memory(size_t size) {
  void* address = nullptr;
  cudaMalloc(&address, size);
  return static_cast<char*>(address);
}

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0);
  return stream;
}

const char kKernel = 0;

void launch(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr) {
  cudaLaunchKernel(&kKernel, grid, block, nullptr, shared, stream);
}

// ---- Memory.
void check_memory() {
  std::vector<char> host(1 << 20, 7);
  stops("of kind D2H whose pointers are H2D",
        [&] { cudaMemcpy(device_memory(64), host.data(), 64, cudaMemcpyDeviceToHost); });
  stops("beyond an allocation",
        [&] { cudaMemcpy(device_memory(512), host.data(), 513, cudaMemcpyHostToDevice); });
  stops("beyond an allocation", [] { cudaMemset(device_memory(512), 0, 513); });
  stops("freed", [&] {
    char* address = device_memory(512);
    cudaFree(address);
    cudaMemcpy(address, host.data(), 1, cudaMemcpyHostToDevice);
  });
  stops("not an allocation", [] { cudaFree(device_memory(512) + 1); });
  stops("not registered", [&] {
    cudaHostRegister(host.data(), host.size(), 0);
    cudaHostUnregister(host.data());
    cudaHostUnregister(host.data());
  });
  const Ended read = in_child([] { std::printf("%d", *device_memory(64)); });
  expect(WIFSIGNALED(read.status) && WTERMSIG(read.status) == SIGSEGV,
         "the host does not read device memory");
  passes("bytes come back, and more than there is does not come", [&] {
    char* address = device_memory(host.size());
    std::vector<char> back(host.size());
    cudaMemcpy(address, host.data(), host.size(), cudaMemcpyHostToDevice);
    cudaMemcpy(back.data(), address, back.size(), cudaMemcpyDeviceToHost);
    expect(back == host, "bytes");
    void* more = nullptr;
    expect(cudaMalloc(&more, size_t{1} << 40) == cudaErrorMemoryAllocation, "a terabyte");
    expect(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess,
           "the last error is told once");
  });
}

void check_virtual_memory() {
  passes("bytes lie where they were mapped, across two handles", [] {
    constexpr size_t kPart = size_t{2} << 20;
    CUmemAllocationProp properties{};
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUdeviceptr address = 0;
    cuMemAddressReserve(&address, 4 * kPart, 0, 0, 0);
    std::array<CUmemGenericAllocationHandle, 2> handles{};
    for (size_t i = 0; i < 2; ++i) {
      cuMemCreate(&handles[i], kPart, &properties, 0);
      cuMemMap(address + i * kPart, kPart, 0, handles[i], 0);
    }
    cuMemSetAccess(address, 2 * kPart, nullptr, 0);
    std::vector<char> host(2 * kPart, 3), back(2 * kPart);
    void* there = reinterpret_cast<void*>(address);
    cudaMemcpy(there, host.data(), host.size(), cudaMemcpyHostToDevice);
    cudaMemcpy(back.data(), there, back.size(), cudaMemcpyDeviceToHost);
    expect(back == host, "bytes");
    cuMemUnmap(address, 2 * kPart);
    for (const auto handle : handles) cuMemRelease(handle);
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    expect(free == total, "all of it is free again");
  });
  stops("not mapped", [] {
    CUdeviceptr address = 0;
    cuMemAddressReserve(&address, size_t{2} << 20, 0, 0, 0);
    cuMemUnmap(address, size_t{2} << 20);
  });
}

// ---- Launches.
void check_launches() {
  stops("with a grid of 0,1,1", [] { launch(dim3(0), dim3(32)); });
  stops("with a grid of 1,65536,1", [] { launch(dim3(1, 65536), dim3(32)); });
  stops("with a block of 1025,1,1", [] { launch(dim3(1), dim3(1025)); });
  stops("49153 bytes of shared memory", [] { launch(dim3(1), dim3(32), (48 << 10) + 1); });
  stops("opt-in for 232449 bytes", [] {
    launch(dim3(1), dim3(32));
    cudaFuncSetAttribute(&kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1);
  });
  stops("launch on a stream of device 0 while device 1 is current", [] {
    cudaStream_t stream = new_stream();
    cudaSetDevice(1);
    launch(dim3(1), dim3(32), 0, stream);
  });
  stops("cublasSgemm on a stream of device 0 while device 1 is current", [] {
    cudaStream_t stream = new_stream();
    cudaSetDevice(1);
    cublasHandle_t handle = nullptr;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    auto* data = reinterpret_cast<float*>(device_memory(64));
    const float one = 1;
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, data, 4, data, 4, &one, data, 4);
  });
  passes("with the opt-in", [] {
    launch(dim3(1), dim3(32));
    cudaFuncSetAttribute(&kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10);
    launch(dim3(1), dim3(1024), 227 << 10);
  });
}

// ---- Capture.
void check_capture() {
  passes("what is captured is done when it is launched", [] {
    cudaStream_t stream = new_stream();
    char* address = device_memory(64);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    cudaMemsetAsync(address, 5, 64, stream);
    launch(dim3(1), dim3(32), 0, stream);
    cudaGraph_t graph = nullptr;
    expect(cudaStreamEndCapture(stream, &graph) == cudaSuccess, "ends");
    size_t nodes = 0;
    cudaGraphGetNodes(graph, nullptr, &nodes);
    expect(nodes == 2, "two nodes");
    char value = 0;
    cudaMemcpy(&value, address, 1, cudaMemcpyDeviceToHost);
    expect(value == 0, "not done yet");
    cudaGraphExec_t executable = nullptr;
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphLaunch(executable, stream);
    cudaMemcpy(&value, address, 1, cudaMemcpyDeviceToHost);
    expect(value == 5, "done");
  });
  for (const auto& wait : std::vector<std::function<cudaError_t(cudaStream_t)>>{
           [](cudaStream_t stream) { return cudaStreamSynchronize(stream); },
           [](cudaStream_t) { return cudaDeviceSynchronize(); },
           [](cudaStream_t) {
             char value = 0;
             return cudaMemcpy(device_memory(64), &value, 1, cudaMemcpyHostToDevice);
           },
           [](cudaStream_t) {
             void* address = nullptr;
             return cudaMalloc(&address, 64);
           }}) {
    passes("a forbidden call spoils the capture", [&] {
      cudaStream_t stream = new_stream();
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
      expect(wait(stream) == cudaErrorStreamCaptureUnsupported, "is refused");
      cudaGraph_t graph = nullptr;
      expect(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated, "spoilt");
    });
  }
  passes("a stream that joins must be waited for", [] {
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t fork = nullptr, join = nullptr;
    cudaEventCreate(&fork);
    cudaEventCreate(&join);
    for (const bool waits : {true, false}) {
      cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
      cudaEventRecord(fork, stream);
      cudaStreamWaitEvent(other, fork, 0);
      launch(dim3(1), dim3(32), 0, other);
      cudaEventRecord(join, other);
      if (waits) cudaStreamWaitEvent(stream, join, 0);
      cudaGraph_t graph = nullptr;
      expect(cudaStreamEndCapture(stream, &graph) ==
                 (waits ? cudaSuccess : cudaErrorStreamCaptureUnjoined),
             waits ? "joined" : "unjoined");
    }
  });
  passes("a thread that is relaxed may allocate", [] {
    cudaStream_t stream = new_stream();
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    auto mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    void* address = nullptr;
    expect(cudaMalloc(&address, 64) == cudaSuccess, "memory");
  });
}

// ---- Ranks.
template <typename Body>
void as_ranks(int ranks, const Body& body) {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    failures = 0;
    cudaSetDevice(rank);
    ncclComm_t communicator = nullptr;
    ncclCommInitRank(&communicator, ranks, id, rank);
    body(communicator, rank);
    ncclCommDestroy(communicator);
    std::fflush(stdout);
    _exit(failures != 0);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    wait(&status);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a rank");
  }
}

template <typename T>
T* to_device(const std::vector<T>& values) {
  auto* address = reinterpret_cast<T*>(device_memory(values.size() * sizeof(T)));
  cudaMemcpy(address, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return address;
}

template <typename T>
std::vector<T> from_device(const T* address, size_t count) {
  std::vector<T> values(count);
  cudaMemcpy(values.data(), address, count * sizeof(T), cudaMemcpyDeviceToHost);
  return values;
}

void check_collectives() {
  as_ranks(2, [](ncclComm_t communicator, int rank) {
    constexpr size_t kMany = 300000;  // more than is exchanged at once
    float* values = to_device(std::vector<float>(kMany, static_cast<float>(rank + 1)));
    ncclAllReduce(values, values, kMany, ncclFloat32, ncclSum, communicator, nullptr);
    expect(from_device(values, kMany) == std::vector<float>(kMany, 3), "sum");
    double* doubles = to_device<double>({1.0 + rank, 5.0 - rank});
    ncclAllReduce(doubles, doubles, 2, ncclFloat64, ncclMax, communicator, nullptr);
    expect(from_device(doubles, 2) == std::vector<double>{2, 5}, "maximum");
    ncclAllReduce(values, values, 1, ncclFloat32, ncclAvg, communicator, nullptr);
    expect(from_device(values, 1)[0] == 3, "average");
    // 1 and 2 in bf16; their sum is 3.
    auto* halves = to_device<uint16_t>({static_cast<uint16_t>(rank ? 0x4000 : 0x3f80)});
    ncclAllReduce(halves, halves, 1, ncclBfloat16, ncclSum, communicator, nullptr);
    expect(from_device(halves, 1)[0] == 0x4040, "sum in bf16");
  });
  as_ranks(3, [](ncclComm_t communicator, int rank) {
    int* one = to_device<int>({rank});
    int* all = to_device<int>({0, 0, 0});
    ncclAllGather(one, all, 1, ncclInt32, communicator, nullptr);
    expect(from_device(all, 3) == std::vector<int>{0, 1, 2}, "gather");
    ncclReduceScatter(all, one, 1, ncclInt32, ncclSum, communicator, nullptr);
    expect(from_device(one, 1)[0] == 3 * rank, "reduce and scatter");
    ncclBroadcast(one, one, 1, ncclInt32, 2, communicator, nullptr);
    expect(from_device(one, 1)[0] == 6, "broadcast");
    int* own = to_device<int>({rank});
    ncclGroupStart();
    ncclSend(own, 1, ncclInt32, (rank + 1) % 3, communicator, nullptr);
    ncclRecv(one, 1, ncclInt32, (rank + 2) % 3, communicator, nullptr);
    ncclGroupEnd();
    expect(from_device(one, 1)[0] == (rank + 2) % 3, "a ring");
    // Two ranks that both send first, more than fits between them; in order.
    const std::vector<int> many(size_t{1} << 20, rank);
    int *values = to_device<int>(many), *received = to_device<int>(many);
    if (rank < 2) {
      ncclSend(values, many.size(), ncclInt32, 1 - rank, communicator, nullptr);
      ncclSend(own, 1, ncclInt32, 1 - rank, communicator, nullptr);
      ncclRecv(received, many.size(), ncclInt32, 1 - rank, communicator, nullptr);
      ncclRecv(one, 1, ncclInt32, 1 - rank, communicator, nullptr);
      expect(from_device(received, many.size()) == std::vector<int>(many.size(), 1 - rank),
             "sends do not wait");
      expect(from_device(one, 1)[0] == 1 - rank, "messages in order");
    }
  });
}

void check_disagreement() {
  stops("NCCL: rank", [] {
    as_ranks(2, [](ncclComm_t communicator, int rank) {
      float* values = to_device<float>({1, 2});
      ncclAllReduce(values, values, rank == 0 ? 1 : 2, ncclFloat32, ncclSum, communicator, nullptr);
    });
    std::abort();  // a rank did: its line is on stderr
  });
}

}  // namespace

int main() {
  setenv("SFTRUN_STANDIN_DEVICES", "3", 0);
  setenv("SFTRUN_STANDIN_NCCL_SECONDS", "5", 0);
  __cudaRegisterFunction(nullptr, &kKernel, nullptr, "_Z6kernelv", -1, nullptr, nullptr, nullptr,
                         nullptr, nullptr);
  check_memory();
  check_virtual_memory();
  check_launches();
  check_capture();
  check_collectives();
  check_disagreement();
  std::printf(failures ? "stand-in: %d failures\n" : "stand-in: ok\n", failures);
  return failures != 0;
}
