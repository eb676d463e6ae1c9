/* Every call of larder.h on simulated GPUs, and what goes wrong with each. It ends with 0 and "all
 * is well", or says which line did not hold. */
#include "check.h"

#define GIB ((size_t)1 << 30)

/* As PyTorch's segments are where nobody says anything. */
static const char *const PLAIN = "expandable_segments:False";
static const larder_pool_id NO_POOL = {0, 0};
static void *const MAIN = (void *)0x10;
static void *const SIDE = (void *)0x20;

static larder *open_larder(const char *devices, const char *settings) {
    larder *larder = NULL;
    OK(larder_open(devices, settings, &larder));
    CHECK(larder != NULL);
    return larder;
}

static void *take(larder *larder, int32_t device, size_t size, void *stream) {
    void *ptr = NULL;
    OK(larder_malloc(larder, device, size, stream, &ptr));
    CHECK(ptr != NULL);
    return ptr;
}

/* Counts what happens to a hook. */
typedef struct hook {
    int calls;
    int releases;
    larder *larder;
    void *last;
    uint64_t number;
} hook;

static void release(void *data) { ((hook *)data)->releases++; }

/* ---------------- versions, errors, opening */

static void versions_and_errors(void) {
    CHECK(strcmp(larder_version(), "0.1.0") == 0);
    CHECK(strcmp(larder_last_error(), "") == 0);
    CHECK(larder_last_device_code() == 0);
    larder_out_of_memory report;
    FAILS(larder_last_out_of_memory(&report), LARDER_BAD_ARGUMENT, "all met");
    FAILS(larder_last_out_of_memory(NULL), LARDER_BAD_ARGUMENT, "`out`");

    larder *none = (larder *)0x1234;
    FAILS(larder_open("sim:1GiB", "", NULL), LARDER_BAD_ARGUMENT, "`out`");
    FAILS(larder_open("gpu", "", &none), LARDER_BAD_ARGUMENT, "'gpu' names no devices");
    FAILS(larder_open("sim:1GiB", "frob:1", &none), LARDER_BAD_SETTING, "'frob'");
    FAILS(larder_open("sim:1GiB", "policy:frob", &none), LARDER_BAD_SETTING, "'frob'");
    FAILS(larder_open("sim:1GiB", "backend:cudaMallocAsync", &none), LARDER_BAD_SETTING,
          "cudaMallocAsync");
    FAILS(larder_open("sim:1GiB", "\xff", &none), LARDER_BAD_ARGUMENT, "UTF-8");
    FAILS(larder_open("cuda:4096", "", &none), LARDER_NO_DEVICE, "");
    CHECK(none == (larder *)0x1234);

    larder *two = open_larder("sim:1GiB*2", "expandable_segments:True,policy:torch-2.11");
    CHECK(larder_device_count(two) == 2);
    larder_close(two);
    larder_close(NULL);
    CHECK(larder_device_count(NULL) == 0);

    const struct {
        const char *settings;
        bool expandable;
    } defaults[] =
        {{"", true}, {"policy:torch-2.11", false}, {"garbage_collection_threshold:0.5", false}};
    for (size_t at = 0; at < sizeof defaults / sizeof *defaults; at++) {
        larder *larder = open_larder("sim:1GiB", defaults[at].settings);
        larder_settings settings;
        OK(larder_get_settings(larder, &settings));
        CHECK(settings.expandable_segments == defaults[at].expandable);
        larder_close(larder);
    }

    /* NULL reads the environment: LARDER_DEVICE=sim:1GiB, LARDER_CONF=max_split_size_mb:64. */
    larder *said = open_larder(NULL, NULL);
    larder_settings settings;
    OK(larder_get_settings(said, &settings));
    CHECK(settings.max_split_bytes == 64 * MIB);
    uint64_t total = 0;
    OK(larder_memory_info(said, 0, NULL, &total));
    CHECK(total == GIB);
    larder_close(said);
}

/* ---------------- memory */

