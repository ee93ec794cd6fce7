// The fake driver's streams and events.
//
// What a call adds to a stream waits in its queue until somebody waits for it; then it runs on the thread that waits, in the stream's order. An
// event that is asked, without being waited for, brings its stream on by a few operations, as time does on a card.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "driver.h"

namespace driver {

Handles<Stream>& streams = *new Handles<Stream>;

namespace {

Handles<Event>& events = *new Handles<Event>;
constexpr int STEPS_A_QUERY = 4;

const std::shared_ptr<Stream>& default_stream() {
    static const std::shared_ptr<Stream>& stream = *[] {
        auto s = std::make_shared<Stream>();
        s->blocking = true;
        return new std::shared_ptr<Stream>(std::move(s));
    }();
    return stream;
}

std::vector<std::shared_ptr<Stream>> all_streams() {
    std::vector<std::shared_ptr<Stream>> all = {default_stream()};
    std::lock_guard<std::mutex> lock(tables);
    for (const auto& [handle, stream] : streams.all) all.push_back(stream);
    return all;
}

// The operations that have been added so far.
uint64_t added_to(Stream& stream) {
    std::lock_guard<std::mutex> lock(stream.lock);
    return stream.added;
}

double now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Brings a stream to where an operation of it is done. False: the context has failed.
bool run_to(const std::shared_ptr<Stream>& stream, uint64_t position);

void launch(const Operation& operation) {
    if (card.counts[LAUNCHES].load() >= card.lost_after) return lose(ILLEGAL_ADDRESS);
    count(LAUNCHES);
    const emulator::Kernel& kernel = *operation.kernel;
    std::vector<void*> parameters(kernel.parameters);
    size_t at = 0;
    for (unsigned i = 0; i < kernel.parameters; i++) {
        parameters[i] = (void*)(operation.bytes.data() + at);
        at += (kernel.parameter_bytes[i] + 15) / 16 * 16;
    }
    if (!emulator::launch(kernel, operation.grid, operation.block, operation.shared_bytes, parameters.data())) return lose(LAUNCH_FAILED);
    for (unsigned i = 0; i < kernel.parameters; i++) {
        if (kernel.parameter_bytes[i] != 8) continue;
        void* pointer;
        memcpy(&pointer, parameters[i], 8);
        if (!guards_hold_near(pointer, kernel.name)) lose(LAUNCH_FAILED);
    }
}

void call(const Operation& operation) {
    if (card.counts[LAUNCHES].load() >= card.lost_after) return lose(ILLEGAL_ADDRESS);
    count(LAUNCHES);
    if (const CUresult failed = operation.function(operation.bytes.data())) lose(failed);
}

// Memory that an operation uses may have been freed since it was added.
bool still_there(const void* at, size_t bytes) { return in_memory(Where::Device, at, bytes) || in_memory(Where::Pinned, at, bytes); }

void run(const Operation& operation) {
    if (card.error != SUCCESS) return;
    const auto gone = [](const char* what) {
        fprintf(stderr, "emulator: a %s uses memory that has been freed\n", what);
        lose(ILLEGAL_ADDRESS);
    };
    std::shared_lock<std::shared_mutex> shared(writing, std::defer_lock);
    switch (operation.what) {
    case Operation::Launch:
        shared.lock();
        return launch(operation);
    case Operation::Call:
        shared.lock();
        return call(operation);
    case Operation::Copy: {
        shared.lock();
        const bool snapshot = !operation.bytes.empty();
        if (!still_there(operation.to, operation.size) || !(snapshot || still_there(operation.from, operation.size))) return gone("copy");
        memmove(operation.to, snapshot ? operation.bytes.data() : operation.from, operation.size);
        return;
    }
    case Operation::Set:
        shared.lock();
        if (!still_there(operation.to, operation.size)) return gone("memset");
        if (operation.width == 1) {
            memset(operation.to, (int)operation.value, operation.size);
        } else {
            std::fill_n((uint32_t*)operation.to, operation.size / 4, operation.value);
        }
        return;
    case Operation::Record:
        operation.record->milliseconds = now();
        operation.record->done = true;
        return;
    case Operation::Wait:
        // A stream that is gone has done everything.
        if (const auto stream = operation.record->stream.lock()) run_to(stream, operation.record->position);
        return;
    case Operation::Graph:
        for (const Operation& each : operation.graph->operations) run(each);
        return;
    }
}

// Runs the next operation, or waits while another thread runs it. The lock is held before and after.
void step(Stream& stream, std::unique_lock<std::mutex>& lock) {
    if (stream.busy) {
        stream.changed.wait(lock);
        return;
    }
    const Operation operation = std::move(stream.waiting.front());
    stream.waiting.pop_front();
    stream.busy = true;
    lock.unlock();
    run(operation);
    lock.lock();
    stream.busy = false;
    stream.done++;
    stream.changed.notify_all();
}

bool run_to(const std::shared_ptr<Stream>& stream, uint64_t position) {
    std::unique_lock<std::mutex> lock(stream->lock);
    while (stream->done < position) step(*stream, lock);
    return card.error == SUCCESS;
}

// The default stream and the blocking ones keep the order of calls: whoever comes next finds the others done.
void keep_order(const std::shared_ptr<Stream>& stream) {
    if (!stream->blocking) return;
    for (const auto& other : all_streams()) {
        if (other->blocking && other != stream && (other == default_stream() || stream == default_stream())) run_to(other, added_to(*other));
    }
}

CUresult wait_for(const std::shared_ptr<Stream>& stream, uint64_t position, const char* call) {
    bool waited;
    {
        std::unique_lock<std::mutex> lock(stream->lock);
        waited = stream->done < position;
        while (stream->done < position) step(*stream, lock);
    }
    if (waited) count(WAITS);
    if (card.error == SUCCESS) check_guards(call);
    return card.error;
}

// Brings a stream on by a few operations, unless another thread does.
bool is_done_after_some(const std::shared_ptr<Stream>& stream, uint64_t position) {
    std::unique_lock<std::mutex> lock(stream->lock);
    for (int i = 0; i < STEPS_A_QUERY && stream->done < position && !stream->busy; i++) step(*stream, lock);
    return stream->done >= position;
}

std::shared_ptr<Record> record_of(const Event& event) {
    std::lock_guard<std::mutex> lock(tables);
    return event.last;
}

CUresult create_stream(void** out, unsigned flags) {
    constexpr unsigned NON_BLOCKING = 1;
    auto stream = std::make_shared<Stream>();
    stream->blocking = !(flags & NON_BLOCKING);
    *out = streams.add(std::move(stream));
    return SUCCESS;
}

}  // namespace

std::shared_ptr<Stream> stream_of(void* handle) {
    // 0, and the two names of the default stream.
    return (uintptr_t)handle <= 2 ? default_stream() : streams.find(handle);
}

CUresult add(const std::shared_ptr<Stream>& stream, Operation&& operation) {
    {
        std::lock_guard<std::mutex> lock(tables);
        if (stream->capture) {
            if (!stream->capture->valid) return STREAM_CAPTURE_INVALIDATED;
            stream->capture->graph.operations.push_back(std::move(operation));
            return SUCCESS;
        }
    }
    keep_order(stream);
    std::lock_guard<std::mutex> lock(stream->lock);
    stream->added++;
    if (operation.record && operation.what == Operation::Record) operation.record->position = stream->added;
    stream->waiting.push_back(std::move(operation));
    return SUCCESS;
}

CUresult finish(const std::shared_ptr<Stream>& stream) {
    keep_order(stream);
    return wait_for(stream, added_to(*stream), "a synchronisation");
}

CUresult finish_everything() {
    for (const auto& stream : all_streams()) finish(stream);
    return card.error;
}

}  // namespace driver

