// Whose a stream is: a call about a stream that another thread is just beginning to capture,
// ceasing to capture or destroying, or that is destroyed, ends the process with a sentence. The
// driver may do no better, and only now and then; here such calls take a while, so that it shows.

#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace {

using Lock = std::unique_lock<std::mutex>;

// Whose a stream is while something is done to it, and what that is.
struct Hold {
    std::thread::id thread;
    const char *what;
};
std::map<CUstream_st *, Hold> held;

[[noreturn]] void refuse(const char *call, const char *why) {
    std::fprintf(stderr, "the stand-in ends the process: %s of a stream %s\n", call, why);
    std::fflush(stderr);
    std::abort();
}

// Ends the process if another thread is doing something to the stream.
void check_hands(CUstream_st *at, const char *call) {
    auto found = held.find(at);
    if (found != held.end() && found->second.thread != std::this_thread::get_id())
        refuse(call, found->second.what);
}

// Takes streams in hand for a while, during which others may do what they like with theirs.
class InHand {
public:
    InHand(Lock &lock, std::set<CUstream_st *> taken, const char *what) : taken(std::move(taken)) {
        for (CUstream_st *stream : this->taken) held[stream] = {std::this_thread::get_id(), what};
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(150));
        lock.lock();
    }
    ~InHand() {
        for (CUstream_st *stream : taken) held.erase(stream);
    }

private:
    std::set<CUstream_st *> taken;
};

}  // namespace
