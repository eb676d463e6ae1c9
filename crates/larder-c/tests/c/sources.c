/* Sources with hooks, and symmetric pools, on simulated GPUs. It ends with 0 and "all is well", or
 * says which line did not hold. */
#include "check.h"

#include <pthread.h>

/* ---------------- a source */

#define PIECES 64

/* Memory in pieces of 32 MiB, from `begin` on; a fault spoils what it gives. */
typedef struct yard {
    uint64_t begin;
    size_t sizes[PIECES];
    size_t last;    /* the piece that was given last */
    size_t limit;
    char fault;
    bool refuses;   /* its hooks say no */
    int inits, resets, fractions, bases, records, begins, ends, pool_releases, releases, declines;
} yard;

static void *yard_alloc(void *data, size_t size, int32_t device, void *stream) {
    yard *yard = data;
    (void)device, (void)stream;
    if (yard->fault == '0' || size > yard->limit) return NULL;
    for (size_t at = 0; at < PIECES; at++) {
        if (yard->sizes[at] != 0) continue;
        yard->sizes[at] = size;
        yard->last = at;
        uint64_t place = yard->begin + (yard->fault == 'o' ? 0 : at) * 32 * MIB;
        return (void *)(uintptr_t)(place + (yard->fault == 'm' ? 8 : 0));
    }
    return NULL;
}

static void yard_free(void *data, void *ptr, size_t size, int32_t device, void *stream) {
    yard *yard = data;
    (void)device, (void)stream;
    /* Where it gave what it should not have, that comes back at once. */
    const size_t at = yard->fault == 'o' ? yard->last
        : ((uint64_t)(uintptr_t)ptr - yard->begin) / (32 * MIB);
    if (yard->fault == 'l') return;
    if (yard->fault == 0) CHECK(at < PIECES && yard->sizes[at] == size);
    yard->sizes[at] = 0;
}

static bool yard_decline(void *data, size_t size, int32_t device, void *stream) {
    (void)size, (void)device, (void)stream;
    ((yard *)data)->declines++;
    return true;
}
static bool yard_init(void *data, int32_t device) {
    (void)device;
    ((yard *)data)->inits++;
    return !((yard *)data)->refuses;
}
static bool yard_reset(void *data, int32_t device) {
    (void)device;
    ((yard *)data)->resets++;
    return true;
}
static bool yard_fraction(void *data, double fraction, int32_t device) {
    (void)fraction, (void)device;
    ((yard *)data)->fractions++;
    return !((yard *)data)->refuses;
}
static bool yard_base(void *data, void *segment, size_t size, void **base, size_t *base_size) {
    ((yard *)data)->bases++;
    CHECK(size <= 32 * MIB);
    *base = segment;
    *base_size = 32 * MIB;
    return true;
}
static bool yard_record(void *data, void *ptr, size_t size, void *stream) {
    (void)ptr, (void)size, (void)stream;
    ((yard *)data)->records++;
    return true;
}
static bool yard_begin(void *data, int32_t device, larder_pool_id pool) {
    (void)device, (void)pool;
    ((yard *)data)->begins++;
    return true;
}
static bool yard_end(void *data, int32_t device, larder_pool_id pool) {
    (void)device, (void)pool;
    ((yard *)data)->ends++;
    return true;
}
static bool yard_pool_release(void *data, int32_t device, larder_pool_id pool) {
    (void)device, (void)pool;
    ((yard *)data)->pool_releases++;
    return true;
}
static void yard_release(void *data) { ((yard *)data)->releases++; }

static yard new_yard(uint64_t number) {
    return (yard){.begin = ((uint64_t)1 << 44) + number * ((uint64_t)1 << 40), .limit = 32 * MIB};
}

static larder_source source_of(yard *yard) {
    return (larder_source){
        .alloc = yard_alloc,
        .free = yard_free,
        .release = yard_release,
        .data = yard,
        .registrar = "a yard",
        .decline = yard_decline,
        .init = yard_init,
        .reset = yard_reset,
        .set_memory_fraction = yard_fraction,
        .base_allocation = yard_base,
        .record_stream = yard_record,
        .begin_pool = yard_begin,
        .end_pool = yard_end,
        .release_pool = yard_pool_release,
    };
}

