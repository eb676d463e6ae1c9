/* larder.h: Larder, a caching allocator for GPU memory, for programs in C and in whatever calls C.
 *
 * A `larder` is the allocators of some devices, one each. Memory is handed out on a stream and,
 * once freed, handed out again on that stream at once; use on another stream must be told by
 * larder_record_stream. All functions may be called from any thread at any time, but for those that
 * say otherwise.
 *
 * Every call that can fail returns a larder_status. LARDER_OK is 0; after anything else
 * larder_last_error() tells the calling thread in one sentence what was wrong, nothing was changed,
 * and no result was written. Nothing ever unwinds or throws out of this library, and it never ends
 * the process.
 *
 * Hooks, which are functions that you give to the library, must not throw or unwind either. Each
 * comes with `data`, which is passed back to it, and most with `release`, which is called once with
 * `data` when the hook will not be called any more, or was refused; `release` may be NULL. Hooks
 * are called from whichever thread calls the library, also from several at once.
 *
 * Addresses are device addresses. A stream is CUDA's handle (a cudaStream_t or CUstream) of the
 * device's primary context; NULL is the default stream. Sizes are in bytes, times in nanoseconds.
 *
 * Whoever names a stream in a call has it for the time of the call: no other thread begins or ends
 * a capture of it, or destroys it, meanwhile. The library asks CUDA about that stream and about no
 * other that another thread may be capturing. A stream stays alive until larder_forget_stream was
 * called for it, or the larder is closed.
 */
#ifndef LARDER_H
#define LARDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------- versions and errors */

/* The version of this header. A library of the same version has the same layouts. */
#define LARDER_VERSION_MAJOR 0
#define LARDER_VERSION_MINOR 1

typedef enum larder_status {
    LARDER_OK = 0,
    LARDER_OUT_OF_MEMORY = 1,    /* see larder_last_out_of_memory */
    LARDER_UNKNOWN_ADDRESS = 2,  /* not a live address of this larder */
    LARDER_BAD_ARGUMENT = 3,     /* a null pointer, a fraction that is none, bytes that name
                                  * nothing, ... */
    LARDER_BAD_SETTING = 4,      /* a settings text that cannot be read, an unknown key */
    LARDER_BAD_POOL = 5,         /* a private pool cannot be used so */
    LARDER_NO_DEVICE = 6,        /* no such device, or no driver */
    LARDER_DEVICE_ERROR = 7,     /* the device refused a call; see larder_last_device_code */
    LARDER_NOT_SUPPORTED = 8,    /* the device cannot do this */
    LARDER_INTERNAL = 9,         /* a mistake of Larder's own, caught at the border */
    LARDER_DIVERGED = 10,        /* the ranks of a symmetric pool made different calls; the words
                                  * name the first */
    LARDER_EXCHANGE_FAILED = 11, /* the ranks of a symmetric pool could not compare their calls */
    LARDER_NOT_FREE = 12,        /* larder_malloc_at: no free block holds what was asked for
                                  * there */
    LARDER_NOT_WOKEN = 14,       /* memory could not be put to sleep, or woken: nothing changed */
    LARDER_OTHER_ERROR = 13      /* an error that has no code of its own yet; larder_last_error says
                                  * it in words */
} larder_status;

/* "0.1.0" */
const char *larder_version(void);

/* What went wrong in the calling thread's last call that failed; "" if none did. It stays valid
 * until that thread's next call that fails. */
const char *larder_last_error(void);

/* The driver's error number behind the calling thread's last LARDER_DEVICE_ERROR, or 0. */
int32_t larder_last_device_code(void);

/* A request that could not be met, in numbers. */
typedef struct larder_out_of_memory {
    int32_t device;
    bool rejected;               /* refused by throw_on_cudamalloc_oom before the device was
                                  * asked */
    bool has_cap;
    uint64_t requested_bytes;    /* as the caller said */
    uint64_t rounded_bytes;      /* after rounding */
    uint64_t tried_bytes;        /* what the device was asked for */
    uint64_t free_bytes;         /* of the device */
    uint64_t total_bytes;        /* of the device */
    uint64_t cap_bytes;          /* what may be held of it, if has_cap */
    uint64_t allocated_bytes;
    uint64_t reserved_bytes;
    uint64_t private_free_bytes; /* free bytes in private pools */
} larder_out_of_memory;

/* The calling thread's last LARDER_OUT_OF_MEMORY. LARDER_BAD_ARGUMENT if there was none. */
larder_status larder_last_out_of_memory(larder_out_of_memory *out);

/* ---------------- a larder */

typedef struct larder larder;