static void memory(void) {
    larder *larder = open_larder("sim:1GiB*2", PLAIN);
    void *ptr = take(larder, 0, 1000, MAIN), *other = take(larder, 1, 30 * MIB, SIDE);
    larder_block_info info;
    OK(larder_block_of(larder, ptr, &info));
    CHECK(info.device == 0 && info.size == 1024 && info.stream == MAIN);
    OK(larder_block_of(larder, other, &info));
    CHECK(info.device == 1 && info.size == 30 * MIB && info.stream == SIDE);
    void *base = NULL;
    size_t size = 0;
    OK(larder_base_allocation(larder, ptr, &base, &size));
    CHECK(base == ptr && size == 2 * MIB);
    OK(larder_base_allocation(larder, ptr, NULL, NULL));
    OK(larder_record_stream(larder, ptr, SIDE));
    OK(larder_record_stream(larder, NULL, SIDE));

    uint64_t free_bytes = 0, total = 0, largest = 0;
    OK(larder_memory_info(larder, 1, &free_bytes, &total));
    CHECK(free_bytes == GIB - 30 * MIB && total == GIB);
    OK(larder_largest_free_block(larder, 0, &largest));
    CHECK(largest == 2 * MIB - 1024);

    char *at = (char *)ptr + 64 * 1024;
    void *placed = NULL;
    OK(larder_malloc_at(larder, 0, 3000, MAIN, at, &placed));
    CHECK(placed == at);
    OK(larder_block_of(larder, placed, &info));
    CHECK(info.device == 0 && info.size == 3072);
    FAILS(larder_malloc_at(larder, 0, 3000, MAIN, at, &placed), LARDER_NOT_FREE, "no free block");
    FAILS(larder_malloc_at(larder, 0, 3000, SIDE, at + 4096, &placed), LARDER_NOT_FREE, "stream");
    FAILS(larder_malloc_at(larder, 0, 3000, MAIN, at + 1, &placed), LARDER_BAD_ARGUMENT,
          "multiple of 512");
    FAILS(larder_malloc_at(larder, 3, 3000, MAIN, at, &placed), LARDER_NO_DEVICE, "no device 3");
    FAILS(larder_malloc_at(larder, 0, 3000, MAIN, at, NULL), LARDER_BAD_ARGUMENT, "`out`");
    FAILS(larder_malloc_at(NULL, 0, 3000, MAIN, at, &placed), LARDER_BAD_ARGUMENT, "`larder`");
    OK(larder_free(larder, at));

    void *nothing = (void *)0x1;
    OK(larder_malloc_at(larder, 0, 0, MAIN, at, &nothing));
    CHECK(nothing == NULL);
    nothing = (void *)0x1;
    OK(larder_malloc(larder, 0, 0, MAIN, &nothing));
    CHECK(nothing == NULL);
    OK(larder_free(larder, NULL));
    OK(larder_free(larder, other));
    FAILS(larder_free(larder, other), LARDER_UNKNOWN_ADDRESS, "no live allocation");
    FAILS(larder_free(larder, (void *)0x77), LARDER_UNKNOWN_ADDRESS, "0x77");
    FAILS(larder_block_of(larder, other, &info), LARDER_UNKNOWN_ADDRESS, "no live allocation");
    FAILS(larder_base_allocation(larder, other, NULL, NULL), LARDER_UNKNOWN_ADDRESS, "no live");
    FAILS(larder_record_stream(larder, other, MAIN), LARDER_UNKNOWN_ADDRESS, "no live");
    FAILS(larder_malloc(NULL, 0, 8, MAIN, &ptr), LARDER_BAD_ARGUMENT, "`larder`");
    FAILS(larder_malloc(larder, 0, 8, MAIN, NULL), LARDER_BAD_ARGUMENT, "`out`");
    FAILS(larder_malloc(larder, 2, 8, MAIN, &base), LARDER_NO_DEVICE, "no device 2");
    FAILS(larder_malloc(larder, -1, 8, MAIN, &base), LARDER_NO_DEVICE, "no device -1");
    FAILS(larder_free(NULL, ptr), LARDER_BAD_ARGUMENT, "`larder`");
    FAILS(larder_block_of(larder, ptr, NULL), LARDER_BAD_ARGUMENT, "`out`");

    /* The free of a block that another stream used is completed once everything is waited for. */
    OK(larder_free(larder, ptr));
    OK(larder_empty_cache(larder, NO_POOL));
    for (int32_t device = 0; device < 2; device++) {
        OK(larder_memory_info(larder, device, &free_bytes, NULL));
        CHECK(free_bytes == GIB);
    }

    double fraction = 0;
    OK(larder_memory_fraction(larder, 0, &fraction));
    CHECK(fraction == 1.0);
    OK(larder_set_memory_fraction(larder, 0, 0.25));
    OK(larder_memory_fraction(larder, 0, &fraction));
    CHECK(fraction == 0.25);
    FAILS(larder_set_memory_fraction(larder, 0, 1.5), LARDER_BAD_ARGUMENT, "1.5");
    FAILS(larder_malloc(larder, 0, 300 * MIB, MAIN, &ptr), LARDER_OUT_OF_MEMORY, "out of memory");
    larder_out_of_memory report;
    OK(larder_last_out_of_memory(&report));
    CHECK(report.device == 0 && !report.rejected && report.has_cap &&
          report.cap_bytes == 256 * MIB);
    CHECK(report.requested_bytes == 300 * MIB && report.rounded_bytes == 300 * MIB &&
          report.tried_bytes >= 300 * MIB);
    CHECK(report.free_bytes == GIB && report.total_bytes == GIB && report.allocated_bytes == 0);
    FAILS(larder_malloc(larder, 1, 2 * GIB - 5, MAIN, &ptr), LARDER_OUT_OF_MEMORY, "2.00 GiB");
    OK(larder_last_out_of_memory(&report));
    CHECK(report.device == 1 && !report.has_cap && report.requested_bytes == 2 * GIB - 5);
    CHECK(report.rounded_bytes == 2 * GIB && report.reserved_bytes == 0 &&
          report.private_free_bytes == 0);
    larder_close(larder);
}

/* ---------------- settings and statistics */