static void conformance(void) {
    yard honest = new_yard(0);
    larder_source source = source_of(&honest);
    OK(larder_source_check(&source, 0));
    CHECK(honest.releases == 1);
    source.properties = LARDER_SOURCE_UNSPLIT;
    OK(larder_source_check(&source, 0));
    for (size_t at = 0; at < PIECES; at++) CHECK(honest.sizes[at] == 0);

    const char *const words[] =
        {"out of memory", "no multiple of 512", "gave before", "give again"};
    for (int at = 0; at < 4; at++) {
        yard wrong = new_yard(1);
        wrong.fault = "0mol"[at];
        source = source_of(&wrong);
        FAILS(larder_source_check(&source, 0), LARDER_BAD_ARGUMENT, words[at]);
        CHECK(wrong.releases == 1);
    }
    yard honest_too = new_yard(2);
    source = source_of(&honest_too);
    source.properties = 8;
    FAILS(larder_source_check(&source, 0), LARDER_BAD_ARGUMENT, "0x8");
    FAILS(larder_source_check(NULL, 0), LARDER_BAD_ARGUMENT, "`source`");
}

static void hooks(void) {
    larder *larder = NULL;
    OK(larder_open("sim:1GiB", "", &larder));
    const larder_pool_id pool = {0, 7}, other = {0, 8};
    yard yard = new_yard(3);
    larder_source source = source_of(&yard);
    yard.refuses = true;
    FAILS(larder_pool_add_use(larder, 0, pool, &source), LARDER_DEVICE_ERROR, "`init` said no");
    yard.refuses = false;
    OK(larder_pool_add_use(larder, 0, pool, &source));
    CHECK(yard.inits == 2 && yard.releases == 1);
    const larder_filter any = {.kind = LARDER_FILTER_ANY};
    OK(larder_pool_begin(larder, 0, pool, &any));
    void *ptr = NULL, *base = NULL;
    size_t size = 0;
    OK(larder_malloc(larder, 0, 1000, NULL, &ptr));
    OK(larder_record_stream(larder, ptr, (void *)0x20));
    OK(larder_base_allocation(larder, ptr, &base, &size));
    CHECK(base == ptr && size == 32 * MIB && yard.bases == 1 && yard.records == 1);
    OK(larder_pool_end(larder, 0, pool));
    OK(larder_set_memory_fraction(larder, 0, 0.5));
    yard.refuses = true;
    FAILS(larder_set_memory_fraction(larder, 0, 1.0), LARDER_DEVICE_ERROR,
          "`set_memory_fraction` said no");
    double fraction = 0;
    OK(larder_memory_fraction(larder, 0, &fraction));
    CHECK(fraction == 0.5);
    OK(larder_empty_cache(larder, (larder_pool_id){0, 0}));
    CHECK(yard.begins == 1 && yard.ends == 1 && yard.resets == 1 && yard.fractions == 2);
    larder_source_counts counts;
    OK(larder_pool_source_counts(larder, 0, pool, &counts));
    CHECK(counts.made == 1 && counts.given_back == 0 && counts.held_bytes == 2 * MIB &&
          counts.failed == 0);
    FAILS(larder_pool_source_counts(larder, 0, other, &counts), LARDER_BAD_ARGUMENT, "no source");
    FAILS(larder_position_of(larder, ptr, &(larder_position){0}), LARDER_BAD_POOL, "not symmetric");
    FAILS(larder_pool_trim(larder, 0, pool, NULL), LARDER_BAD_POOL, "not symmetric");

    /* What a source should not have given goes back to it, and the larder is whole. */
    OK(larder_pool_begin(larder, 0, pool, &any));
    for (const char *fault = "mo"; *fault != 0; fault++) {
        yard.fault = *fault;
        void *none = NULL;
        FAILS(larder_malloc(larder, 0, 30 * MIB, NULL, &none), LARDER_BAD_POOL,
              *fault == 'm' ? "no multiple of 512" : "in use");
        CHECK(none == NULL);
        OK(larder_check(larder));
    }
    yard.fault = 0;
    OK(larder_pool_end(larder, 0, pool));
    OK(larder_free(larder, ptr));
    for (int use = 0; use < 3; use++) OK(larder_pool_drop_use(larder, 0, pool));
    OK(larder_empty_cache(larder, pool));
    CHECK(yard.pool_releases == 1 && yard.releases == 2 && yard.sizes[0] == 0);
    larder_close(larder);
}

/* ---------------- ranks */

#define RANKS 3