/* Makes allocators for devices.
 *
 * devices: "cuda" for all of this process's CUDA devices, "cuda:0" or "cuda:0,2" for some,
 *   "sim:80GiB" for a simulated GPU, "sim:80GiB*2" for two. NULL: what the environment variable
 *   LARDER_DEVICE says, else "cuda". The device numbers of all other calls are positions in this
 *   list's order, from 0. settings: "key:value,key:value", PyTorch's keys and Larder's own, for
 *   which see docs/c.md; among
 *   them policy:larder (the default), policy:tight and policy:torch-2.11. NULL: what the
 *   environment
 *   says, that is the first one set of PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, then
 *   LARDER_CONF. "" for none. Where none of PyTorch's keys is named, segments are expandable if the
 *   device has virtual memory, but not with policy:torch-2.11; where any is, all are as in
 * PyTorch. */
larder_status larder_open(const char *devices, const char *settings, larder **out);

/* Gives every cache back to its device and ends the larder. No other call may be running. Memory
 * that is still live stays with its device, because somebody may be using it. NULL is ignored. */
void larder_close(larder *larder);

/* The larder of the process, from the environment at the first call, never closed. It serves
 * larder_torch_alloc and larder_torch_free. */
larder_status larder_process(larder **out);

int32_t larder_device_count(const larder *larder);

/* For tests: whether everything holds that must always hold; slow. LARDER_INTERNAL if something
 * does not; larder_last_error says what. */
larder_status larder_check(larder *larder);

/* ---------------- memory */

/* Memory of at least size bytes for use on the stream. Size 0 gives NULL. */
larder_status larder_malloc(larder *larder, int32_t device, size_t size, void *stream, void **out);

/* Memory at this very address, a multiple of 512: where a program that is run again had it before,
 * say. A free block of the pool and the stream that larder_malloc would serve the request from must
 * hold all of it, else LARDER_NOT_FREE: the device is not asked for more. What lies before the
 * address in that block is handed out and given back on the way; it counts as one allocation more.
 * In the history the internal_metadata of all these events is "mallocWithAddress". */
larder_status larder_malloc_at(larder *larder, int32_t device, size_t size, void *stream, void *ptr,
                               void **out);

/* Gives memory back. The device is found by the address; NULL is ignored. */
larder_status larder_free(larder *larder, void *ptr);

/* The memory is used on this stream too: once freed it is handed out again only when the work
 * issued there by then is done. NULL is ignored, and so is the stream it was handed out on. */
larder_status larder_record_stream(larder *larder, void *ptr, void *stream);

/* The stream is about to be destroyed: waits for its work, and makes no call about it after that.
 * Memory that was handed out on it stays good; what is cached for it goes back to the device. It is
 * the caller's, and nobody issues work on it from here on. The default stream and one under a
 * capture are refused: LARDER_BAD_ARGUMENT. */
larder_status larder_forget_stream(larder *larder, int32_t device, void *stream);

/* As larder_forget_stream for a stream that was destroyed already: the whole device is waited for
 * instead. While a capture may be on that is refused, LARDER_BAD_ARGUMENT: say it again when the
 * capture is over. No call is made about the stream meanwhile. */
larder_status larder_stream_is_gone(larder *larder, int32_t device, void *stream);

/* The stream is of this class from now on; "" is none. Expandable segments that are made for it
 * reserve as many addresses as the setting expandable_segments_reserve_by_class says of the class,
 * or else expandable_segments_reserve. */
larder_status larder_set_stream_class(larder *larder, int32_t device, void *stream,
                                      const char *name);

/* Where a live address belongs, and how large its block is. */
typedef struct larder_block_info {
    int32_t device;
    size_t size;            /* of the block, what was asked for rounded up */
    void *stream;           /* that it was handed out on */
} larder_block_info;
larder_status larder_block_of(larder *larder, const void *ptr, larder_block_info *out);

/* The whole allocation of the device in which a live block lies. Either out may be NULL. Blocks of
 * expandable segments have none: LARDER_BAD_ARGUMENT. */
larder_status larder_base_allocation(larder *larder, const void *ptr, void **base, size_t *size);

typedef struct larder_pool_id {
    uint64_t a;
    uint64_t b;
} larder_pool_id;   /* {0, 0} names no private pool */

/* Waits for all events and gives everything cached back, on all devices. With a pool's name: the
 * memory of that private pool alone, if nobody uses it any more. */
larder_status larder_empty_cache(larder *larder, larder_pool_id pool);

/* Takes back what waits for work on other streams that is done by now, on all devices. The next
 * request does the same; whoever has a thread to spare saves it the questions. */
larder_status larder_poll(larder *larder);

/* Gives back segments that have lain free for so many nanoseconds, as far as calls of this have
 * seen: whoever wants it calls it a few times within that age. One that a request of `spared` bytes
 * can have stays; with 0 none does. `released`, which may be NULL, is set to how many bytes went.
 * From the first call on a hit takes a little longer. */
larder_status larder_release_unused(larder *larder, int32_t device, uint64_t age_ns, size_t spared,
                                    uint64_t *released);

/* Gives back segments that lie free and are larger than this. `released`, which may be NULL, is set
 * to how many bytes went. */
larder_status larder_release_above(larder *larder, int32_t device, size_t size,
                                   uint64_t *released);

