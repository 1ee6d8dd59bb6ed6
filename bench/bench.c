#include "bench.h"
#include "base_impl.h"
#include "commit.h"
#include "config.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

static void processor(char *name, size_t size)
{
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(name, size, "unknown processor");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            snprintf(name, size, "%s", strchr(line, ':') + 2);
            name[strcspn(name, "\n")] = '\0';
            break;
        }
    if (f)
        fclose(f);
}

void bench_describe(char *text, size_t size, const char *bench, const char *isa, int threads)
{
    char host[64] = "unknown host", cpu[128];

    gethostname(host, sizeof host - 1);
    processor(cpu, sizeof cpu);
    snprintf(text, size, "%s: %s, %s, %ld processors, %s, %d thread%s, %s, commit %s", bench, host, cpu,
             sysconf(_SC_NPROCESSORS_ONLN), isa, threads, threads == 1 ? "" : "s", HVT_COMPILER,
             BENCH_COMMIT);
}

void bench_header(const char *bench, const char *isa, int threads)
{
    char text[512];

    bench_describe(text, sizeof text, bench, isa, threads);
    printf("%s\n", text);
}

void bench_fail(const char *bench, hvt_world *world)
{
    if (!world) {
        fprintf(stderr, "%s: %s\n", bench, hvt_last_error());
        exit(1);
    }
    fprintf(stderr, "%s: rank %d: %s\n", bench, hvt_world_rank(world), hvt_last_error());
    hvt_world_abort(world, 1);
}

static double own_time(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bench_seconds bench_time(void (*fn)(void *ctx), void *ctx, double budget)
{
    enum { ROUNDS = 11 };
    double round[ROUNDS], own[ROUNDS], start, own_start, once;
    int calls;

    fn(ctx);
    start = own_time();
    fn(ctx);
    once = own_time() - start;
    calls = (int)(budget / ROUNDS / (once + 1e-9));
    calls = calls < 1 ? 1 : calls;
    for (int r = 0; r < ROUNDS; r++) {
        start = hvt__now();
        own_start = own_time();
        for (int i = 0; i < calls; i++)
            fn(ctx);
        round[r] = (hvt__now() - start) / calls;
        own[r] = (own_time() - own_start) / calls;
    }
    hvt__sort(round, ROUNDS);
    hvt__sort(own, ROUNDS);
    return (bench_seconds){round[ROUNDS / 2], own[0]};
}

enum { STEPS = 200000 };

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Enough chains of dependent multiply-adds to hide their latency; the sum keeps them from being optimised
 * away. `each`: operations per word. Every loop over the chains is unrolled, or they would be kept in
 * memory. */
#define CHAINS(type, each, count, fill, muladd, first)                                                       \
    type c[count], a = fill(0.999f), b = fill(0.001f);                                                       \
    float total = 0;                                                                                         \
    UNROLL                                                                                                   \
    for (int i = 0; i < count; i++)                                                                          \
        c[i] = fill((float)i);                                                                               \
    for (int n = 0; n < STEPS; n++) {                                                                        \
        UNROLL                                                                                               \
        for (int i = 0; i < count; i++)                                                                      \
            c[i] = muladd(c[i], a, b);                                                                       \
    }                                                                                                        \
    UNROLL                                                                                                   \
    for (int i = 0; i < count; i++)                                                                          \
        total += first(c[i]);                                                                                \
    *flops = (double)(each) * sizeof(type) / sizeof(float) * count * STEPS;                                  \
    return total;

typedef float four __attribute__((vector_size(16)));

static float chains_portable(double *flops)
{
#define fill4(x)         ((four){x, x, x, x})
#define muladd4(c, a, b) ((c) * (a) + (b))
#define sum4(v)          ((v)[0])
    CHAINS(four, 2, 12, fill4, muladd4, sum4)
}

#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static float chains_avx2(double *flops)
{
    CHAINS(__m256, 2, 12, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32)
}

__attribute__((target("avx512f"))) static float chains_avx512(double *flops)
{
    CHAINS(__m512, 2, 24, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32)
}

__attribute__((target("avx512f,avx512bf16"))) static float chains_avx512_bf16(double *flops)
{
#define pairs_muladd(c, a, b) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
    CHAINS(__m512, 4, 24, _mm512_set1_ps, pairs_muladd, _mm512_cvtss_f32)
}

/* Tile shapes in ldtilecfg's layout. */
typedef struct tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles;

__attribute__((target("amx-tile,amx-bf16"))) static float chains_amx(double *flops)
{
    _Alignas(64) tiles t = {.palette = 1};
    float c[16 * 16];

    for (int i = 0; i < 8; i++) {
        t.row_bytes[i] = 64;
        t.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&t) : "memory");
    _tile_loadconfig(&t);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int n = 0; n < STEPS / 16; n++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, 64);
    _tile_release();
    *flops = 2.0 * 16 * 16 * 32 * 4 * (STEPS / 16);
    return c[0];
}
#endif

static double fastest(float (*chains)(double *))
{
    double best = 0, flops;
    volatile float kept = 0; /* keeps the sum from being optimised away */

    for (int i = 0; i < 10; i++) {
        double start = hvt__now(), speed;

        kept += chains(&flops);
        speed = flops * 1e-9 / (hvt__now() - start);
        best = speed > best ? speed : best;
    }
    (void)kept;
    return best;
}