static void settings_and_statistics(void) {
    larder *larder = open_larder("sim:1GiB", "page_size_mb:2,expandable_segments:False");
    larder_settings settings;
    OK(larder_get_settings(larder, &settings));
    CHECK(settings.max_split_bytes == LARDER_UNLIMITED && settings.large_segment_bytes == 20 * MIB);
    CHECK(!settings.expandable_segments && settings.memory_fraction == 1.0);
    larder_stats stats;
    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.max_split_size == -1);

    settings.max_split_bytes = 100 * MIB;
    settings.roundup_divisions[3] = 4;
    settings.expandable_segments = true;
    OK(larder_set_settings(larder, &settings));
    OK(larder_get_settings(larder, &settings));
    CHECK(settings.max_split_bytes == 100 * MIB && settings.roundup_divisions[3] == 4 &&
          settings.expandable_segments);
    /* What programs restore is as good as no limit, and is shown as it was set. */
    settings.max_split_bytes = LARDER_UNLIMITED - MIB + 1;
    OK(larder_set_settings(larder, &settings));
    OK(larder_get_settings(larder, &settings));
    CHECK(settings.max_split_bytes == LARDER_UNLIMITED - MIB + 1);
    settings.max_split_bytes = 1;
    FAILS(larder_set_settings(larder, &settings), LARDER_BAD_SETTING, "max_split_size_mb");
    FAILS(larder_set_settings(larder, NULL), LARDER_BAD_ARGUMENT, "`settings`");
    FAILS(larder_get_settings(larder, NULL), LARDER_BAD_ARGUMENT, "`out`");

    /* A fraction that did not change does not touch the cap; one that did is put in force. */
    OK(larder_set_memory_fraction(larder, 0, 0.5));
    settings.max_split_bytes = LARDER_UNLIMITED;
    OK(larder_set_settings(larder, &settings));
    double fraction = 0;
    OK(larder_memory_fraction(larder, 0, &fraction));
    CHECK(fraction == 0.5);
    settings.memory_fraction = 0.75;
    OK(larder_set_settings(larder, &settings));
    OK(larder_memory_fraction(larder, 0, &fraction));
    CHECK(fraction == 0.75);

    /* The page size is ours and was not reset: one page of 2 MiB holds what is asked for. */
    void *ptr = take(larder, 0, 2 * MIB, MAIN);
    larder_expandable segments[2];
    size_t count = 0;
    bool has = false;
    OK(larder_expandable_segments(larder, 0, segments, 2, &count));
    CHECK(count == 1 && segments[0].stream == MAIN && !segments[0].is_small);
    CHECK(segments[0].mapped_bytes == 2 * MIB);
    OK(larder_expandable_segments(larder, 0, NULL, 0, &count));
    CHECK(count == 1);
    FAILS(larder_expandable_segments(larder, 0, NULL, 1, &count), LARDER_BAD_ARGUMENT,
          "`segments`");
    OK(larder_has_expandable(larder, 0, &has));
    CHECK(has);
    FAILS(larder_base_allocation(larder, ptr, NULL, NULL), LARDER_BAD_ARGUMENT, "expandable");

    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.allocation.all.current == 1 && stats.allocation.large_pool.current == 1);
    CHECK(stats.reserved_bytes.all.current == (int64_t)(2 * MIB) && stats.num_device_alloc >= 0);
    OK(larder_free(larder, ptr));
    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.allocated_bytes.all.peak == (int64_t)(2 * MIB) &&
          stats.allocated_bytes.all.freed > 0);
    OK(larder_reset_peak_stats(larder, 0));
    OK(larder_reset_accumulated_stats(larder, 0));
    OK(larder_check(larder));
    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.allocated_bytes.all.peak == 0 && stats.allocated_bytes.all.freed == 0);
    FAILS(larder_get_stats(larder, 7, &stats), LARDER_NO_DEVICE, "no device 7");

    OK(larder_configure(larder, "garbage_collection_threshold:0.5,max_split_size_mb:32"));
    OK(larder_get_settings(larder, &settings));
    CHECK(settings.garbage_collection_threshold == 0.5 && settings.max_split_bytes == 32 * MIB);
    OK(larder_configure(larder, ""));
    OK(larder_get_settings(larder, &settings));
    CHECK(settings.garbage_collection_threshold == 0.0 && settings.expandable_segments);
    FAILS(larder_configure(larder, "frob:1"), LARDER_BAD_SETTING, "'frob'");
    FAILS(larder_configure(larder, "policy:larder"), LARDER_BAD_SETTING, "opened");
    FAILS(larder_configure(larder, NULL), LARDER_BAD_ARGUMENT, "`settings`");
    OK(larder_check_own_settings("HERE", "policy:torch-2.11, page_size_mb:4"));
    FAILS(larder_check_own_settings("HERE", "expandable_segments:True"), LARDER_BAD_SETTING,
          "HERE: 'expandable_segments' is not one of Larder's own settings");
    FAILS(larder_check_own_settings("HERE", "policy:frob"), LARDER_BAD_SETTING,
          "HERE: there is no policy 'frob'");
    FAILS(larder_check_own_settings(NULL, ""), LARDER_BAD_ARGUMENT, "`name`");
    FAILS(larder_check_own_settings("HERE", NULL), LARDER_BAD_ARGUMENT, "`settings`");

    /* Plain memory where segments are expandable: its allocation can be named, as who exports it
     * needs. */
    OK(larder_plain_begin(larder));
    OK(larder_plain_begin(larder));
    OK(larder_plain_end(larder));
    void *plain = take(larder, 0, 2 * MIB, MAIN);
    OK(larder_plain_end(larder));
    FAILS(larder_plain_end(larder), LARDER_BAD_ARGUMENT, "began no plain memory");
    void *base = NULL;
    OK(larder_base_allocation(larder, plain, &base, NULL));
    CHECK(base != NULL);
    OK(larder_free(larder, plain));
    OK(larder_empty_cache(larder, NO_POOL));
    OK(larder_has_expandable(larder, 0, &has));
    CHECK(!has);
    larder_close(larder);
}

/* ---------------- sleep and wake */

static void sleep_and_wake(void) {
    larder *larder = open_larder("sim:1GiB*2", PLAIN);
    OK(larder_region_begin(larder, "weights", LARDER_KEEP_CONTENTS));
    void *weights = take(larder, 0, 30 * MIB, MAIN);
    OK(larder_regions_leave(larder));
    void *other = take(larder, 0, 2 * MIB, MAIN);
    OK(larder_regions_return(larder));
    FAILS(larder_regions_return(larder), LARDER_BAD_ARGUMENT, "has left no region");
    OK(larder_region_begin(larder, "cache", LARDER_KEEP_NOTHING));
    void *cache = take(larder, 0, 50 * MIB, MAIN);
    OK(larder_region_end(larder, "cache"));
    OK(larder_region_end(larder, "weights"));
    FAILS(larder_region_end(larder, "weights"), LARDER_BAD_ARGUMENT, "no region of the tag");
    FAILS(larder_region_begin(larder, "a,b", LARDER_KEEP_ZEROS), LARDER_BAD_ARGUMENT, "no comma");
    FAILS(larder_region_begin(larder, "", LARDER_KEEP_ZEROS), LARDER_BAD_ARGUMENT, "a name");
    FAILS(larder_region_begin(larder, NULL, LARDER_KEEP_ZEROS), LARDER_BAD_ARGUMENT, "`tag`");
    FAILS(larder_region_begin(larder, "a", (larder_keep)7), LARDER_BAD_ARGUMENT, "larder_keep");
    FAILS(larder_region_begin(larder, "a", LARDER_KEEP_AS_TAGGED), LARDER_BAD_ARGUMENT, "itself");

    larder_slept slept;
    OK(larder_sleep(larder, 0, "weights,cache", LARDER_KEEP_AS_TAGGED, &slept));
    CHECK(slept.asleep_bytes >= 80 * MIB && slept.kept_bytes == 30 * MIB);
    CHECK(slept.plain_bytes == 0);
    FAILS(larder_sleep(larder, 0, "frob", LARDER_KEEP_AS_TAGGED, NULL), LARDER_BAD_ARGUMENT,
          "the tag \"frob\"");
    larder_sleep_stats stats;
    OK(larder_get_sleep_stats(larder, 0, &stats));
    CHECK(stats.asleep_bytes == slept.asleep_bytes && stats.used_bytes == 80 * MIB);
    CHECK(stats.kept_bytes == 30 * MIB && stats.generation == 0);
    OK(larder_free(larder, cache));
    OK(larder_wake(larder, 0, "weights"));
    OK(larder_wake(larder, 0, NULL));
    OK(larder_get_sleep_stats(larder, 0, &stats));
    CHECK(stats.asleep_bytes == 0 && stats.generation >= 1);
    OK(larder_set_keep_limit(larder, 0, 0));

    /* Plain memory of no tag stays, and is named. */
    OK(larder_sleep(larder, 0, NULL, LARDER_KEEP_AS_TAGGED, &slept));
    CHECK(slept.plain_bytes >= 2 * MIB);
    void *filler = take(larder, 0, 990 * MIB, MAIN);
    FAILS(larder_wake(larder, 0, "weights"), LARDER_NOT_WOKEN, "are missing");
    OK(larder_free(larder, filler));
    OK(larder_wake(larder, 0, "weights"));
    OK(larder_free(larder, weights));
    OK(larder_free(larder, other));
    larder_close(larder);
}