/* Gets a segment for requests of this size to come, unless the cache has one for the stream. `got`,
 * which may be NULL, is set to whether it did: not where there is no room, and not where such
 * requests are served by expandable segments. */
larder_status larder_grow_ahead(larder *larder, int32_t device, size_t size, void *stream,
                                bool *got);

/* What the device has, and what nobody holds of it. Either out may be NULL. */
larder_status larder_memory_info(larder *larder, int32_t device, uint64_t *free_bytes,
                                 uint64_t *total_bytes);

/* The largest free block of the cache, private pools included. */
larder_status larder_largest_free_block(larder *larder, int32_t device, uint64_t *out);

/* Caps what may be held of the device at this part of it, 0 to 1; 1 lifts the cap. */
larder_status larder_set_memory_fraction(larder *larder, int32_t device, double fraction);
larder_status larder_memory_fraction(larder *larder, int32_t device, double *out);

/* ---------------- settings */

#define LARDER_DIVISION_CLASSES 16
#define LARDER_UNLIMITED UINT64_MAX

/* The settings that can change while running, as values. What PyTorch calls them is in brackets. */
typedef struct larder_settings {
    uint64_t large_segment_bytes;            /* large_segment_size_mb */
    uint64_t max_split_bytes;                /* max_split_size_mb; LARDER_UNLIMITED for none */
    uint64_t max_non_split_rounding_bytes;   /* max_non_split_rounding_mb */
    double garbage_collection_threshold;     /* 0 for none */
    /* roundup_power2_divisions; class i: 2^i MiB and up */
    uint64_t roundup_divisions[LARDER_DIVISION_CLASSES];
    bool expandable_segments;
    bool release_lock_on_device_alloc;       /* release_lock_on_cudamalloc */
    bool capture_reuse;                      /* graph_capture_record_stream_reuse */
    bool reject_above_fraction;              /* throw_on_cudamalloc_oom */
    bool plain_captures;                     /* Larder's own: pools of graph captures are plain
                                              * though other memory is expandable */
    double memory_fraction;                  /* per_process_memory_fraction; caps what may be held,
                                              * from larder_open on or when it changes, and is what
                                              * reject_above_fraction goes by */
} larder_settings;

larder_status larder_get_settings(larder *larder, larder_settings *out);

/* Puts these in force on all devices; Larder's other settings stay as they are, and so does a cap
 * that larder_set_memory_fraction set, unless memory_fraction changes. */
larder_status larder_set_settings(larder *larder, const larder_settings *settings);

/* Puts settings in force by a text, with PyTorch's rules for what a text resets. A text that cannot
 * be read changes nothing. */
larder_status larder_configure(larder *larder, const char *settings);

/* For a host that reads PyTorch's settings itself: LARDER_BAD_SETTING unless the text has only
 * those that PyTorch does not have, each with a value that it takes. The sentence of
 * larder_last_error begins with name, which says where the text is from. */
larder_status larder_check_own_settings(const char *name, const char *settings);

/* ---------------- statistics */

typedef struct larder_counter {
    int64_t current;
    int64_t peak;
    int64_t allocated;   /* the sum of all increases */
    int64_t freed;       /* the sum of all decreases */
} larder_counter;

typedef struct larder_counters {
    larder_counter all;
    larder_counter small_pool;
    larder_counter large_pool;
} larder_counters;

typedef struct larder_stats {
    larder_counters allocation;
    larder_counters segment;
    larder_counters active;
    larder_counters inactive_split;
    larder_counters allocated_bytes;
    larder_counters reserved_bytes;
    larder_counters active_bytes;
    larder_counters inactive_split_bytes;
    larder_counters requested_bytes;
    larder_counter oversize_allocations;
    larder_counter oversize_segments;
    int64_t num_alloc_retries;
    int64_t num_ooms;
    int64_t num_oom_rejections;
    int64_t num_sync_all_streams;
    int64_t num_device_alloc;
    int64_t num_device_free;
    int64_t max_split_size;   /* -1 for unlimited */
} larder_stats;

larder_status larder_get_stats(larder *larder, int32_t device, larder_stats *out);
larder_status larder_reset_peak_stats(larder *larder, int32_t device);
larder_status larder_reset_accumulated_stats(larder *larder, int32_t device);

/* The bytes held of the device for each private pool that ever held any, those that are gone
 * included. They are written to `pools` and `reserved`, at most `room` of them; *count becomes how
 * many there are. */
larder_status larder_pool_reserved(larder *larder, int32_t device, larder_pool_id *pools,
                                   larder_counters *reserved, size_t room, size_t *count);

/* ---------------- private pools */

/* What a source says of itself, as bits. */
typedef enum larder_source_property {
    LARDER_SOURCE_UNSPLIT = 1,    /* each block is a segment of its own */
    LARDER_SOURCE_COLLECTIVE = 2  /* every rank makes segments and gives them back together with the
                                   * others, in the same order and size: all get memory, or none
                                   * does */
} larder_source_property;

