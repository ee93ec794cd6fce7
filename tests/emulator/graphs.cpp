// The fake driver's graphs: while a stream captures, what is added to it goes to a graph instead; an instantiated graph is one operation, any
// number of times.
//
// As on a card, a call that would wait or take memory is refused during a capture (by the thread that captures, or by any where the capture's mode
// says so), and makes the capture worthless.
#include "driver.h"

namespace driver {
namespace {

enum Mode { Global = 0, ThreadLocal = 1, Relaxed = 2 };

Handles<Graph>& graphs = *new Handles<Graph>;
Handles<const Graph>& instances = *new Handles<const Graph>;

}  // namespace

CUresult refuse_in_capture() {
    CUresult result = SUCCESS;
    std::lock_guard<std::mutex> lock(tables);
    for (const auto& [handle, stream] : streams.all) {
        Capture* const capture = stream->capture.get();
        if (capture == nullptr || capture->mode == Relaxed) continue;
        if (capture->mode == ThreadLocal && capture->thread != std::this_thread::get_id()) continue;
        capture->valid = false;
        result = STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult refuse_if_capturing(const std::shared_ptr<Stream>& stream) {
    std::lock_guard<std::mutex> lock(tables);
    if (!stream->capture) return SUCCESS;
    stream->capture->valid = false;
    return STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace driver

using namespace driver;

API cuStreamBeginCapture_v2(void* handle, int mode) {
    BEGIN_CALL;
    const auto stream = streams.find(handle);
    // The default stream cannot be captured.
    if (!stream) return stream_of(handle) ? STREAM_CAPTURE_UNSUPPORTED : INVALID_HANDLE;
    std::lock_guard<std::mutex> lock(tables);
    if (stream->capture) return ILLEGAL_STATE;
    count(CAPTURES);
    stream->capture = std::make_unique<Capture>();
    stream->capture->mode = mode;
    stream->capture->thread = std::this_thread::get_id();
    return SUCCESS;
}
API cuStreamEndCapture(void* handle, void** out) {
    BEGIN_CALL;
    *out = nullptr;
    const auto stream = streams.find(handle);
    if (!stream) return INVALID_HANDLE;
    std::unique_ptr<Capture> capture;
    {
        std::lock_guard<std::mutex> lock(tables);
        if (!stream->capture) return ILLEGAL_STATE;
        if (stream->capture->mode != Relaxed && stream->capture->thread != std::this_thread::get_id()) return STREAM_CAPTURE_WRONG_THREAD;
        capture = std::move(stream->capture);
    }
    if (!capture->valid) return STREAM_CAPTURE_INVALIDATED;
    *out = graphs.add(std::make_shared<Graph>(std::move(capture->graph)));
    return SUCCESS;
}
API cuStreamIsCapturing(void* handle, int* status) {
    BEGIN_CALL;
    const auto stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    std::lock_guard<std::mutex> lock(tables);
    *status = !stream->capture ? 0 : stream->capture->valid ? 1 : 2;
    return SUCCESS;
}

API cuGraphInstantiateWithFlags(void** out, void* handle, unsigned long long) {
    BEGIN_CALL;
    const auto graph = graphs.find(handle);
    if (!graph) return INVALID_HANDLE;
    *out = instances.add(std::make_shared<const Graph>(*graph));
    return SUCCESS;
}
API cuGraphUpload(void* handle, void*) {
    BEGIN_CALL;
    return instances.find(handle) ? SUCCESS : INVALID_HANDLE;
}
API cuGraphLaunch(void* handle, void* stream_handle) {
    BEGIN_CALL;
    const auto graph = instances.find(handle);
    const auto stream = stream_of(stream_handle);
    if (!graph || !stream) return INVALID_HANDLE;
    count(GRAPH_LAUNCHES);
    Operation operation(Operation::Graph);
    operation.graph = graph;
    return add(stream, std::move(operation));
}
API cuGraphDestroy(void* handle) {
    BEGIN_CALL;
    return graphs.remove(handle) ? SUCCESS : INVALID_HANDLE;
}
API cuGraphExecDestroy(void* handle) {
    BEGIN_CALL;
    return instances.remove(handle) ? SUCCESS : INVALID_HANDLE;
}