/* ---------------- private pools */

static void *source_alloc(void *data, size_t size, int32_t device, void *stream) {
    hook *hook = data;
    CHECK(device == 1 && stream == MAIN);
    hook->calls++;
    /* Addresses of nobody, far away from those of the simulated GPUs. */
    hook->number += 64 * MIB;
    return size > 32 * MIB ? NULL : (void *)(uintptr_t)hook->number;
}

static void source_free(void *data, void *ptr, size_t size, int32_t device, void *stream) {
    CHECK(ptr != NULL && size > 0 && device == 1 && stream == MAIN);
    ((hook *)data)->calls--;
}

static bool takes_side(void *data, void *stream) {
    ((hook *)data)->calls++;
    return stream == SIDE;
}

static void pools(void) {
    larder *larder = open_larder("sim:1GiB*2", PLAIN);
    const larder_pool_id pool = {0, 1}, graph = {1, 0}, mine = {0, 9};
    uint32_t uses = 7;
    OK(larder_pool_uses(larder, 0, pool, &uses));
    CHECK(uses == 0);
    OK(larder_pool_add_use(larder, 0, pool, NULL));
    OK(larder_pool_add_use(larder, 0, pool, NULL));
    OK(larder_pool_uses(larder, 0, pool, &uses));
    CHECK(uses == 2);
    OK(larder_pool_drop_use(larder, 0, pool));
    FAILS(larder_pool_add_use(larder, 0, NO_POOL, NULL), LARDER_BAD_POOL, "(0, 0)");
    FAILS(larder_pool_drop_use(larder, 0, mine), LARDER_BAD_POOL, "no such pool");

    /* Scopes of every kind. */
    larder_filter filter = {.kind = LARDER_FILTER_ANY};
    OK(larder_pool_begin(larder, 0, pool, &filter));
    FAILS(larder_pool_begin(larder, 0, pool, &filter), LARDER_BAD_POOL, "already");
    void *inside = take(larder, 0, 1000, MAIN);
    OK(larder_pool_end(larder, 0, pool));
    FAILS(larder_pool_end(larder, 0, pool), LARDER_BAD_POOL, "no requests");
    filter = (larder_filter){.kind = LARDER_FILTER_STREAM, .stream = SIDE};
    OK(larder_pool_begin(larder, 0, pool, &filter));
    void *outside = take(larder, 0, 1000, MAIN), *side = take(larder, 0, 1000, SIDE);
    OK(larder_pool_end(larder, 0, pool));
    filter = (larder_filter){.kind = LARDER_FILTER_THREAD};
    OK(larder_pool_begin(larder, 0, pool, &filter));
    void *thread = take(larder, 0, 1000, MAIN);
    OK(larder_pool_end(larder, 0, pool));
    filter = (larder_filter){.kind = LARDER_FILTER_CAPTURE, .stream = MAIN};
    OK(larder_pool_begin(larder, 0, pool, &filter));
    void *free_stream = take(larder, 0, 1000, MAIN);
    OK(larder_pool_end(larder, 0, pool));
    bool same = false;
    void *const live[] = {inside, side, thread};
    OK(larder_pool_has_live(larder, 0, pool, live, 3, &same));
    CHECK(same);
    OK(larder_pool_has_live(larder, 0, pool, live, 2, &same));
    CHECK(!same);
    FAILS(larder_pool_has_live(larder, 0, pool, NULL, 2, &same), LARDER_BAD_ARGUMENT, "`ptrs`");
    FAILS(larder_pool_has_live(larder, 0, mine, NULL, 0, &same), LARDER_BAD_POOL, "no such pool");

    /* A function is asked for each request, and released with its scope or when it is refused. */
    hook asked = {0};
    filter = (larder_filter){LARDER_FILTER_FUNCTION, NULL, takes_side, release, &asked};
    OK(larder_pool_begin(larder, 0, graph, &filter));
    void *graph_ptr = take(larder, 0, 1000, SIDE), *plain = take(larder, 0, 1000, MAIN);
    CHECK(asked.calls == 2 && asked.releases == 0);
    FAILS(larder_pool_begin(larder, 0, graph, &filter), LARDER_BAD_POOL, "already");
    CHECK(asked.releases == 1);
    OK(larder_pool_end(larder, 0, graph));
    CHECK(asked.releases == 2);
    FAILS(larder_pool_begin(larder, 5, graph, &filter), LARDER_NO_DEVICE, "no device 5");
    CHECK(asked.releases == 3);
    filter.takes = NULL;
    FAILS(larder_pool_begin(larder, 0, graph, &filter), LARDER_BAD_ARGUMENT, "`takes`");
    CHECK(asked.releases == 4);
    filter.kind = (larder_filter_kind)77;
    FAILS(larder_pool_begin(larder, 0, graph, &filter), LARDER_BAD_ARGUMENT, "77");
    FAILS(larder_pool_begin(larder, 0, graph, NULL), LARDER_BAD_ARGUMENT, "`filter`");
    void *const graph_live[] = {graph_ptr};
    OK(larder_pool_has_live(larder, 0, graph, graph_live, 1, &same));
    CHECK(same);

    OK(larder_pool_set_use_on_oom(larder, 0, pool, true));
    OK(larder_pool_set_no_split(larder, 0, graph));
    FAILS(larder_pool_set_use_on_oom(larder, 0, mine, true), LARDER_BAD_POOL, "no such pool");
    FAILS(larder_pool_set_no_split(larder, 0, mine), LARDER_BAD_POOL, "no such pool");

    /* What each pool holds. */
    larder_pool_id names[4];
    larder_counters reserved[4];
    size_t count = 0;
    OK(larder_pool_reserved(larder, 0, names, reserved, 4, &count));
    CHECK(count == 2 && names[0].b == 1 && names[1].a == 1);
    CHECK(reserved[0].all.current == (int64_t)(4 * MIB) &&
          reserved[0].small_pool.current == (int64_t)(4 * MIB));
    CHECK(reserved[0].large_pool.current == 0 && reserved[1].all.peak == (int64_t)(2 * MIB));
    OK(larder_pool_reserved(larder, 0, NULL, NULL, 0, &count));
    CHECK(count == 2);
    FAILS(larder_pool_reserved(larder, 0, NULL, NULL, 1, &count), LARDER_BAD_ARGUMENT, "`pools`");
    FAILS(larder_pool_reserved(larder, 0, names, reserved, 4, NULL), LARDER_BAD_ARGUMENT,
          "`count`");

    /* A pool with memory of its own. */
    hook given = {.number = (uint64_t)1 << 36};
    const larder_source source =
        {.alloc = source_alloc, .free = source_free, .release = release, .data = &given};
    OK(larder_pool_add_use(larder, 1, mine, &source));
    FAILS(larder_pool_add_use(larder, 1, mine, &source), LARDER_BAD_POOL, "exists");
    CHECK(given.releases == 1);
    const larder_source half = {.alloc = source_alloc, .release = release, .data = &given};
    FAILS(larder_pool_add_use(larder, 1, pool, &half), LARDER_BAD_ARGUMENT, "`free`");
    CHECK(given.releases == 2);
    filter = (larder_filter){.kind = LARDER_FILTER_ANY};
    OK(larder_pool_begin(larder, 1, mine, &filter));
    void *brought = take(larder, 1, 1000, MAIN), *none = NULL;
    CHECK((uint64_t)(uintptr_t)brought == given.number && given.calls == 1);
    FAILS(larder_malloc(larder, 1, 500 * MIB, MAIN, &none), LARDER_OUT_OF_MEMORY, "out of memory");
    OK(larder_pool_end(larder, 1, mine));
    OK(larder_free(larder, brought));
    OK(larder_pool_drop_use(larder, 1, mine));
    OK(larder_pool_drop_use(larder, 1, mine));
    const int held = given.calls;
    OK(larder_empty_cache(larder, mine));
    CHECK(given.calls == held - 1 && given.releases == 3);

    /* The memory of a pool that nobody uses goes, and what was counted of it stays. */
    void *const all[] = {inside, outside, side, thread, free_stream, graph_ptr, plain};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) OK(larder_free(larder, all[at]));
    OK(larder_pool_drop_use(larder, 0, graph));
    OK(larder_empty_cache(larder, graph));
    OK(larder_pool_reserved(larder, 0, names, reserved, 4, &count));
    CHECK(count == 2 && reserved[1].all.current == 0 &&
          reserved[1].all.freed == (int64_t)(2 * MIB));
    larder_close(larder);
}