/* Where a private pool's segments come from, if not from the device. `alloc` returns NULL when it
 * has no memory. They run with the device's allocator locked and must not call it; so may
 * `release`. What a source gives is checked: memory that is NULL, that is no multiple of 512 or
 * that is in use is given back to it, and the request fails with LARDER_BAD_POOL.
 *
 * All that comes after `data` may be left zero. Those functions return whether it went well; if
 * not, so does the call that led to it, with LARDER_DEVICE_ERROR, and nothing was changed. */
typedef struct larder_source {
    void *(*alloc)(void *data, size_t size, int32_t device, void *stream);
    void (*free)(void *data, void *ptr, size_t size, int32_t device, void *stream);
    void (*release)(void *data);
    void *data;
    uint32_t properties;         /* larder_source_property */
    const char *registrar;       /* what the segments are registered with, in a word or two; or
                                  * NULL */
    /* This process would ask for a segment now, but a cap forbids it: for those who make segments
     * together. Without this function no cap keeps a process from asking with the others, who would
     * wait for it. */
    bool (*decline)(void *data, size_t size, int32_t device, void *stream);
    /* A pool of this device got the source. */
    bool (*init)(void *data, int32_t device);
    bool (*reset)(void *data, int32_t device);                       /* caches are emptied */
    bool (*set_memory_fraction)(void *data, double fraction, int32_t device);
    bool (*base_allocation)(void *data, void *segment, size_t size, void **base, size_t *base_size);
    bool (*record_stream)(void *data, void *ptr, size_t size, void *stream);
    bool (*begin_pool)(void *data, int32_t device, larder_pool_id pool);
    bool (*end_pool)(void *data, int32_t device, larder_pool_id pool);
    /* Nobody uses the pool any more. */
    bool (*release_pool)(void *data, int32_t device, larder_pool_id pool);
} larder_source;

/* For tests: whether a source that has at least 64 MiB keeps all promises, by itself and under an
 * allocator of a simulated GPU. It is released afterwards. LARDER_BAD_ARGUMENT if it breaks one;
 * larder_last_error says which. */
larder_status larder_source_check(const larder_source *source, int32_t device);

/* What a pool's source was asked for so far, as the library's own books have it. */
typedef struct larder_source_counts {
    uint64_t made;         /* segments that it gave */
    uint64_t given_back;   /* segments that it took back */
    uint64_t refused;      /* times it had no memory, or this process was not to have any */
    uint64_t failed;       /* calls that failed or gave what is no memory */
    uint64_t held_bytes;   /* of the segments that it gave and has not got back */
} larder_source_counts;
larder_status larder_pool_source_counts(larder *larder, int32_t device, larder_pool_id pool,
                                        larder_source_counts *out);

/* Makes a private pool with one use, or adds a use to it. With a source the pool must be new. On
 * failure the source is released. */
larder_status larder_pool_add_use(larder *larder, int32_t device, larder_pool_id pool,
                                  const larder_source *source);

/* Makes a symmetric pool with one use. Where a block lies in it, segment and offset, follows from
 * the sequence of requests and frees in the pool alone: ranks that make the same calls have every
 * block at the same place. Segments come from the source and have at least growth_bytes; they stay
 * until larder_pool_trim, or until the pool is released. Its memory is ordered by the default
 * stream. On failure the source is released. */
larder_status larder_pool_add_symmetric(larder *larder, int32_t device, larder_pool_id pool,
                                        const larder_source *source, size_t growth_bytes);

/* Where a live block lies in its symmetric pool. */
typedef struct larder_position {
    uint64_t segment;      /* counted in the order in which they came; a number is never used
                            * again */
    uint64_t offset;       /* in the segment */
    uint64_t generation;   /* the number of the call that made the block */
} larder_position;
larder_status larder_position_of(larder *larder, const void *ptr, larder_position *out);

/* How many calls a symmetric pool has seen, its making included, and their hash. Either out may be
 * NULL. */
larder_status larder_pool_sequence(larder *larder, int32_t device, larder_pool_id pool,
                                   uint64_t *calls, uint64_t *hash);

/* Gives back the segments in which there is no block, in order. This is a call that all ranks have
 * to make. The out may be NULL; else it is how many went. */
larder_status larder_pool_trim(larder *larder, int32_t device, larder_pool_id pool,
                               uint64_t *segments);

#define LARDER_SEAL_BYTES 1024

/* Compares the calls of all ranks, each of which calls this at the same point. `exchange` gives
 * LARDER_SEAL_BYTES that this rank says to all, writes what each of the ranks said, in their order
 * and this one included, to `heard`, and returns whether it could; it runs once, and some more
 * times where ranks differ, with nothing locked. LARDER_DIVERGED, on every rank, if the calls
 * differ: larder_last_error names the first that does and what each rank did there. *calls, if
 * wanted, is how many are the same. */
larder_status larder_pool_seal(larder *larder, int32_t device, larder_pool_id pool, size_t ranks,
                               bool (*exchange)(void *data, const void *said, void *heard),
                               void *data, uint64_t *calls);

