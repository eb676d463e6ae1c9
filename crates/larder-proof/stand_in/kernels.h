// The proof's kernels, by their names, as work of the stand-in for the driver.

#pragma once

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "work.h"

namespace {

using Clock = std::chrono::steady_clock;
using u32 = unsigned int;
using u64 = unsigned long long;

u32 word(u32 seed, u64 place) {
    u32 x = seed ^ static_cast<u32>(place) ^ static_cast<u32>(place >> 32) * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

template <typename T>
T argument(void **arguments, int at) {
    T value;
    std::memcpy(&value, arguments[at], sizeof value);
    return value;
}

using Maker = Work (*)(void **);

template <typename Same>
void count(const u32 *words, u64 length, u64 *wrong, Same same) {
    u64 found = 0;
    for (u64 i = 0; i < length; ++i) found += !same(words[i], i);
    *wrong += found;
}

Work make_fill(void **a) {
    auto *words = argument<u32 *>(a, 0);
    auto length = argument<u64>(a, 1);
    auto seed = argument<u32>(a, 2);
    return [=] {
        for (u64 i = 0; i < length; ++i) words[i] = word(seed, i);
        return true;
    };
}

Work make_verify(void **a) {
    auto *words = argument<u32 *>(a, 0);
    auto length = argument<u64>(a, 1);
    auto seed = argument<u32>(a, 2);
    auto *wrong = argument<u64 *>(a, 3);
    return [=] {
        count(words, length, wrong, [=](u32 found, u64 i) { return found == word(seed, i); });
        return true;
    };
}

struct Span {
    u32 *words;
    u32 count;
    u32 seed;
};
struct Spans {
    Span spans[64];
};

Work make_fill_many(void **a) {
    auto all = std::make_shared<Spans>(argument<Spans>(a, 0));
    return [=] {
        for (const Span &span : all->spans) {
            for (u64 i = 0; i < span.count; ++i) span.words[i] = word(span.seed, i);
        }
        return true;
    };
}

Work make_verify_many(void **a) {
    auto all = std::make_shared<Spans>(argument<Spans>(a, 0));
    auto *wrong = argument<u64 *>(a, 1);
    return [=] {
        for (const Span &span : all->spans) {
            count(span.words, span.count, wrong, [&](u32 found, u64 i) {
                return found == word(span.seed, i);
            });
        }
        return true;
    };
}

Work make_delay(void **a) {
    auto duration = std::chrono::nanoseconds(argument<u64>(a, 0));
    auto end = std::make_shared<Clock::time_point>();
    return [=] {
        if (*end == Clock::time_point{}) *end = Clock::now() + duration;
        return Clock::now() >= *end;
    };
}

Work make_spin(void **a) {
    auto *flag = argument<volatile u32 *>(a, 0);
    auto value = argument<u32>(a, 1);
    return [=] { return *flag >= value; };
}

Work make_increment(void **a) {
    auto *words = argument<u32 *>(a, 0);
    auto length = argument<u64>(a, 1);
    return [=] {
        for (u64 i = 0; i < length; ++i) words[i] += 1;
        return true;
    };
}

Work make_expect(void **a) {
    auto *words = argument<u32 *>(a, 0);
    auto length = argument<u64>(a, 1);
    auto value = argument<u32>(a, 2);
    auto *wrong = argument<u64 *>(a, 3);
    return [=] {
        count(words, length, wrong, [=](u32 found, u64) { return found == value; });
        return true;
    };
}

const std::map<std::string, Maker> kernels{
    {"fill", make_fill},           {"verify", make_verify},
    {"fill_many", make_fill_many}, {"verify_many", make_verify_many},
    {"delay", make_delay},         {"spin", make_spin},
    {"increment", make_increment}, {"expect", make_expect}};

}  // namespace