static bool current_stream(void *data, int32_t device, void **stream) {
    ((hook *)data)->calls++;
    *stream = SIDE;
    return device == 0;
}

/* Streams that are gone, and what may be said of captures. A simulated GPU captures nothing by
 * itself. */
static void streams(void) {
    larder *larder = open_larder("sim:1GiB", PLAIN);
    void *own = take(larder, 0, 30 * MIB, SIDE), *used = take(larder, 0, 2 * MIB, MAIN);
    OK(larder_record_stream(larder, used, SIDE));
    OK(larder_free(larder, own));
    larder_stats stats;
    OK(larder_forget_stream(larder, 0, SIDE));
    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.reserved_bytes.all.current == (int64_t)(20 * MIB));
    OK(larder_free(larder, used));
    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.active.all.current == 0);
    OK(larder_stream_is_gone(larder, 0, MAIN));
    OK(larder_get_stats(larder, 0, &stats));
    CHECK(stats.reserved_bytes.all.current == 0);
    FAILS(larder_forget_stream(larder, 0, NULL), LARDER_BAD_ARGUMENT, "default stream");
    FAILS(larder_stream_is_gone(larder, 0, NULL), LARDER_BAD_ARGUMENT, "default stream");
    FAILS(larder_forget_stream(larder, 3, SIDE), LARDER_NO_DEVICE, "no device 3");

    const larder_pool_id pool = {1, 0};
    larder_capture capture = 0;
    FAILS(larder_capture_begin(larder, 0, MAIN), LARDER_BAD_ARGUMENT, "no scope is open");
    FAILS(larder_capture_start(larder, 0, MAIN, &capture), LARDER_BAD_ARGUMENT, "no scope is open");
    FAILS(larder_capture_start(larder, 0, MAIN, NULL), LARDER_BAD_ARGUMENT, "`out`");
    const larder_filter filter = {.kind = LARDER_FILTER_CAPTURE, .stream = MAIN};
    OK(larder_pool_begin(larder, 0, pool, &filter));
    FAILS(larder_capture_begin(larder, 0, MAIN), LARDER_BAD_ARGUMENT, "under no capture");
    FAILS(larder_capture_start(larder, 0, MAIN, &capture), LARDER_BAD_ARGUMENT, "under no capture");
    FAILS(larder_capture_stop(larder, 0, capture), LARDER_BAD_ARGUMENT,
          "no capture has the token 0");
    OK(larder_capture_end(larder, 0, MAIN));

    hook told = {0}, refused = {0};
    OK(larder_on_current_stream(larder, 0, current_stream, release, &told));
    OK(larder_empty_cache(larder, NO_POOL));
    CHECK(told.calls > 0 && told.releases == 0);
    FAILS(larder_on_current_stream(larder, 0, NULL, release, &refused), LARDER_BAD_ARGUMENT,
          "`current`");
    CHECK(refused.releases == 1);
    OK(larder_pool_end(larder, 0, pool));
    larder_close(larder);
    CHECK(told.releases == 1);
}

static void checkpoints(void) {
    larder *larder = open_larder("sim:1GiB", PLAIN);
    const larder_pool_id pool = {1, 0}, other = {2, 0};
    const larder_filter filter = {.kind = LARDER_FILTER_ANY};
    OK(larder_pool_begin(larder, 0, pool, &filter));
    void *first = take(larder, 0, 1000, MAIN), *second = take(larder, 0, 2000, MAIN);
    larder_checkpoint *saved = NULL;
    OK(larder_pool_checkpoint(larder, 0, pool, &saved));
    OK(larder_free(larder, second));
    void *third = take(larder, 0, 4000, MAIN);
    CHECK(third != first);
    larder_restored *restored = NULL;
    OK(larder_pool_restore(larder, 0, saved, &restored));
    size_t freed = 0, live = 0;
    void *const *freed_list = larder_restored_freed(restored, &freed);
    void *const *live_list = larder_restored_live(restored, &live);
    CHECK(freed == 2 && freed_list[0] == first && freed_list[1] == third);
    CHECK(live == 2 && live_list[0] == first && live_list[1] == second);
    larder_restored_free(restored);
    larder_restored_free(NULL);
    CHECK(larder_restored_freed(NULL, &freed) != NULL && freed == 0);
    CHECK(larder_restored_live(NULL, NULL) != NULL);
    FAILS(larder_pool_checkpoint(larder, 0, other, &saved), LARDER_BAD_POOL, "no such pool");
    FAILS(larder_pool_checkpoint(larder, 0, pool, NULL), LARDER_BAD_ARGUMENT, "`out`");
    FAILS(larder_pool_restore(larder, 0, NULL, &restored), LARDER_BAD_ARGUMENT, "`checkpoint`");
    larder_checkpoint_free(saved);
    larder_checkpoint_free(NULL);
    OK(larder_free(larder, first));
    OK(larder_free(larder, second));
    OK(larder_pool_end(larder, 0, pool));
    larder_close(larder);
}