/* Drops a use. With the last one the pool's memory may go back to the device, at the next
 * larder_empty_cache. */
larder_status larder_pool_drop_use(larder *larder, int32_t device, larder_pool_id pool);

/* How many uses it has; 0 for a pool that does not exist. */
larder_status larder_pool_uses(larder *larder, int32_t device, larder_pool_id pool, uint32_t *out);

/* Which requests a scope routes to its pool. */
typedef enum larder_filter_kind {
    LARDER_FILTER_ANY = 0,
    LARDER_FILTER_STREAM = 1,    /* those for `stream` */
    LARDER_FILTER_THREAD = 2,    /* those of the thread that begins the scope */
    LARDER_FILTER_CAPTURE = 3,   /* those for streams under the same graph capture as `stream` */
    LARDER_FILTER_FUNCTION = 4   /* those for which takes(data, stream) says true */
} larder_filter_kind;

/* `takes` runs with the device's allocator locked and must not call it. `takes`, `release` and
 * `data` are for LARDER_FILTER_FUNCTION alone; the others leave them as they are. */
typedef struct larder_filter {
    larder_filter_kind kind;
    void *stream;
    bool (*takes)(void *data, void *stream);
    void (*release)(void *data);
    void *data;
} larder_filter;

/* Routes requests to a pool until larder_pool_end; the pool is made if it is new, and gets a use,
 * which larder_pool_drop_use drops. The newest open scope that takes a request gets it. A pool has
 * at most one open scope. On failure the filter is released. */
larder_status larder_pool_begin(larder *larder, int32_t device, larder_pool_id pool,
                                const larder_filter *filter);
larder_status larder_pool_end(larder *larder, int32_t device, larder_pool_id pool);

/* Plain memory: requests of the calling thread, on all devices, get memory that the driver can
 * export and other libraries can register (IPC handles, RDMA), whatever the settings say of
 * expandable segments, until larder_plain_end was called as often. It is cut from segments, cached
 * and given back like all other; a private pool's comes from that pool. With no settings the pools
 * of graph captures are plain by themselves: those that are named (n, 0), that larder_pool_begin
 * makes, or that a captured request goes to. LARDER_BAD_ARGUMENT if the thread began nothing that
 * could end. */
larder_status larder_plain_begin(larder *larder);
larder_status larder_plain_end(larder *larder);

/* Graph captures. A capture runs inside a scope, best of LARDER_FILTER_CAPTURE, that is opened by
 * the thread that begins and ends it, before and after. That thread declares the capture: right
 * after it began, on the stream that it began on, which is the caller's. From then on other threads
 * may allocate for it on streams that join it. The token ends this capture and no other. Of a
 * capture that nobody declares the library learns by requests on captured streams.
 * LARDER_BAD_ARGUMENT if the stream is not captured or no scope is open. */
typedef uint64_t larder_capture;
larder_status larder_capture_start(larder *larder, int32_t device, void *stream,
                                   larder_capture *out);

/* The capture of this token is over, or failed; any thread may say so. Closing its scope says as
 * much, and the token is ended all the same. LARDER_BAD_ARGUMENT if it was ended before. */
larder_status larder_capture_stop(larder *larder, int32_t device, larder_capture capture);

/* As larder_capture_start and larder_capture_stop, for who keeps no token: what ends is the oldest
 * that was declared on the stream, if there is one. */
larder_status larder_capture_begin(larder *larder, int32_t device, void *stream);
larder_status larder_capture_end(larder *larder, int32_t device, void *stream);

/* Says which stream the calling thread works on: true, and *stream, if it is known. What a thread
 * frees while its stream is captured is part of the capture. It runs with the device's allocator
 * locked and must not call it; it replaces one given before. */
larder_status larder_on_current_stream(larder *larder, int32_t device,
                                       bool (*current)(void *data, int32_t device, void **stream),
                                       void (*release)(void *data), void *data);

/* Whether the pool lends free blocks to requests that would otherwise run out of memory. */
larder_status larder_pool_set_use_on_oom(larder *larder, int32_t device, larder_pool_id pool,
                                         bool on);

/* Blocks of this pool are not split any more. */
larder_status larder_pool_set_no_split(larder *larder, int32_t device, larder_pool_id pool);

/* Whether the pool's live blocks are exactly these. */
larder_status larder_pool_has_live(larder *larder, int32_t device, larder_pool_id pool,
                                   void *const *ptrs, size_t count, bool *out);

/* The layout of a private pool, saved to be put back. */
typedef struct larder_checkpoint larder_checkpoint;
larder_status larder_pool_checkpoint(larder *larder, int32_t device, larder_pool_id pool,
                                     larder_checkpoint **out);
void larder_checkpoint_free(larder_checkpoint *checkpoint);

/* What putting a layout back changed: addresses that were live and were freed, and addresses that
 * are live now. One can be in both. */
typedef struct larder_restored larder_restored;
larder_status larder_pool_restore(larder *larder, int32_t device,
                                  const larder_checkpoint *checkpoint, larder_restored **out);
