/*
 * Blocks, threads and barriers of the emulator.
 *
 * A thread begins on a *fiber*, a stack with a context. If it ends without a barrier the fiber goes on with
 * the next thread that has not begun, so kernels without barriers need one fiber. At a barrier the fiber
 * keeps the thread and gives the CPU back to the block, which lets the next thread in this interval's order
 * have it. An interval ends when every thread has come to a barrier, or to its end.
 *
 * With HVT_EMU_TSAN kernels are compiled for the thread sanitizer, and this file is not. A thread then has a
 * fiber that no other of its block has, nor any of the three blocks before and after, and that the sanitizer
 * takes for a thread: so it sees races between blocks that are at most three apart. That one runs after the
 * other orders nothing. What does: a launch comes after those before it, a thread's part behind a barrier after
 * all threads' parts before it, and what follows a fence after what stood before other fences that have run.
 * The sanitizer is told to ignore what the emulator does for itself.
 */
#include "device.h"
#include "emu.h"

#include <memory>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#define HVT_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HVT_EMU_ASAN 1
#endif
#endif
#ifdef HVT_EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef HVT_EMU_TSAN
#include <sanitizer/tsan_interface.h>

extern "C" void AnnotateIgnoreReadsBegin(const char *file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char *file, int line);
extern "C" void AnnotateIgnoreWritesBegin(const char *file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char *file, int line);
#endif

__thread hvt_emu::place threadIdx, blockIdx, blockDim, gridDim;

/* ---- stacks ---- */

/* Where a stack that does not run goes on. */
#ifdef __x86_64__
using context = void *; /* its stack pointer, at the registers that a call preserves */

/* swapcontext() asks the kernel for the mask of signals; kernels change stacks millions of times. */
extern "C" void hvt_emu_swap(context *from, const context *to);
asm(R"(
    .text
    .type hvt_emu_swap, @function
hvt_emu_swap:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov (%rsi), %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size hvt_emu_swap, . - hvt_emu_swap
)");

static void begin(context *c, char *stack, size_t size, void (*fn)(void))
{
    uintptr_t *top = (uintptr_t *)(((uintptr_t)stack + size) & ~(uintptr_t)15);

    memset(top - 8, 0, 8 * sizeof *top); /* six registers, where to begin, and whence: nowhere */
    top[-2] = (uintptr_t)fn;
    *c = top - 8;
}
#else
using context = ucontext_t;

static void hvt_emu_swap(context *from, const context *to)
{
    swapcontext(from, to);
}

static void begin(context *c, char *stack, size_t size, void (*fn)(void))
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = size;
    c->uc_link = nullptr;
    makecontext(c, fn, 0);
}
#endif

/* device_impl.h, which is C */
extern "C" uint64_t hvt__floats_enter(void);
extern "C" void hvt__floats_leave(const uint64_t *was);

namespace
{

/* ---- what the thread sanitizer is told ---- */

#ifdef HVT_EMU_TSAN
constexpr bool ONE_FIBER_EACH = true;

void *this_fiber()
{
    return __tsan_get_current_fiber();
}

void *new_fiber()
{
    return __tsan_create_fiber(0);
}

void old_fiber(void *fiber)
{
    __tsan_destroy_fiber(fiber);
}

void to_fiber(void *fiber)
{
    __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
}

/* All before a `before` comes before what follows a later `after` of the same address. */
void before(void *what)
{
    __tsan_release(what);
}

void after(void *what)
{
    __tsan_acquire(what);
}

/* While it lives, this thread does what is the emulator's own. */
struct own_work {
    own_work()
    {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }

    ~own_work()
    {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
};
#else
constexpr bool ONE_FIBER_EACH = false;

void *this_fiber()
{
    return nullptr;
}

void *new_fiber()
{
    return nullptr;
}

void old_fiber(void *)
{
}

void to_fiber(void *)
{
}

void before(void *)
{
}

void after(void *)
{
}

struct own_work {
    ~own_work()
    {
    }
};
#endif

char launched, ended, fenced; /* addresses: launches, ends of threads, fences */

/* ---- orders ---- */

uint64_t order_seed;

struct random_draws {
    uint64_t state;