/* ---------------- other processes, other devices */

static void sharing(void) {
    /* Two larders on simulated GPUs are to each other what two processes are. */
    for (int pages = 0; pages < 2; pages++) {
        larder *owner = open_larder("sim:1GiB", pages ? "expandable_segments:True" : PLAIN);
        larder *guest = open_larder("sim:1GiB", PLAIN);
        (void)take(owner, 0, 1000, MAIN);
        void *ptr = take(owner, 0, 1000, MAIN);
        larder_shared *shared = NULL;
        OK(larder_share(owner, ptr, &shared));
        size_t length = 0;
        const uint8_t *bytes = larder_shared_bytes(shared, &length);
        CHECK(length > 2 && bytes[1] == (pages ? 'e' : 'c') &&
              larder_shared_offset(shared) == 1024);
        void *here = NULL, *again = NULL;
        OK(larder_open_shared(guest, 0, bytes, length, &here));
        OK(larder_open_shared(guest, 0, bytes, length, &again));
        CHECK(here == again);
        OK(larder_close_shared(guest, 0, here));
        OK(larder_close_shared(guest, 0, here));
        FAILS(larder_close_shared(guest, 0, here), LARDER_UNKNOWN_ADDRESS, "nothing");
        FAILS(larder_open_shared(guest, 0, bytes, 3, &here), LARDER_BAD_ARGUMENT,
              "no shared memory");
        FAILS(larder_open_shared(guest, 0, NULL, 3, &here), LARDER_BAD_ARGUMENT, "`bytes`");
        FAILS(larder_share(guest, ptr, &shared), LARDER_UNKNOWN_ADDRESS, "no live");
        larder_shared_free(shared);
        larder_shared_free(NULL);
        CHECK(larder_shared_bytes(NULL, &length) != NULL && length == 0 &&
              larder_shared_offset(NULL) == 0);
        larder_close(guest);
        larder_close(owner);
    }
    /* Memory that this very process has is refused by the device, with the driver's number. */
    larder *larder = open_larder("sim:1GiB*2", PLAIN);
    larder_shared *shared = NULL;
    void *here = NULL;
    OK(larder_share(larder, take(larder, 0, 1000, MAIN), &shared));
    size_t length = 0;
    const uint8_t *bytes = larder_shared_bytes(shared, &length);
    FAILS(larder_open_shared(larder, 0, bytes, length, &here), LARDER_DEVICE_ERROR, "refused");
    CHECK(larder_last_device_code() == 208);
    larder_shared_free(shared);
    OK(larder_enable_peer(larder, 1, 0));
    OK(larder_enable_peer(larder, 0, 0));
    FAILS(larder_enable_peer(larder, 2, 0), LARDER_NO_DEVICE, "no device 2");
    larder_close(larder);
}

/* ---------------- hooks */

static bool frees_something(void *data, int32_t device) {
    hook *hook = data;
    hook->calls++;
    if (hook->last == NULL) return false;
    CHECK(device == 0);
    OK(larder_free(hook->larder, hook->last));
    hook->last = NULL;
    return true;
}

static void sees_failure(void *data, const larder_out_of_memory *report) {
    hook *hook = data;
    larder_stats stats;
    OK(larder_get_stats(hook->larder, report->device, &stats));
    hook->number = report->requested_bytes;
    hook->calls++;
}

static void sees_event(void *data, const larder_event *event) {
    hook *hook = data;
    hook->calls++;
    hook->number = event->action;
    CHECK(event->device == 0 && strcmp(event->compile_context, "N/A") == 0 &&
          strcmp(event->user_metadata, "") == 0);
}

static uint64_t reserves(void *data, int32_t device, void *stream, uint64_t device_bytes) {
    hook *hook = data;
    hook->calls++;
    hook->number = device_bytes;
    CHECK(device == 0 && (stream == MAIN || stream == SIDE));
    return stream == MAIN ? 40 * MIB : 0;
}

/* How far apart the addresses of two requests are that do not fit into one segment. */
static size_t apart(larder *larder, void *stream) {
    char *first = take(larder, 0, 30 * MIB, stream), *second = take(larder, 0, 30 * MIB, stream);
    return (size_t)(second - first);
}

static void address_space(void) {
    larder *larder =
        open_larder("sim:1GiB",
                    "expandable_segments:True,expandable_segments_reserve_by_class:[a:0.03125]");
    void *const tagged = (void *)0x30;
    OK(larder_set_stream_class(larder, 0, tagged, "a"));
    CHECK(apart(larder, tagged) == 40 * MIB);
    OK(larder_set_stream_class(larder, 0, tagged, ""));
    hook hook = {0}, refused = {0};
    OK(larder_on_reserve(larder, 0, reserves, release, &hook));
    CHECK(apart(larder, MAIN) == 40 * MIB && apart(larder, SIDE) == 30 * MIB);
    CHECK(hook.calls == 4 && hook.number == GIB);
    FAILS(larder_on_reserve(larder, 0, NULL, release, &refused), LARDER_BAD_ARGUMENT, "`reserve`");
    FAILS(larder_on_reserve(larder, 1, reserves, release, &refused), LARDER_NO_DEVICE,
          "no device 1");
    FAILS(larder_set_stream_class(larder, 0, MAIN, NULL), LARDER_BAD_ARGUMENT, "`name`");
    FAILS(larder_set_stream_class(larder, 1, MAIN, "a"), LARDER_NO_DEVICE, "no device 1");
    CHECK(refused.releases == 2 && hook.releases == 0);
    larder_close(larder);
    CHECK(hook.releases == 1);
}