void *const *larder_restored_freed(const larder_restored *restored, size_t *count);
void *const *larder_restored_live(const larder_restored *restored, size_t *count);
void larder_restored_free(larder_restored *restored);

/* ---------------- other processes, other devices */

/* Bytes by which another process finds the memory, and the address's distance from where it finds
 * it. */
typedef struct larder_shared larder_shared;
larder_status larder_share(larder *larder, const void *ptr, larder_shared **out);
const uint8_t *larder_shared_bytes(const larder_shared *shared, size_t *length);
uint64_t larder_shared_offset(const larder_shared *shared);
void larder_shared_free(larder_shared *shared);

/* Memory of another process. Each open is closed once; memory opened twice is one mapping. */
larder_status larder_open_shared(larder *larder, int32_t device, const uint8_t *bytes,
                                 size_t length, void **out);
larder_status larder_close_shared(larder *larder, int32_t device, void *ptr);

/* `device` may use memory of `owner` from now on, what is allocated later included. */
larder_status larder_enable_peer(larder *larder, int32_t device, int32_t owner);

/* The expandable segments of a device, with the bytes mapped in each; at most `room` are written,
 * *count becomes how many there are. */
typedef struct larder_expandable {
    void *stream;
    bool is_small;
    uint64_t mapped_bytes;
} larder_expandable;
larder_status larder_expandable_segments(larder *larder, int32_t device,
                                         larder_expandable *segments, size_t room, size_t *count);

/* Whether the device has an expandable segment at this moment. */
larder_status larder_has_expandable(larder *larder, int32_t device, bool *out);

/* ---------------- hooks */

/* Run whenever no cached block fits, with no lock held; it says whether it freed anything. It may
 * call the library, and stays. */
larder_status larder_on_miss(larder *larder, int32_t device,
                             bool (*callback)(void *data, int32_t device),
                             void (*release)(void *data), void *data);

/* Told of every request that could not be met, before larder_malloc returns, with no lock held. It
 * may call the library. */
larder_status larder_on_out_of_memory(larder *larder, int32_t device,
                                      void (*observer)(void *data, const larder_out_of_memory *),
                                      void (*release)(void *data), void *data);

/* Asked how many bytes of addresses an expandable segment should reserve, whenever a request on the
 * stream may bring a new one, with no lock held: for a host that keeps such settings, and classes
 * of streams, itself. device_bytes is what the device has; an eighth more is the most. 0 is as the
 * settings of the larder say. It may call the library, and replaces one given before. */
larder_status larder_on_reserve(larder *larder, int32_t device,
                                uint64_t (*reserve)(void *data, int32_t device, void *stream,
                                                    uint64_t device_bytes),
                                void (*release)(void *data), void *data);

/* ---------------- history */

typedef enum larder_action {
    LARDER_ALLOC = 0,
    LARDER_FREE_REQUESTED = 1,
    LARDER_FREE_COMPLETED = 2,
    LARDER_SEGMENT_ALLOC = 3,
    LARDER_SEGMENT_FREE = 4,
    LARDER_SEGMENT_MAP = 5,
    LARDER_SEGMENT_UNMAP = 6,
    LARDER_SNAPSHOT = 7,
    LARDER_OOM = 8,
    LARDER_ANNOTATE = 9          /* larder_annotate_memory */
} larder_action;

/* For what contexts are gathered. */
typedef enum larder_level {
    LARDER_LEVEL_NEVER = 0,
    LARDER_LEVEL_STATE = 1,   /* for live blocks */
    LARDER_LEVEL_ALLOC = 2,   /* for entries of the history too */
    LARDER_LEVEL_ALL = 3      /* for frees too */
} larder_level;

/* A context is a pointer of yours that says something about the moment of an event: a stack, say.
 * `gather` is called before a lock is taken and must not call the library; it returns a reference
 * that the library owns, or NULL for none. The library gives each reference back by `release`,
 * once, with no lock held, when no block and no entry names it any more. `retain` makes one more
 * reference; it is needed by larder_context_of. */
typedef struct larder_contexts {
    void *(*gather)(void *data);
    void (*retain)(void *data, void *context);
    void (*release)(void *data, void *context);
    void *data;               /* must stay valid until the larder is closed */
} larder_contexts;

typedef struct larder_history_options {
    size_t max_entries;       /* how many entries are kept, at least one; SIZE_MAX for all */
    larder_level level;
    bool clear;               /* forget what was remembered before */
    uint32_t skip;            /* bit i: action i is not remembered (trackers are told of it all the
                               * same) */
    const larder_contexts *contexts;   /* NULL only with LARDER_LEVEL_NEVER */
    uint64_t (*clock)(void *data);     /* the time in nanoseconds, never backwards; NULL: the
                                        * device's own */
    void *clock_data;
} larder_history_options;

/* Starts the history on all devices, or changes its options. */
larder_status larder_record_history(larder *larder, const larder_history_options *options);