    unsigned below(unsigned n)
    {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (unsigned)((state >> 33) % n);
    }
};

/* 0 .. n-1 as the seed says */
void make_order(std::vector<unsigned> &order, unsigned n, random_draws &draws)
{
    order.resize(n);
    for (unsigned i = 0; i < n; i++)
        order[i] = order_seed == 1 ? n - 1 - i : i;
    for (unsigned i = n; order_seed > 1 && i > 1; i--)
        std::swap(order[i - 1], order[draws.below(i)]);
}

/* ---- fibers ---- */

constexpr size_t STACK = 64 << 10;
constexpr unsigned NOBODY = ~0u;
constexpr unsigned SETS = ONE_FIBER_EACH ? 4 : 1; /* of fibers; one serves every fourth block */

struct fiber {
    context where;
    std::unique_ptr<char[]> stack;
    unsigned thread = NOBODY;
    void *tsan = new_fiber();

    ~fiber()
    {
        old_fiber(tsan);
    }
};

enum progress { NEW, WAITS, DONE };

struct block {
    const hvt_emu::kernel *kernel;
    context main;
    std::vector<progress> state; /* [threads] */
    std::vector<fiber *> on;     /* [threads] the fiber of one that waits */
    std::vector<unsigned> order;
    size_t next; /* whose turn it is, in `order` */
    fiber *running;
    const char *file; /* the barrier of this interval */
    int line;
    std::vector<std::pair<const void *, std::vector<unsigned char>>> memory;
    std::vector<fiber *> spent;     /* they have ended, and serve no other thread of this block */
    std::unique_ptr<char> barriers; /* its address */
};

thread_local std::vector<std::unique_ptr<fiber>> fibers;
thread_local std::vector<fiber *> idle[SETS];
thread_local unsigned set; /* whose turn it is */
thread_local block *now;
thread_local const void *main_bottom; /* the stack that blocks run on, as the address sanitizer asks */
thread_local size_t main_size;
thread_local void *main_fiber; /* as the thread sanitizer asks */

[[noreturn]] void die(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s; thread %u,%u of block %u,%u, blocks of %u,%u\n", file, line, what,
            threadIdx.x, threadIdx.y, blockIdx.x, blockIdx.y, blockDim.x, blockDim.y);
    abort();
}

void become(unsigned thread)
{
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

/* Leave the running stack for another one, whose bottom and size these are. */
void change(context *from, const context *to, const void *bottom, size_t size, void *tsan)
{
    to_fiber(tsan);
#ifdef HVT_EMU_ASAN
    void *fake;

    __sanitizer_start_switch_fiber(&fake, bottom, size);
    hvt_emu_swap(from, to);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
    (void)bottom;
    (void)size;
    hvt_emu_swap(from, to);
#endif
}

void to_block(fiber *f)
{
    change(&f->where, &now->main, main_bottom, main_size, main_fiber);
}

/* A fiber's life: threads that have not begun, as long as they come one after another; then it is idle. */
void live()
{
#ifdef HVT_EMU_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &main_bottom, &main_size);
#endif
    for (;;) {
        fiber *me = now->running;

        for (;;) {
            become(me->thread);
            after(&launched);
            now->kernel->thread(now->kernel);
            before(&ended);
            now->state[me->thread] = DONE;
            if (ONE_FIBER_EACH || now->next == now->order.size() || now->state[now->order[now->next]] != NEW)
                break;
            me->thread = now->order[now->next++];
        }
        me->thread = NOBODY;
        {
            own_work own;
            (ONE_FIBER_EACH ? now->spent : idle[0]).push_back(me);
        }
        to_block(me);
    }
}

fiber *idle_fiber()
{
    fiber *f;

    if (idle[set].empty()) {
        fibers.push_back(std::make_unique<fiber>());
        f = fibers.back().get();
        f->stack.reset(new char[STACK]);
        begin(&f->where, f->stack.get(), STACK, live);
        return f;
    }
    f = idle[set].back();
    idle[set].pop_back();
    return f;
}

/* Run it to its end or to a barrier; threads that have not begun may follow. */
void resume(unsigned thread)
{
    fiber *f = now->on[thread];

    if (!f) {
        f = idle_fiber();
        f->thread = thread;
    }
    become(thread);
    now->running = f;
    change(&now->main, &f->where, f->stack.get(), STACK, f->tsan);
}

/* From barrier to barrier. False: all threads have ended. */
bool run_interval(random_draws &draws)
{
    unsigned threads = (unsigned)now->state.size(), waiting = 0;

    make_order(now->order, threads, draws);
    now->file = nullptr;
    for (now->next = 0; now->next < threads;) {
        const unsigned thread = now->order[now->next++];

        if (now->state[thread] != DONE)
            resume(thread);
    }
    for (unsigned t = 0; t < threads; t++)
        waiting += now->state[t] == WAITS;
    if (waiting && waiting < threads)
        die("some threads of the block end without having come to this barrier", now->file, now->line);
    return waiting > 0;
}

void run_block(const hvt_emu::kernel *k, unsigned index, random_draws &draws)
{
    block b = {};

    b.kernel = k;
    b.state.assign((size_t)k->block.x * k->block.y * k->block.z, NEW);
    b.on.assign(b.state.size(), nullptr);
    b.barriers.reset(new char);
    set = (set + 1) % SETS;
    blockIdx = {index % k->grid.x, index / k->grid.x % k->grid.y, index / k->grid.x / k->grid.y};
    now = &b;
    while (run_interval(draws)) {
    }
    idle[set].insert(idle[set].end(), b.spent.begin(), b.spent.end());
    now = nullptr;
}

void run(void *ctx)
{
    const hvt_emu::kernel *k = (const hvt_emu::kernel *)ctx;
    const uint64_t floats = hvt__floats_enter(); /* as nvcc was told, and not as this thread computes */
    random_draws draws = {order_seed};
    own_work own;
    std::vector<unsigned> order;

    before(&launched);
    main_fiber = this_fiber();
    blockDim = {k->block.x, k->block.y, k->block.z};
    gridDim = {k->grid.x, k->grid.y, k->grid.z};
    make_order(order, k->grid.x * k->grid.y * k->grid.z, draws);
    for (unsigned index : order)
        run_block(k, index, draws);
    after(&ended);
    hvt__floats_leave(&floats);
}

void drop(void *ctx)
{
    hvt_emu::kernel *k = (hvt_emu::kernel *)ctx;

    k->drop(k);
}

} // namespace

void hvt_emu_order(uint64_t seed)
{
    order_seed = seed;
}

extern "C" __attribute__((weak)) void hvt_double_launch(void *, void (*fn)(void *ctx), void *ctx,
                                                        void (*dropped)(void *ctx))
{
    fn(ctx);
    dropped(ctx);
}

extern "C" void hvt_double_launch(void *stream, void (*fn)(void *ctx), void *ctx, void (*dropped)(void *ctx));

/* The limits of CUDA, compute capability 8.0 and later */
bool hvt_emu::can_launch(dim3 grid, dim3 block, size_t bytes)
{
    return grid.x && grid.y && grid.z && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535 &&
           block.x && block.y && block.z && (size_t)block.x * block.y * block.z <= 1024 && bytes <= 4096;
}

void hvt_emu::queue(cudaStream_t stream, kernel *k)
{
    hvt_double_launch(stream, run, k, drop);
}

void hvt_emu::barrier(const char *file, int line)
{
    fiber *me = now->running;
    const unsigned thread = me->thread;

    if (now->file && (now->file != file || now->line != line))
        die("a thread has come to this barrier while others wait at another one", file, line);
    now->file = file;
    now->line = line;
    now->state[thread] = WAITS;
    now->on[thread] = me;
    before(now->barriers.get());
    to_block(me);
    after(now->barriers.get());
    now->on[thread] = nullptr;
}

/* Stronger than a GPU's, which orders nothing unless an atomic, too, leads from one fence to the other: a
 * missing fence shows all the same. */
void hvt_emu::fence()
{
    after(&fenced);
    before(&fenced);
}

void *hvt_emu::shared(const void *key, size_t bytes)
{
    own_work own;

    for (auto &m : now->memory)
        if (m.first == key)
            return m.second.data();
    now->memory.emplace_back(key, std::vector<unsigned char>(bytes, 0xff));
    return now->memory.back().second.data();
}