double bench_peak(const char *isa)
{
#ifdef __x86_64__
    if (!strcmp(isa, "avx2"))
        return fastest(chains_avx2);
    if (!strncmp(isa, "avx512", 6) || !strcmp(isa, "amx")) /* their peak in f32 */
        return fastest(chains_avx512);
#else
    (void)isa;
#endif
    return fastest(chains_portable);
}

double bench_peak_bf16(const char *isa)
{
#ifdef __x86_64__
    if (!strcmp(isa, "avx512_bf16"))
        return fastest(chains_avx512_bf16);
    if (!strcmp(isa, "amx"))
        return fastest(chains_amx);
#else
    (void)isa;
#endif
    return 0;
}

double bench_copy(size_t bytes)
{
    const size_t half = bytes / 2 + 64;
    char *from = aligned_alloc(64, (half + 63) / 64 * 64), *to = aligned_alloc(64, (half + 63) / 64 * 64);
    double best = 0;
    int calls = (int)(4e6 / (double)half) + 1;

    if (from && to) {
        memset(from, 1, half);
        memset(to, 1, half);
        for (int r = 0; r < 5; r++) {
            double start = hvt__now(), speed;

            for (int i = 0; i < calls; i++) {
                memcpy(to, from, half);
                __asm__ volatile("" : : "r"(to) : "memory");
            }
            speed = 2e-9 * (double)half * calls / (hvt__now() - start);
            best = speed > best ? speed : best;
        }
    }
    free(from);
    free(to);
    return best;
}

void bench_refuse(const char *bench, hvt_world *world, const char *format, ...)
{
    va_list args;

    if (!world || hvt_world_rank(world) == 0) {
        fprintf(stderr, "%s: ", bench);
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fprintf(stderr, "\n");
    }
    hvt_world_close(&world);
    exit(2);
}

/* ---- options ---------------------------------------------------------------------------------------- */

/* The values that a row accepts, in words. */
static void expected(char *text, size_t size, const bench_row *r)
{
    const char *kind = r->number ? "a whole number" : "a number";

    if (r->one_of)
        snprintf(text, size, "one of %s", r->values);
    else if (r->text)
        snprintf(text, size, "a value");
    else if (r->most > 0)
        snprintf(text, size, "%s from %g to %.10g", kind, r->least, r->most);
    else
        snprintf(text, size, "%s, at least %g", kind, r->least);
}

static bool is_one_of(const char *values, const char *v)
{
    size_t length = strlen(v);

    for (const char *at = values; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (length && !strchr(v, '|') && !strncmp(at, v, length) && (at[length] == '|' || !at[length]))
            return true;
    return false;
}

static bool set_number(const bench_row *r, const char *v)
{
    char *end;
    double x = strtod(v, &end);

    if (end == v || *end || !(x >= r->least) || !(x <= (r->most > 0 ? r->most : r->number ? INT_MAX : 1e15)))
        return false;
    if (r->real)
        *r->real = x;
    else if (x == (double)(int)x)
        *r->number = (int)x;
    else
        return false;
    return true;
}

static bool set(const bench_row *r, const char *v)
{
    if (r->one_of && !is_one_of(r->values, v))
        return false;
    if (!r->text)
        return set_number(r, v);
    *r->text = v;
    return *v;
}

/* The row of argument a, and its value if that is in the same word. NULL if there is no such row. */
static const bench_row *row_of(const bench_row *rows, size_t n, const char *a, const char **ret_value)
{
    for (const bench_row *r = rows; r < rows + n; r++) {
        size_t length = strlen(r->name);

        *ret_value = NULL;
        if (r->name[0] != '-') {
            *ret_value = a;
            if (a[0] != '-')
                return r;
        } else if (!strncmp(a, r->name, length) && (!a[length] || (a[length] == '=' && !r->flag))) {
            if (a[length])
                *ret_value = a + length + 1;
            return r;
        }
    }
    return NULL;
}

static void list_rows(const char *bench, const bench_row *rows, size_t n)
{
    printf("usage: %s [OPTION VALUE] ...\n", bench);
    for (const bench_row *r = rows; r < rows + n; r++)
        printf("  %-18s %-28s %s\n", r->name, r->values, r->meaning);
}

/* Reads the command line; false, with a message in ret_wrong, if it is wrong. */
static bool read_rows(const bench_row *rows, size_t n, int argc, char **argv, char *ret_wrong, size_t size)
{
    for (int i = 1; i < argc; i++) {
        const char *v, *given = argv[i];
        const bench_row *r = row_of(rows, n, given, &v);
        char wanted[256];

        if (!r) {
            snprintf(ret_wrong, size, "unknown option %s; --help lists all options", given);
            return false;
        }
        if (r->flag) {
            *r->flag = 1;
            continue;
        }
        if (!v && i + 1 < argc)
            v = argv[++i];
        if (!v || !set(r, v)) {
            expected(wanted, sizeof wanted, r);
            snprintf(ret_wrong, size, "%s takes %s, got %s%s%s", r->name, wanted, v ? "'" : "nothing",
                     v ? v : "", v ? "'" : "");
            return false;
        }
    }
    return true;
}

void bench_options(const char *bench, hvt_world *world, const bench_row *rows, size_t n, int argc,
                   char **argv)
{
    char wrong[512];

    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help")) {
            if (!world || hvt_world_rank(world) == 0)
                list_rows(bench, rows, n);
            hvt_world_close(&world);
            exit(0);
        }
    if (!read_rows(rows, n, argc, argv, wrong, sizeof wrong))
        bench_refuse(bench, world, "%s", wrong);
}