static void hooks(void) {
    larder *larder = open_larder("sim:64MiB", PLAIN);
    hook miss = {.larder = larder}, failure = {.larder = larder}, tracker = {0}, refused = {0};
    OK(larder_on_miss(larder, 0, frees_something, release, &miss));
    OK(larder_on_out_of_memory(larder, 0, sees_failure, release, &failure));
    OK(larder_on_event(larder, 0, sees_event, release, &tracker));
    void *ptr = NULL;
    miss.last = take(larder, 0, 40 * MIB, MAIN);
    CHECK(miss.calls == 1);
    ptr = take(larder, 0, 40 * MIB, MAIN);
    CHECK(miss.calls == 2 && miss.last == NULL);
    FAILS(larder_malloc(larder, 0, 50 * MIB, MAIN, &ptr), LARDER_OUT_OF_MEMORY, "out of memory");
    CHECK(failure.calls == 1 && failure.number == 50 * MIB);
    CHECK(tracker.calls == 6 && tracker.number == LARDER_OOM);
    FAILS(larder_on_miss(larder, 0, NULL, release, &refused), LARDER_BAD_ARGUMENT, "`callback`");
    FAILS(larder_on_out_of_memory(larder, 0, NULL, release, &refused), LARDER_BAD_ARGUMENT,
          "`observer`");
    FAILS(larder_on_event(larder, 3, sees_event, release, &refused), LARDER_NO_DEVICE,
          "no device 3");
    CHECK(refused.releases == 3);
    larder_close(larder);
    CHECK(miss.releases == 1 && failure.releases == 1 && tracker.releases == 1);
}

/* ---------------- history and snapshots */

/* A context is a count of references. */
typedef struct context {
    int references;
} context;

static context CONTEXTS[2];

static void *gather(void *data) {
    context *next = &CONTEXTS[*(int *)data];
    next->references++;
    return next;
}

static void retain_context(void *data, void *context_) {
    (void)data;
    ((context *)context_)->references++;
}

static void release_context(void *data, void *context_) {
    (void)data;
    ((context *)context_)->references--;
}

static uint64_t ticks(void *data) { return ++*(uint64_t *)data; }

static void histories(void) {
    larder *larder = open_larder("sim:1GiB*2", PLAIN);
    int which = 0;
    uint64_t now = 100;
    const larder_contexts contexts = {gather, retain_context, release_context, &which};
    larder_history_options options = {.max_entries = SIZE_MAX, .level = LARDER_LEVEL_ALL};
    FAILS(larder_record_history(larder, &options), LARDER_BAD_ARGUMENT, "hook");
    FAILS(larder_record_history(larder, NULL), LARDER_BAD_ARGUMENT, "`options`");
    CHECK(!larder_is_recording(larder) && !larder_is_recording(NULL));
    options.contexts = &contexts;
    options.clock = ticks;
    options.clock_data = &now;
    options.skip = 1u << LARDER_SEGMENT_ALLOC;
    OK(larder_record_history(larder, &options));
    CHECK(larder_is_recording(larder));

    larder_set_user_metadata("step 1");
    CHECK(strcmp(larder_user_metadata(), "step 1") == 0);
    larder_push_compile_context("graph 0");
    OK(larder_annotate(larder, 1, "warm up", true));
    void *first = take(larder, 1, 1000, MAIN);
    larder_pop_compile_context();
    larder_set_user_metadata("");
    which = 1;
    void *second = take(larder, 1, 2000, MAIN), *found = NULL;
    OK(larder_annotate(larder, 1, "warm up", false));
    OK(larder_context_of(larder, second, &found));
    CHECK(found == &CONTEXTS[1]);
    release_context(NULL, found);
    OK(larder_annotate_memory(larder, second, "the weights"));
    OK(larder_free(larder, first));
    OK(larder_context_of(larder, second, &found));
    release_context(NULL, found);
    FAILS(larder_context_of(larder, first, &found), LARDER_UNKNOWN_ADDRESS, "no live");

    larder_snapshot *snapshot = NULL;
    OK(larder_take_snapshot(larder, NO_POOL, true, &snapshot));
    size_t count = 0;
    const larder_snapshot_segment *segments = larder_snapshot_segments(snapshot, &count);
    CHECK(count == 1 && segments->device == 1 && segments->total_size == 2 * MIB &&
          segments->stream == MAIN);
    CHECK(segments->allocated_size == 2048 && segments->active_size == 2048 &&
          segments->requested_size == 2000);
    CHECK(!segments->is_large && !segments->is_expandable && segments->block_count == 3);
    CHECK(segments->addr == (uint64_t)(uintptr_t)first && segments->context == &CONTEXTS[0]);
    CHECK(segments->pool.a == 0 && segments->pool.b == 0);
    const larder_snapshot_block *blocks = segments->blocks;
    CHECK(blocks[0].state == LARDER_BLOCK_FREE && blocks[1].state == LARDER_BLOCK_LIVE);
    CHECK(blocks[1].addr == (uint64_t)(uintptr_t)second && blocks[1].size == 2048 &&
          blocks[1].requested_size == 2000);
    CHECK(blocks[1].context == &CONTEXTS[1]);
    const larder_event *events = larder_snapshot_events(snapshot, 1, &count);
    CHECK(count == 5 && events[0].action == LARDER_ALLOC &&
          events[4].action == LARDER_FREE_COMPLETED);
    CHECK(events[2].action == LARDER_ANNOTATE && events[2].addr == (uint64_t)(uintptr_t)second &&
          events[2].size == 2000);
    CHECK(strcmp(events[2].user_metadata, "the weights") == 0 &&
          strcmp(events[2].internal_metadata, "") == 0);
    CHECK(events[0].device == 1 && events[0].size == 1000 && events[0].context == &CONTEXTS[0]);
    CHECK(strcmp(events[0].compile_context, "graph 0") == 0 &&
          strcmp(events[0].user_metadata, "step 1") == 0);
    CHECK(strcmp(events[1].compile_context, "N/A") == 0 &&
          strcmp(events[1].user_metadata, "") == 0);
    CHECK(events[0].time_ns > 100 && events[1].time_ns > events[0].time_ns &&
          events[0].stream == MAIN);
    (void)larder_snapshot_events(snapshot, 0, &count);
    CHECK(count == 0);
    (void)larder_snapshot_events(snapshot, 9, &count);
    CHECK(count == 0);
    const larder_annotation *annotations = larder_snapshot_annotations(snapshot, &count);
    CHECK(count == 2 && annotations[0].start && !annotations[1].start &&
          annotations[0].device == 1);
    CHECK(strcmp(annotations[0].name, "warm up") == 0 &&
          annotations[1].time_ns > annotations[0].time_ns);

    /* What is shown stays good when the memory and the history are gone. */
    OK(larder_free(larder, second));
    OK(larder_stop_history(larder));
    CHECK(!larder_is_recording(larder));
    OK(larder_empty_cache(larder, NO_POOL));
    CHECK(events[0].context == &CONTEXTS[0] && CONTEXTS[0].references > 0);
    larder_snapshot_free(snapshot);
    larder_snapshot_free(NULL);

    larder_snapshot *pool = NULL;
    OK(larder_take_snapshot(larder, (larder_pool_id){0, 5}, false, &pool));
    (void)larder_snapshot_segments(pool, &count);
    CHECK(count == 0);
    larder_snapshot_free(pool);
    FAILS(larder_take_snapshot(larder, NO_POOL, true, NULL), LARDER_BAD_ARGUMENT, "`out`");
    options.level = (larder_level)9;
    FAILS(larder_record_history(larder, &options), LARDER_BAD_ARGUMENT, "level 9");
    options.level = LARDER_LEVEL_NEVER;
    options.skip = 1u << 20;
    FAILS(larder_record_history(larder, &options), LARDER_BAD_ARGUMENT, "`skip`");
    FAILS(larder_annotate(larder, 0, NULL, true), LARDER_BAD_ARGUMENT, "`name`");
    FAILS(larder_annotate_memory(larder, second, "late"), LARDER_UNKNOWN_ADDRESS, "no live");
    FAILS(larder_annotate_memory(larder, second, NULL), LARDER_BAD_ARGUMENT, "`text`");
    FAILS(larder_annotate_memory(NULL, second, "late"), LARDER_BAD_ARGUMENT, "`larder`");
    larder_close(larder);
    CHECK(CONTEXTS[0].references == 0 && CONTEXTS[1].references == 0);
}

