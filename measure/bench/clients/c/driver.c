/* Measures libmemcached: driver libmemcached --server HOST:PORT --mode pool ...
 *
 * docs/client-benchmarks.md defines the arguments and the output lines of all drivers. */
#include <libmemcached-1.0/memcached.h>
#include <libmemcachedutil-1.0/util.h>

#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* An operation that takes at least this long is part of the outage. Some clients wait for the server instead of
 * failing. */
enum { OUTAGE_NANOS_MIN = 250000000 };
enum { POOL = 64, RECOVERY_SECS_MAX = 60, KEYS_MAX = 100 };

static const char *server = "127.0.0.1:11211", *mode = "pool";
static size_t value_bytes = 19;
static long rounds = 5, seed = 1, calls = 1000;
static double secs = 1;

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *checked(void *allocated) {
    if (allocated == NULL)
        fail("out of memory");
    return allocated;
}

static uint64_t now_nanos(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static double cpu_micros(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void print_line(long threads, const char *name, double value) {
    printf("libmemcached,%s,%ld,%s,%.3f\n", mode, threads, name, value);
    fflush(stdout);
}

/* Writes libmemcached's options for one connection or, if `connections` is higher, for a pool of at most this number.
 * Connects and calls time out after a second. */
static void options(char *text, size_t len, int connections) {
    int written = snprintf(text, len, "--SERVER=%s --TCP-NODELAY --CONNECT-TIMEOUT=1000 --POLL-TIMEOUT=1000", server);
    if (connections > 1)
        snprintf(text + written, len - (size_t)written, " --POOL-MIN=1 --POOL-MAX=%d", connections);
}

static memcached_st *connection(void) {
    char text[400];
    options(text, sizeof text, 1);
    memcached_st *made = memcached(text, strlen(text));
    if (made == NULL)
        fail("libmemcached does not take %s", text);
    return made;
}

static memcached_pool_st *connection_pool(void) {
    char text[400];
    options(text, sizeof text, POOL);
    memcached_pool_st *made = memcached_pool(text, strlen(text));
    if (made == NULL)
        fail("libmemcached does not take %s", text);
    return made;
}

/* A thread's key, values and connection. The connection is from `pool`, or it is `own`. If both are NULL, each
 * operation opens a new connection. */
struct caller {
    memcached_pool_st *pool;
    memcached_st *own;
    char key[64];
    size_t key_len;
    /* Sets alternate between these values, so the check detects a get that returns the previous value. */
    char *values[2];
    long errors;
    char first_error[200];
    uint64_t nanos; /* duration in a round of times(); 0 after an error */
    uint64_t *latencies;
    size_t count, capacity;
};

static memcached_st *take(struct caller *caller) {
    if (caller->pool != NULL) {
        struct timespec second = {1, 0};
        memcached_return_t outcome;
        return memcached_pool_fetch(caller->pool, &second, &outcome);
    }
    return caller->own != NULL ? caller->own : connection();
}

static void give_back(struct caller *caller, memcached_st *used) {
    if (caller->pool != NULL)
        memcached_pool_release(caller->pool, used);
    else if (caller->own == NULL)
        memcached_free(used);
}

static bool note(struct caller *caller, memcached_st *used, memcached_return_t outcome) {
    if (outcome == MEMCACHED_SUCCESS)
        return true;
    if (caller->errors++ == 0) {
        const char *said = used != NULL ? memcached_last_error_message(used) : "all connections are in use";
        snprintf(caller->first_error, sizeof caller->first_error, "%s", said ? said : memcached_strerror(used, outcome));
    }
    return false;
}

static void judge(struct caller *caller, long number, const char *found, size_t len) {
    const char *expected = caller->values[number % 2];
    if (found == NULL || len != value_bytes || memcmp(found, expected, len) != 0)
        fail("libmemcached: the value of %s is %.*s, but %.40s was stored there last", caller->key,
             found ? (int)(len < 40 ? len : 40) : 7, found ? found : "missing", expected);
}

static bool set(struct caller *caller, long number) {
    memcached_st *used = take(caller);
    if (used == NULL)
        return note(caller, NULL, MEMCACHED_TIMEOUT);
    bool succeeded = note(caller, used, memcached_set(used, caller->key, caller->key_len, caller->values[number % 2], value_bytes, 0, 0));
    give_back(caller, used);
    return succeeded;
}

static bool get(struct caller *caller, long number) {
    memcached_st *used = take(caller);
    if (used == NULL)
        return note(caller, NULL, MEMCACHED_TIMEOUT);
    size_t len = 0;
    uint32_t flags;
    memcached_return_t outcome;
    char *found = memcached_get(used, caller->key, caller->key_len, &len, &flags, &outcome);
    if (outcome == MEMCACHED_NOTFOUND)
        outcome = MEMCACHED_SUCCESS;
    bool succeeded = note(caller, used, outcome);
    give_back(caller, used);
    if (succeeded)
        judge(caller, number, found, len);
    free(found);
    return succeeded;
}

static void prepare(struct caller *caller, memcached_pool_st *pool, long thread) {
    memset(caller, 0, sizeof *caller);
    caller->pool = pool;
    caller->own = strcmp(mode, "thread") == 0 ? connection() : NULL;
    caller->key_len = (size_t)snprintf(caller->key, sizeof caller->key, "bench-%ld-%ld", seed, thread);
    if (caller->key_len + 2 > value_bytes)
        fail("--seed: the key %s is too long for --value-bytes", caller->key);
    for (int letter = 0; letter < 2; letter++) {
        char *value = checked(malloc(value_bytes + 1));
        memset(value, '.', value_bytes);
        memcpy(value, caller->key, caller->key_len);
        value[caller->key_len] = '-';
        value[caller->key_len + 1] = (char)('a' + letter);
        value[value_bytes] = 0;
        caller->values[letter] = value;
    }
}

static struct caller *callers_for(long threads, memcached_pool_st **pool) {
    *pool = strcmp(mode, "pool") == 0 ? connection_pool() : NULL;
    struct caller *callers = checked(calloc((size_t)threads, sizeof *callers));
    for (long thread = 0; thread < threads; thread++)
        prepare(&callers[thread], *pool, thread);
    return callers;
}

/* Prints the total number of the callers' errors, and frees the callers. */
static void finish(struct caller *callers, memcached_pool_st *pool, long threads, const char *name) {
    long errors = 0;
    const char *first = NULL;
    for (long thread = 0; thread < threads; thread++) {
        errors += callers[thread].errors;
        if (first == NULL && callers[thread].errors > 0)
            first = callers[thread].first_error;
    }
    if (errors > 0)
        fprintf(stderr, "libmemcached: %ld operations failed, first: %s\n", errors, first);
    print_line(threads, name, (double)errors);
    for (long thread = 0; thread < threads; thread++) {
        if (callers[thread].own != NULL)
            memcached_free(callers[thread].own);
        free(callers[thread].values[0]);
        free(callers[thread].values[1]);
        free(callers[thread].latencies);
    }
    if (pool != NULL)
        memcached_free(memcached_pool_destroy(pool));
    free(callers);
}

static pthread_barrier_t barrier;

static void *timed(void *place) {
    struct caller *caller = place;
    caller->nanos = 0;
    pthread_barrier_wait(&barrier);
    uint64_t begun = now_nanos();
    for (long number = 0; number < 2; number++)
        /* After a failed set, the stored value is unknown. */
        if (!set(caller, number) || !get(caller, number))
            return NULL;
    caller->nanos = now_nanos() - begun;
    return NULL;
}

static void *loaded(void *place) {
    struct caller *caller = place;
    bool (*operations[])(struct caller *, long) = {set, get};
    set(caller, 0);
    /* Between these two waits, load() reads the CPU time of this process. */
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    uint64_t before = now_nanos(), end = before + (uint64_t)(secs * 1e9);
    for (long number = 0; before < end; number++) {
        for (int operation = 0; operation < 2; operation++) {
            bool succeeded = operations[operation](caller, number);
            uint64_t now = now_nanos(), took = now - before;
            before = now;
            if (!succeeded)
                break;
            if (caller->count == caller->capacity) {
                caller->capacity = caller->capacity ? 2 * caller->capacity : 1024;
                caller->latencies = checked(realloc(caller->latencies, caller->capacity * sizeof took));
            }
            caller->latencies[caller->count++] = took;
        }
    }
    return NULL;
}

static void start(pthread_t *threads, struct caller *callers, long count, void *(*run)(void *)) {
    for (long thread = 0; thread < count; thread++)
        if (pthread_create(&threads[thread], NULL, run, &callers[thread]) != 0)
            fail("cannot start a thread");
}

static void join(pthread_t *threads, long count) {
    for (long thread = 0; thread < count; thread++)
        pthread_join(threads[thread], NULL);
}

static void times(long threads) {
    memcached_pool_st *pool;
    struct caller *callers = callers_for(threads, &pool);
    pthread_t *started = checked(calloc((size_t)threads, sizeof *started));
    for (long round = 0; round <= rounds; round++) {
        pthread_barrier_init(&barrier, NULL, (unsigned)threads);
        start(started, callers, threads, timed);
        join(started, threads);
        pthread_barrier_destroy(&barrier);
        for (long thread = 0; round > 0 && thread < threads; thread++)
            if (callers[thread].nanos > 0)
                printf("libmemcached,%s,%ld,%ld,%ld,%.1f\n", mode, threads, round, thread, (double)callers[thread].nanos / 1e3);
    }
    finish(callers, pool, threads, "times_errors");
    free(started);
}

static int ascending(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static void load(long threads) {
    memcached_pool_st *pool;
    struct caller *callers = callers_for(threads, &pool);
    pthread_t *started = checked(calloc((size_t)threads, sizeof *started));
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    start(started, callers, threads, loaded);
    pthread_barrier_wait(&barrier);
    uint64_t begun = now_nanos();
    double cpu_before = cpu_micros();
    pthread_barrier_wait(&barrier);
    join(started, threads);
    double took = (double)(now_nanos() - begun) / 1e9, cpu = cpu_micros() - cpu_before;
    pthread_barrier_destroy(&barrier);
    size_t count = 0;
    for (long thread = 0; thread < threads; thread++)
        count += callers[thread].count;
    uint64_t *all = checked(calloc(count + 1, sizeof *all)), *next = all;
    double sum = 0;
    for (long thread = 0; thread < threads; thread++)
        for (size_t n = 0; n < callers[thread].count; n++)
            sum += (double)(*next++ = callers[thread].latencies[n]);
    qsort(all, count, sizeof *all, ascending);
    double operations = count > 0 ? (double)count : 1;
    print_line(threads, "operations_per_s", (double)count / took);
    print_line(threads, "cpu_us", cpu / operations);
    print_line(threads, "mean_us", sum / operations / 1e3);
    print_line(threads, "p50_us", count > 0 ? (double)all[(count * 50 + 99) / 100 - 1] / 1e3 : 0);
    print_line(threads, "p99_us", count > 0 ? (double)all[(count * 99 + 99) / 100 - 1] / 1e3 : 0);
    finish(callers, pool, threads, "errors");
    free(all);
    free(started);
}

/* Gets all keys over the first caller's connection. Checks each value, and that values arrive in the order of
 * `keys`. */
static void get_many(struct caller *callers, const char **keys, size_t *lens, size_t count) {
    memcached_st *used = take(&callers[0]);
    if (used == NULL)
        fail("libmemcached: all connections are in use");
    memcached_return_t outcome = memcached_mget(used, keys, lens, count);
    memcached_result_st result;
    memcached_result_create(used, &result);
    size_t place = 0;
    while (outcome == MEMCACHED_SUCCESS && memcached_fetch_result(used, &result, &outcome) != NULL) {
        if (place == count || memcached_result_key_length(&result) != lens[place] ||
            memcmp(memcached_result_key_value(&result), keys[place], lens[place]) != 0)
            fail("libmemcached: a get of several keys returned other keys or another order");
        judge(&callers[place], 0, memcached_result_value(&result), memcached_result_length(&result));
        place++;
    }
    if (place != count)
        fail("libmemcached: a get of %zu keys returned %zu: %s", count, place, memcached_strerror(used, outcome));
    memcached_result_free(&result);
    give_back(&callers[0], used);
}

static void many(size_t count) {
    memcached_pool_st *pool = strcmp(mode, "pool") == 0 ? connection_pool() : NULL;
    memcached_st *own = pool == NULL ? connection() : NULL;
    struct caller *callers = checked(calloc(count, sizeof *callers));
    const char *keys[KEYS_MAX];
    size_t lens[KEYS_MAX];
    for (size_t thread = 0; thread < count; thread++) {
        prepare(&callers[thread], pool, (long)thread);
        if (callers[thread].own != NULL)
            memcached_free(callers[thread].own);
        callers[thread].own = own;
        if (!set(&callers[thread], 0))
            fail("libmemcached: %s: %s", server, callers[thread].first_error);
        keys[thread] = callers[thread].key;
        lens[thread] = callers[thread].key_len;
    }
    double cpu_before = cpu_micros();
    for (long call = 0; call < calls; call++)
        get_many(callers, keys, lens, count);
    char name[40];
    snprintf(name, sizeof name, "get_many_%zu_cpu_us", count);
    print_line(1, name, (cpu_micros() - cpu_before) / (double)calls);
}

static void recovery(void) {
    memcached_pool_st *pool;
    struct caller *caller = callers_for(1, &pool);
    print_line(1, "ready", 1);
    uint64_t begun = now_nanos(), failing = 0;
    while (now_nanos() - begun < RECOVERY_SECS_MAX * 1000000000ull) {
        uint64_t before = now_nanos();
        bool succeeded = set(caller, 0);
        if (failing == 0 && (!succeeded || now_nanos() - before >= OUTAGE_NANOS_MIN))
            failing = before;
        if (succeeded && failing != 0) {
            print_line(1, "outage_us", (double)(now_nanos() - failing) / 1e3);
            return;
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    fail("within %d s, no operation succeeded after one that had failed", RECOVERY_SECS_MAX);
}

static void check(void) {
    struct caller caller;
    prepare(&caller, NULL, 0);
    if (!set(&caller, 0))
        fail("libmemcached: %s: %s", server, caller.first_error);
}

int main(int count, char **words) {
    static const struct option known[] = {
        {"server", 1, 0, 's'}, {"mode", 1, 0, 'm'},  {"threads", 1, 0, 't'}, {"value-bytes", 1, 0, 'b'}, {"measure", 1, 0, 'e'}, {"rounds", 1, 0, 'r'},
        {"seed", 1, 0, 'd'},   {"secs", 1, 0, 'l'},  {"calls", 1, 0, 'c'},   {"version", 0, 0, 'v'},     {0, 0, 0, 0},
    };
    const char *threads = "1";
    char *measures = "times";
    for (int option; (option = getopt_long(count, words, "", known, NULL)) != -1;) {
        switch (option) {
        case 's': server = optarg; break;
        case 'm': mode = optarg; break;
        case 't': threads = optarg; break;
        case 'b': value_bytes = strtoul(optarg, NULL, 10); break;
        case 'e': measures = optarg; break;
        case 'r': rounds = atol(optarg); break;
        case 'd': seed = atol(optarg); break;
        case 'l': secs = atof(optarg); break;
        case 'c': calls = atol(optarg); break;
        case 'v': puts(memcached_lib_version()); return 0;
        default: return 2;
        }
    }
    if (value_bytes < 19)
        fail("--value-bytes: expected at least 19");
    check();
    for (char *rest = measures, *measure; (measure = strsep(&rest, ",")) != NULL;) {
        if (strcmp(measure, "many") == 0) {
            many(6);
            many(KEYS_MAX);
        } else if (strcmp(measure, "recovery") == 0) {
            recovery();
        } else if (strcmp(measure, "times") == 0 || strcmp(measure, "load") == 0) {
            char *list = checked(strdup(threads)), *next = list;
            for (char *number; (number = strsep(&next, ",")) != NULL;) {
                if (atol(number) < 1)
                    fail("--threads: %s is not a number of threads", number);
                (measure[0] == 't' ? times : load)(atol(number));
            }
            free(list);
        } else {
            fail("--measure: unknown measurement %s", measure);
        }
    }
    return 0;
}