/* Stops and forgets it. */
larder_status larder_stop_history(larder *larder);
bool larder_is_recording(larder *larder);

/* What the calling thread says about what it does next. The strings are copied. */
void larder_set_user_metadata(const char *text);
/* It stays valid until the thread's next call of these four. */
const char *larder_user_metadata(void);
void larder_push_compile_context(const char *text);
void larder_pop_compile_context(void);

/* A part of the program began (start) or ended, on a device. */
larder_status larder_annotate(larder *larder, int32_t device, const char *name, bool start);

/* Remembers what the program says about a live block: an event of its own, LARDER_ANNOTATE, with
 * the block's address, the size that was asked for, and the text as its user_metadata. */
larder_status larder_annotate_memory(larder *larder, const void *ptr, const char *text);

/* One event. Strings and the context are valid as long as what they came with. */
typedef struct larder_event {
    larder_action action;
    int32_t device;
    uint64_t addr;            /* LARDER_OOM: the device's free bytes */
    uint64_t size;
    void *stream;
    larder_pool_id pool;
    uint64_t time_ns;
    void *context;            /* NULL for none */
    const char *compile_context;   /* "N/A" for none, as PyTorch has it */
    const char *user_metadata;
    const char *internal_metadata; /* what the library says of it: which unusual call it was part
                                    * of; mostly "" */
} larder_event;

/* Told of every event on the device with its allocator locked, whether a history is on or not; it
 * must not call the library. It stays for as long as the larder does. */
larder_status larder_on_event(larder *larder, int32_t device,
                              void (*tracker)(void *data, const larder_event *event),
                              void (*release)(void *data), void *data);

/* The context of a live block, one more reference of it, or NULL. */
larder_status larder_context_of(larder *larder, const void *ptr, void **context);

/* ---------------- snapshots */

typedef enum larder_block_state {
    LARDER_BLOCK_FREE = 0,        /* PyTorch: inactive */
    LARDER_BLOCK_LIVE = 1,        /* active_allocated */
    LARDER_BLOCK_WAITING = 2      /* active_pending_free */
} larder_block_state;

typedef struct larder_snapshot_block {
    uint64_t addr;
    uint64_t size;
    uint64_t requested_size;
    larder_block_state state;
    void *context;
} larder_snapshot_block;

/* Blocks side by side with memory behind them: a fixed segment, or a mapped run of an expandable
 * one. */
typedef struct larder_snapshot_segment {
    int32_t device;
    uint64_t addr;
    uint64_t total_size;
    uint64_t allocated_size;
    uint64_t active_size;
    uint64_t requested_size;      /* of the active blocks */
    void *stream;
    bool is_large;
    bool is_expandable;
    larder_pool_id pool;
    uint64_t serial;              /* how many segments the device had given before this one */
    void *context;
    const larder_snapshot_block *blocks;
    size_t block_count;
} larder_snapshot_segment;

typedef struct larder_annotation {
    int32_t device;
    bool start;
    uint64_t time_ns;
    const char *name;
} larder_annotation;

typedef struct larder_snapshot larder_snapshot;

/* The state of all devices, or of one private pool (pool other than {0, 0}), with the history and
 * its annotations if `traces`. All that the following return stays valid until
 * larder_snapshot_free; whoever keeps a context longer makes a reference of their own. */
larder_status larder_take_snapshot(larder *larder, larder_pool_id pool, bool traces,
                                   larder_snapshot **out);
const larder_snapshot_segment *larder_snapshot_segments(const larder_snapshot *snapshot,
                                                        size_t *count);
const larder_event *larder_snapshot_events(const larder_snapshot *snapshot, int32_t device,
                                           size_t *count);
const larder_annotation *larder_snapshot_annotations(const larder_snapshot *snapshot,
                                                     size_t *count);
void larder_snapshot_free(larder_snapshot *snapshot);

/* ---------------- sleep and wake */

typedef enum larder_keep {
    LARDER_KEEP_CONTENTS = 0,  /* kept in memory of the host while memory sleeps, and put back */
    LARDER_KEEP_NOTHING = 1,   /* after waking there is anything */
    LARDER_KEEP_ZEROS = 2,     /* after waking there are zeros */
    LARDER_KEEP_AS_TAGGED = 3  /* as each tag says; contents of memory of no tag are kept */
} larder_keep;

/* A region: requests of the calling thread, on all devices, get memory of this tag until it ends.
 * The innermost counts; regions_leave begins one of no tag. In a capture that began outside they
 * stay with its pool; a private pool first used in a region is the tag's. `keep` goes for all
 * memory of the tag; a name has no comma. */
larder_status larder_region_begin(larder *larder, const char *tag, larder_keep keep);
larder_status larder_region_end(larder *larder, const char *tag);
larder_status larder_regions_leave(larder *larder);
larder_status larder_regions_return(larder *larder);

typedef struct larder_slept {
    uint64_t asleep_bytes;  /* of the device, that went to sleep */
    uint64_t kept_bytes;    /* of contents, that are kept for them */
    uint64_t plain_bytes;   /* of plain segments, which cannot sleep: their addresses would go */
} larder_slept;