/* ---------------- the larder of the process */

static void process_wide(void) {
    larder *larder = NULL, *again = NULL;
    OK(larder_process(&larder));
    OK(larder_process(&again));
    CHECK(larder == again && larder_device_count(larder) == 1);
    FAILS(larder_process(NULL), LARDER_BAD_ARGUMENT, "`out`");
    void *ptr = larder_torch_alloc(1000, 0, MAIN);
    larder_block_info info;
    OK(larder_block_of(larder, ptr, &info));
    CHECK(info.size == 1024 && info.stream == MAIN);
    larder_torch_free(ptr, 1000, 0, MAIN);
    CHECK(larder_block_of(larder, ptr, &info) == LARDER_UNKNOWN_ADDRESS);
    CHECK(larder_torch_alloc(2 * GIB, 0, MAIN) == NULL);
    larder_close(larder);
    CHECK(larder_device_count(larder) == 1);
}

/* ---------------- pinned memory of the host */

static void kept_pinned(void) {
    larder *host = NULL;
    OK(larder_open_pinned("sim:1GiB", "pinned_ahead:64MiB,pinned_idle_s:60", &host));
    larder_pinned_keeping keeping;
    OK(larder_get_pinned_keeping(host, &keeping));
    CHECK(keeping.limit_bytes == 0 && keeping.ahead_bytes == 64 * MIB && keeping.idle_s == 60);
    bool got = false;
    uint64_t released = 1;
    void *work = larder_host_stream();
    OK(larder_grow_ahead(host, 0, keeping.ahead_bytes, work, &got));
    CHECK(got);
    OK(larder_grow_ahead(host, 0, keeping.ahead_bytes, work, &got));
    CHECK(!got);
    OK(larder_release_unused(host, 0, 0, keeping.ahead_bytes, &released));
    CHECK(released == 0);
    OK(larder_release_unused(host, 0, 0, 0, &released));
    CHECK(released == 64 * MIB);
    OK(larder_free(host, take(host, 0, 32 * MIB, work)));
    OK(larder_release_above(host, 0, 32 * MIB, &released));
    CHECK(released == 0);
    OK(larder_release_above(host, 0, 16 * MIB, &released));
    CHECK(released == 32 * MIB);
    larder_close(host);
}

static void pinned(void) {
    larder *host = NULL;
    OK(larder_open_pinned("sim:1GiB", "pinned_limit:100MiB", &host));
    FAILS(larder_open_pinned("sim:1GiB", "pinned_limit:many", &host), LARDER_BAD_SETTING,
          "pinned_limit");
    void *work = larder_host_stream();
    void *ptr = take(host, 0, 60 * MIB, work);
    larder_stats stats;
    OK(larder_get_stats(host, 0, &stats));
    CHECK(stats.reserved_bytes.all.current == 60 * MIB);
    void *more = NULL;
    FAILS(larder_malloc(host, 0, 41 * MIB, work, &more), LARDER_OUT_OF_MEMORY,
          "of the 100.00 MiB that pinned_limit allows 60.00 MiB are held");
    CHECK(larder_stream_on(0, SIDE) == SIDE && larder_stream_on(3, NULL) != NULL);
    CHECK(larder_stream_on(3, SIDE) != larder_stream_on(2, SIDE));
    OK(larder_record_stream(host, ptr, larder_stream_on(0, SIDE)));
    OK(larder_free(host, ptr));
    OK(larder_poll(host));
    OK(larder_set_pinning(host, LARDER_PIN_REGISTER, 4));
    FAILS(larder_set_pinning(host, 7, 4), LARDER_BAD_ARGUMENT, "7 is no larder_pinning");
    larder_pinned_calls calls;
    OK(larder_get_pinned_calls(host, &calls));
    CHECK(calls.got.count == 0 && calls.by_size[0] == 0);
    OK(larder_reset_pinned_calls(host, true, true));
    larder_close(host);
    kept_pinned();

    larder *other = open_larder("sim:1GiB", "");
    FAILS(larder_get_pinned_calls(other, &calls), LARDER_BAD_ARGUMENT, "larder_open_pinned");
    larder_close(other);

    bool leaves = false;
    OK(larder_leaves_pinned("pinned:torch", &leaves));
    CHECK(leaves);
    OK(larder_leaves_pinned("policy:torch-2.11,pinned:larder", &leaves));
    CHECK(!leaves);
}

int main(void) {
    versions_and_errors();
    memory();
    settings_and_statistics();
    sleep_and_wake();
    pools();
    streams();
    checkpoints();
    sharing();
    hooks();
    address_space();
    histories();
    pinned();
    process_wide();
    puts("all is well");
    return 0;
}