using namespace driver;

API cuStreamCreate(void** out, unsigned flags) {
    BEGIN_CALL;
    return create_stream(out, flags);
}
API cuStreamCreateWithPriority(void** out, unsigned flags, int) {
    BEGIN_CALL;
    return create_stream(out, flags);
}
API cuStreamDestroy_v2(void* handle) {
    BEGIN_CALL;
    const auto stream = streams.find(handle);
    if (!stream) return INVALID_HANDLE;
    const CUresult result = finish(stream);
    streams.remove(handle);
    return result;
}
API cuStreamSynchronize(void* handle) {
    BEGIN_CALL;
    const auto stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (const CUresult refused = refuse_if_capturing(stream)) return refused;
    return finish(stream);
}
API cuStreamQuery(void* handle) {
    BEGIN_CALL;
    const auto stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (const CUresult refused = refuse_if_capturing(stream)) return refused;
    const bool done = is_done_after_some(stream, added_to(*stream));
    return card.error != SUCCESS ? (CUresult)card.error : done ? SUCCESS : NOT_READY;
}
API cuStreamWaitEvent(void* handle, void* event_handle, unsigned) {
    BEGIN_CALL;
    const auto stream = stream_of(handle);
    const auto event = events.find(event_handle);
    if (!stream || !event) return INVALID_HANDLE;
    if (event->captured) {
        std::lock_guard<std::mutex> lock(tables);
        // Within one stream there is nothing to wait for. Captures of several streams are not emulated.
        return stream->capture && event->last && event->last->stream.lock() == stream ? SUCCESS : NOT_SUPPORTED;
    }
    const auto record = record_of(*event);
    if (!record) return SUCCESS;
    Operation operation(Operation::Wait);
    operation.record = record;
    return add(stream, std::move(operation));
}
API cuCtxSynchronize() {
    BEGIN_CALL;
    if (const CUresult refused = refuse_in_capture()) return refused;
    return finish_everything();
}