/* Where ranks, which are threads, say something and hear the others. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned char said[RANKS][LARDER_SEAL_BYTES];
    int present, leaving;
} table = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool exchange(void *data, const void *said, void *heard) {
    const int rank = *(int *)data;
    pthread_mutex_lock(&table.lock);
    while (table.leaving > 0) pthread_cond_wait(&table.changed, &table.lock);
    memcpy(table.said[rank], said, LARDER_SEAL_BYTES);
    if (++table.present == RANKS) table.leaving = RANKS, pthread_cond_broadcast(&table.changed);
    while (table.leaving == 0) pthread_cond_wait(&table.changed, &table.lock);
    memcpy(heard, table.said, sizeof table.said);
    if (--table.leaving == 0) table.present = 0, pthread_cond_broadcast(&table.changed);
    pthread_mutex_unlock(&table.lock);
    return true;
}

static bool no_exchange(void *data, const void *said, void *heard) {
    (void)data, (void)said, (void)heard;
    return false;
}

static larder_position positions[RANKS][40];

static void *rank_of(void *data) {
    int rank = *(int *)data;
    larder *larder = NULL;
    OK(larder_open("sim:1GiB", "", &larder));
    const larder_pool_id pool = {0, 9};
    yard yard = new_yard(7 - (uint64_t)rank);
    /* What comes first lies elsewhere on each rank. */
    yard.sizes[0] = yard.sizes[rank + 2] = 1;
    larder_source source = source_of(&yard);
    OK(larder_pool_add_symmetric(larder, 0, pool, &source, 4 * MIB));
    FAILS(larder_pool_add_symmetric(larder, 0, pool, &source, 0), LARDER_BAD_POOL, "exists");
    FAILS(larder_pool_set_use_on_oom(larder, 0, pool, true), LARDER_BAD_POOL, "symmetric");
    const larder_filter thread = {.kind = LARDER_FILTER_THREAD};
    void *live[40] = {NULL};
    OK(larder_pool_begin(larder, 0, pool, &thread));
    for (size_t at = 0; at < 40; at++) {
        OK(larder_malloc(larder, 0, (at % 7 + 1) * 300000, rank == 1 ? (void *)0x20 : NULL,
                         &live[at]));
        OK(larder_position_of(larder, live[at], &positions[rank][at]));
        if (at % 3 == 2) {
            OK(larder_free(larder, live[at - 1]));
            live[at - 1] = NULL;
        }
    }
    uint64_t calls = 0, counted = 0, hash = 0;
    OK(larder_pool_seal(larder, 0, pool, RANKS, exchange, &rank, &calls));
    OK(larder_pool_sequence(larder, 0, pool, &counted, &hash));
    CHECK(calls == counted && calls == 1 + 40 + 13 && hash != 0);
    FAILS(larder_pool_seal(larder, 0, pool, RANKS, NULL, NULL, NULL), LARDER_BAD_ARGUMENT,
          "`exchange`");
    FAILS(larder_pool_seal(larder, 0, pool, 0, exchange, &rank, NULL), LARDER_BAD_ARGUMENT,
          "ranks");
    FAILS(larder_pool_seal(larder, 0, pool, RANKS, no_exchange, NULL, NULL), LARDER_EXCHANGE_FAILED,
          "exchange failed");

    /* Rank 2 asks for something else. */
    void *odd = NULL;
    OK(larder_malloc(larder, 0, 512, NULL, &live[1]));
    OK(larder_malloc(larder, 0, rank == 2 ? 4096 : 1024, NULL, &odd));
    for (int again = 0; again < 2; again++) {
        FAILS(larder_pool_seal(larder, 0, pool, RANKS, exchange, &rank, NULL), LARDER_DIVERGED,
              "part at call 55: ranks 0 and 1 asked for 1024 bytes");
        CHECK(strstr(larder_last_error(), "rank 2 asked for 4.00 KiB") != NULL);
    }
    OK(larder_check(larder));
    OK(larder_free(larder, odd));
    for (size_t at = 0; at < 40; at++) OK(larder_free(larder, live[at]));
    OK(larder_pool_end(larder, 0, pool));
    uint64_t gone = 0;
    OK(larder_pool_trim(larder, 0, pool, &gone));
    larder_source_counts counts;
    OK(larder_pool_source_counts(larder, 0, pool, &counts));
    CHECK(gone > 0 && counts.made == gone && counts.given_back == gone && counts.held_bytes == 0);
    larder_close(larder);
    CHECK(yard.releases == 2);
    return NULL;
}

static void symmetric(void) {
    int numbers[RANKS];
    pthread_t threads[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        numbers[rank] = rank;
        CHECK(pthread_create(&threads[rank], NULL, rank_of, &numbers[rank]) == 0);
    }
    for (int rank = 0; rank < RANKS; rank++) CHECK(pthread_join(threads[rank], NULL) == 0);
    for (int rank = 1; rank < RANKS; rank++) {
        CHECK(memcmp(positions[rank], positions[0], sizeof positions[0]) == 0);
    }
}

int main(void) {
    conformance();
    hooks();
    symmetric();
    puts("all is well");
    return 0;
}
