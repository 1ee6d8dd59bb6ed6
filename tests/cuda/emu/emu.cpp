/*
 * Blocks, threads and barriers of the emulator.
 *
 * A thread begins on a *fiber*, a stack with a context. If it ends without a barrier the fiber goes on with
 * the next thread that has not begun, so kernels without barriers need one fiber. At a barrier the fiber
 * keeps the thread and gives the CPU back to the block, which lets the next thread in this interval's order
 * have it. An interval ends when every thread has come to a barrier, or to its end.
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

struct fiber {
    context where;
    std::unique_ptr<char[]> stack;
    unsigned thread = NOBODY;
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
};

thread_local std::vector<std::unique_ptr<fiber>> fibers;
thread_local std::vector<fiber *> idle;
thread_local block *now;
thread_local const void *main_bottom; /* the stack that blocks run on, as the address sanitizer asks */
thread_local size_t main_size;

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
void change(context *from, const context *to, const void *bottom, size_t size)
{
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
    change(&f->where, &now->main, main_bottom, main_size);
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
            now->kernel->thread(now->kernel);
            now->state[me->thread] = DONE;
            if (now->next == now->order.size() || now->state[now->order[now->next]] != NEW)
                break;
            me->thread = now->order[now->next++];
        }
        me->thread = NOBODY;
        idle.push_back(me);
        to_block(me);
    }
}

fiber *idle_fiber()
{
    fiber *f;

    if (idle.empty()) {
        fibers.push_back(std::make_unique<fiber>());
        f = fibers.back().get();
        f->stack.reset(new char[STACK]);
        begin(&f->where, f->stack.get(), STACK, live);
        return f;
    }
    f = idle.back();
    idle.pop_back();
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
    change(&now->main, &f->where, f->stack.get(), STACK);
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
    blockIdx = {index % k->grid.x, index / k->grid.x % k->grid.y, index / k->grid.x / k->grid.y};
    now = &b;
    while (run_interval(draws)) {
    }
    now = nullptr;
}

void run(void *ctx)
{
    const hvt_emu::kernel *k = (const hvt_emu::kernel *)ctx;
    const uint64_t before = hvt__floats_enter(); /* as nvcc was told, and not as this thread computes */
    random_draws draws = {order_seed};
    std::vector<unsigned> order;

    blockDim = {k->block.x, k->block.y, k->block.z};
    gridDim = {k->grid.x, k->grid.y, k->grid.z};
    make_order(order, k->grid.x * k->grid.y * k->grid.z, draws);
    for (unsigned index : order)
        run_block(k, index, draws);
    hvt__floats_leave(&before);
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
    to_block(me);
    now->on[thread] = nullptr;
}

void *hvt_emu::shared(const void *key, size_t bytes)
{
    for (auto &m : now->memory)
        if (m.first == key)
            return m.second.data();
    now->memory.emplace_back(key, std::vector<unsigned char>(bytes, 0xff));
    return now->memory.back().second.data();
}
