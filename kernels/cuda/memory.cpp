#include <cuda_runtime_api.h>

#include "check.h"
#include "kvlab/kernels/cuda_device.h"

namespace kvlab::kernels::cuda {
namespace {

/// An event that is destroyed with its holder.
class Event {
 public:
  Event() { KVLAB_CUDA(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) const { KVLAB_CUDA(cudaEventRecord(event_, stream)); }
  void wait() const { KVLAB_CUDA(cudaEventSynchronize(event_)); }
  double nanoseconds_since(const Event& begin) const {
    float milliseconds = 0;
    KVLAB_CUDA(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return 1e6 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream that is destroyed with its holder.
class OwnStream {
 public:
  OwnStream() { KVLAB_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { cudaStreamDestroy(stream_); }

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// What `work` sends to a stream, as a graph that is destroyed with its holder.
class OwnGraph {
 public:
  OwnGraph(cudaStream_t stream, const std::function<void()>& work) {
    KVLAB_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      // The stream must leave the capture before it is destroyed.
      cudaStreamEndCapture(stream, &graph);
      cudaGetLastError();
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    KVLAB_CUDA(cudaStreamEndCapture(stream, &graph));
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    KVLAB_CUDA(error);
    KVLAB_CUDA(cudaGraphUpload(graph_, stream));
  }
  OwnGraph(const OwnGraph&) = delete;
  OwnGraph& operator=(const OwnGraph&) = delete;
  ~OwnGraph() { cudaGraphExecDestroy(graph_); }

  void launch(cudaStream_t stream) const { KVLAB_CUDA(cudaGraphLaunch(graph_, stream)); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace

std::string device_name() {
  int id = 0;
  KVLAB_CUDA(cudaGetDevice(&id));
  cudaDeviceProp properties{};
  KVLAB_CUDA(cudaGetDeviceProperties(&properties, id));
  return properties.name;
}

std::shared_ptr<void> allocate(std::int64_t bytes) {
  // Empty memory has an address all the same: pointers that may not be null are none.
  const auto size = static_cast<size_t>(bytes > 0 ? bytes : 1);
  void* memory = nullptr;
  KVLAB_CUDA(cudaMalloc(&memory, size));
  std::shared_ptr<void> held(memory, [](void* free) { cudaFree(free); });
  KVLAB_CUDA(cudaMemset(memory, 0, size));
  synchronize();
  return held;
}

void copy_in(void* device, const void* host, std::int64_t bytes) {
  synchronize();
  if (bytes == 0) return;
  KVLAB_CUDA(cudaMemcpy(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
}

void copy_out(void* host, const void* device, std::int64_t bytes) {
  synchronize();
  if (bytes == 0) return;
  KVLAB_CUDA(cudaMemcpy(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
}

void synchronize() { KVLAB_CUDA(cudaDeviceSynchronize()); }

void copy_within(void* to, const void* from, std::int64_t bytes, Stream stream) {
  KVLAB_CUDA(
      cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
}

std::vector<double> time_graph(const std::function<void(int i, Stream)>& launch, int launches,
                               int samples) {
  synchronize();
  const OwnStream stream;
  const auto launch_all = [&] {
    for (int i = 0; i < launches; ++i) launch(i, stream.get());
  };
  launch_all();
  synchronize();
  const OwnGraph graph(stream.get(), launch_all);
  std::vector<double> nanoseconds;
  const Event begin, end;
  for (int i = 0; i < samples; ++i) {
    graph.launch(stream.get());
    begin.record(stream.get());
    graph.launch(stream.get());
    end.record(stream.get());
    end.wait();
    nanoseconds.push_back(end.nanoseconds_since(begin) / launches);
  }
  return nanoseconds;
}

}  // namespace kvlab::kernels::cuda