API cuEventCreate(void** out, unsigned flags) {
    BEGIN_CALL;
    constexpr unsigned DISABLE_TIMING = 2;
    auto event = std::make_shared<Event>();
    event->timing = !(flags & DISABLE_TIMING);
    *out = events.add(std::move(event));
    return SUCCESS;
}
API cuEventDestroy_v2(void* handle) {
    BEGIN_CALL;
    return events.remove(handle) ? SUCCESS : INVALID_HANDLE;
}
API cuEventRecord(void* handle, void* stream_handle) {
    BEGIN_CALL;
    const auto event = events.find(handle);
    const auto stream = stream_of(stream_handle);
    if (!event || !stream) return INVALID_HANDLE;
    auto record = std::make_shared<Record>();
    record->stream = stream;
    {
        std::lock_guard<std::mutex> lock(tables);
        event->captured = stream->capture != nullptr;
        event->last = record;
    }
    if (event->captured) return SUCCESS;
    Operation operation(Operation::Record);
    operation.record = record;
    return add(stream, std::move(operation));
}
API cuEventSynchronize(void* handle) {
    BEGIN_CALL;
    const auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (event->captured) return CAPTURED_EVENT;
    const auto record = record_of(*event);
    const auto stream = record ? record->stream.lock() : nullptr;
    return stream ? wait_for(stream, record->position, "a synchronisation") : (CUresult)SUCCESS;
}
API cuEventQuery(void* handle) {
    BEGIN_CALL;
    const auto event = events.find(handle);
    if (!event) return INVALID_HANDLE;
    if (event->captured) return CAPTURED_EVENT;
    const auto record = record_of(*event);
    const auto stream = record ? record->stream.lock() : nullptr;
    const bool done = !stream || is_done_after_some(stream, record->position);
    return card.error != SUCCESS ? (CUresult)card.error : done ? SUCCESS : NOT_READY;
}
API cuEventElapsedTime_v2(float* milliseconds, void* begin_handle, void* end_handle) {
    BEGIN_CALL;
    const auto begin = events.find(begin_handle), end = events.find(end_handle);
    if (!begin || !end || !begin->timing || !end->timing) return INVALID_HANDLE;
    const auto first = record_of(*begin), last = record_of(*end);
    if (!first || !last) return INVALID_HANDLE;
    if (!first->done || !last->done) return NOT_READY;
    *milliseconds = (float)(last->milliseconds - first->milliseconds);
    return SUCCESS;
}
API cuEventElapsedTime(float* milliseconds, void* begin, void* end) { return cuEventElapsedTime_v2(milliseconds, begin, end); }
