// Trespasses: a program that does what a driver need not bear, to see that the stand-in ends it.
// Its argument says which one. With "none" the same calls are made by turns, and it ends well.

#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

namespace {

// What is being done to the stream.
enum Phase { nothing, beginning, ending };
std::atomic<Phase> phase{nothing};
std::atomic<bool> over{false};

// Asks about a stream, as an allocator does that wants to know whether its work is done.
void ask(CUstream stream) { cuStreamQuery(stream); }

void capture(CUstream stream) {
    CUgraph graph = nullptr;
    phase = beginning;
    cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    phase = ending;
    cuStreamEndCapture(stream, &graph);
    phase = nothing;
}

// Another thread begins and ends captures of the stream, while this one asks about it in the middle
// of that.
void ask_while(Phase wanted, CUstream stream) {
    std::thread other([stream] {
        for (int round = 0; round < 200; ++round) capture(stream);
        over = true;
    });
    while (!over) {
        if (phase == wanted) ask(stream);
    }
    other.join();
}

// Two threads work on the stream in turns, never at once.
void take_turns(CUstream stream) {
    std::mutex turns;
    std::thread other([stream, &turns] {
        for (int round = 0; round < 50; ++round) {
            std::lock_guard<std::mutex> turn(turns);
            capture(stream);
        }
        over = true;
    });
    while (!over) {
        std::lock_guard<std::mutex> turn(turns);
        ask(stream);
    }
    other.join();
}

}  // namespace

int main(int count, char **words) {
    const char *which = count > 1 ? words[1] : "";
    CUstream stream = nullptr;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (!std::strcmp(which, "none")) {
        take_turns(stream);
        cuStreamDestroy(stream);
    } else if (!std::strcmp(which, "beginning")) {
        ask_while(beginning, stream);
    } else if (!std::strcmp(which, "ending")) {
        ask_while(ending, stream);
    } else if (!std::strcmp(which, "destroying")) {
        std::thread other([stream] {
            cuStreamDestroy(stream);
            over = true;
        });
        while (!over) ask(stream);
        ask(stream);
        other.join();
    } else if (!std::strcmp(which, "destroyed")) {
        cuStreamDestroy(stream);
        ask(stream);
    } else {
        std::fprintf(stderr, "say none, beginning, ending, destroying or destroyed\n");
        return 2;
    }
    return 0;
}
