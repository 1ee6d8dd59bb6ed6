/*
 * matmul: products of matrices equal ref's on every device, whatever is transposed, and have one thread's
 * bits on any number of them.
 */
#include "devices.h"

enum { CASES = 60 };

static float *run(hvt_device *d, hvt_matmul_args k, hvt_dtype t, const float *a, const float *b,
                  const float *old)
{
    const size_t m = (size_t)k.m, n = (size_t)k.n, inner = (size_t)k.k, count = (size_t)k.count;
    void *pa = packed(t, a, count * m * inner), *pb = packed(t, b, count * inner * n),
         *y = packed(t, old, count * m * n);

    k.type = t;
    k.a = pa, k.b = pb, k.y = y;
    k.ws = room(d->ops->matmul.room(d, &k) + 64);
    CHECK_OK(d->ops->matmul.run(d, &k));
    free(pa);
    free(pb);
    free(k.ws);
    return unpacked(t, y, count * m * n);
}

TEST(products_of_matrices_equal_ref)
{
    for (int t = 0; t < cases(CASES); t++) {
        const bool large = t % 10 == 0;
        const hvt_dtype type = (hvt_dtype)between(0, TYPES - 1);
        const hvt_matmul_args k = {.count = between(1, 5),
                                   .m = large ? between(250, 600) : between(1, 40),
                                   .n = between(1, large ? 20 : 70),
                                   .k = between(1, 70),
                                   .a_transposed = between(0, 1),
                                   .b_transposed = between(0, 1),
                                   .add = between(0, 1)};
        const size_t all = (size_t)k.count * (size_t)k.m * (size_t)k.n,
                     of_a = (size_t)k.count * (size_t)k.m * (size_t)k.k,
                     of_b = (size_t)k.count * (size_t)k.n * (size_t)k.k;
        const shape s = typed_shape(
            type, make_shape(HVT_ORDER_NHW, 1, (int)(all / (size_t)k.n), (int)(all / (size_t)k.n), k.n));
        float *a = floats(of_a), *b = floats(of_b), *old = floats(all), *want, *first = NULL;

        round_all(type, a, of_a);
        round_all(type, b, of_b);
        round_all(type, old, all);
        want = run(ref, k, HVT_F32, a, b, old);
        for (int dev = 0; dev < ndevs; dev++) {
            float *got = run(devs[dev], k, type, a, b, old);

            check_near("product", dev, &s, all, got, want, 2e-5);
            if (dev == one_thread(dev)) {
                free(first);
                first = copied(got, all);
            }
            check_same("product", dev, &s, all, got, first);
            free(got);
        }
        free(a);
        free(b);
        free(old);
        free(want);
        free(first);
    }
}

int main(void)
{
    open_devices();
    RUN(products_of_matrices_equal_ref);
    close_devices();
    return check_done();
}