/* Puts memory to sleep: of these tags (names separated by commas), or with NULL all but that of
 * sources. Its pages, and what is cached, go back to the device; its addresses stay. Nothing may
 * use it until it wakes; it may be freed. It waits for all work. LARDER_NOT_WOKEN if contents
 * cannot be kept, or a capture may be on; of larder_wake, if room is missing. `out` may be NULL. */
larder_status larder_sleep(larder *larder, int32_t device, const char *tags, larder_keep keep,
                           larder_slept *out);
larder_status larder_wake(larder *larder, int32_t device, const char *tags);

/* Beside larder_stats, where blocks that sleep are allocated, and their pages not reserved. */
typedef struct larder_sleep_stats {
    uint64_t asleep_bytes;  /* of the device, that it takes to wake all */
    uint64_t used_bytes;    /* in blocks that sleep and were not freed */
    uint64_t kept_bytes;    /* of contents, in memory of the host */
    uint64_t spare_bytes;   /* of the host, kept for the next time */
    uint64_t generation;    /* wakes: whoever told others of addresses has to anew when it rises */
} larder_sleep_stats;
larder_status larder_get_sleep_stats(larder *larder, int32_t device, larder_sleep_stats *out);

/* So much of the host's memory is kept for the next time at most; 0 gives all of it back. */
larder_status larder_set_keep_limit(larder *larder, int32_t device, uint64_t limit_bytes);

/* ---------------- pinned memory of the host */

/* Pinned memory for copies to and from devices, which are named as for larder_open: a larder whose
 * one device, number 0, is the host. "sim:64GiB" is a simulated host with so much memory. Of the
 * settings pinned_limit counts (docs/pinned.md), and PyTorch's and others are left aside. All calls
 * of this header work on it but for those about expandable segments and other processes; three
 * things are otherwise:
 * - addresses are the host's;
 * - memory is handed out to the host, which is the stream larder_host_stream();
 * - a stream that copies from it or to it is named by larder_stream_on(device, stream) in
 *   larder_record_stream, larder_forget_stream and filters. Memory that was freed is handed out
 *   again when the copies issued by then are done.
 * It takes no memory of the devices before the first request. */
larder_status larder_open_pinned(const char *devices, const char *settings, larder **out);

/* The host as a stream: what runs on no device. */
void *larder_host_stream(void);

/* The name of a device's stream among those of all devices. */
void *larder_stream_on(int32_t device, void *stream);

/* What the settings say of how it is kept (docs/pinned.md); 0 is not said. The limit is kept; the
 * other two are for whoever has a thread to spare, which calls larder_grow_ahead and
 * larder_release_unused. */
typedef struct larder_pinned_keeping {
    uint64_t limit_bytes;
    uint64_t ahead_bytes;
    uint64_t idle_s;
} larder_pinned_keeping;

larder_status larder_get_pinned_keeping(larder *larder, larder_pinned_keeping *out);

typedef enum larder_pinning {
    LARDER_PIN_BEST = 0,     /* whatever is best for the size */
    LARDER_PIN_REGISTER = 1, /* memory is mapped, touched by several threads, and registered */
    LARDER_PIN_DRIVER = 2    /* the driver gives it */
} larder_pinning;

/* How memory is got from the host from now on, and by how many threads where they touch it; 0 for
 * as many as are best. `how` is a larder_pinning. */
larder_status larder_set_pinning(larder *larder, uint32_t how, size_t threads);

typedef struct larder_timed_calls {
    uint64_t count;
    uint64_t total_us;
    uint64_t max_us;
    uint64_t min_us;
} larder_timed_calls;

/* The calls that got memory of the host and gave it back, in microseconds. by_size[i] counts those
 * that got up to 2^i bytes and more than 2^(i-1). */
typedef struct larder_pinned_calls {
    larder_timed_calls got;
    larder_timed_calls given_back;
    uint64_t by_size[64];
} larder_pinned_calls;

larder_status larder_get_pinned_calls(larder *larder, larder_pinned_calls *out);

/* Counts and sums begin anew, or the shortest and the longest. */
larder_status larder_reset_pinned_calls(larder *larder, bool sums, bool peaks);

/* For a host that has an allocator of pinned memory of its own: whether the settings leave it to
 * that. They do unless pinned:larder is set, or what such an allocator has not, as pinned_limit. */
larder_status larder_leaves_pinned(const char *settings, bool *out);

/* ---------------- for PyTorch's CUDAPluggableAllocator */

/* torch.cuda.memory.CUDAPluggableAllocator("liblarder.so", "larder_torch_alloc",
 * "larder_torch_free"). They use the larder of the process. The first returns NULL and prints the
 * reason to stderr if there is no memory. */
void *larder_torch_alloc(size_t size, int device, void *stream);
void larder_torch_free(void *ptr, size_t size, int device, void *stream);

#ifdef __cplusplus
}
#endif

#endif /* LARDER_H */
