/*
 * general: the general ops (binary operations, moves, rotary embeddings, norms over a shape, attention) of
 * every device equal ref's, over random shapes, both row orders and short batches whose padding holds NaN.
 */
#include "devices.h"

enum { CASES = 40 };

/* ---- binary operations ---- */

static shape shape_of_b(const shape *s, const hvt_binary_args *k)
{
    const hvt_across across = k->across;
    shape b = *s;

    if (across == HVT_PER_IMAGE || across >= HVT_PER_CHANNEL)
        b = make_shape(HVT_ORDER_NHW, 1, s->n, s->real, s->c);
    if (across >= HVT_PER_CHANNEL)
        b = make_shape(HVT_ORDER_NHW, 1, 1, 1, across == HVT_ONE_NUMBER ? 1 : s->c);
    if (across == HVT_PER_ELEMENT)
        b = make_shape(HVT_ORDER_NHW, 1, k->at.count, k->at.count, s->c);
    if (across == HVT_PER_PIXEL)
        b = make_shape(s->order, s->pixels, s->n, s->real, 1);
    b.type = across >= HVT_PER_CHANNEL ? HVT_F32 : s->type;
    return b;
}

/* far from 0, for divisions */
static float *operand(const shape *s)
{
    float *x = matrix(s, 0);

    for (size_t i = 0; i < s->all; i++)
        x[i] += x[i] < 0 ? -0.5f : 0.5f;
    round_all(s->type, x, s->all);
    return x;
}

/* y, da, db; what is added to must be given */
static void run_binary(hvt_device *d, const hvt_binary_args *like, hvt_dtype t, const shape *s,
                       const shape *sb, const float *a, const float *b, const float *dy, const float *da,
                       const float *db, float *ret[3])
{
    hvt_binary_args k = *like;
    const hvt_dtype of_b = k.across >= HVT_PER_CHANNEL ? HVT_F32 : t;
    void *y = unwritten(t, s->all), *pa = packed(t, a, s->all), *pb = packed(of_b, b, sb->all),
         *pdy = packed(t, dy, s->all), *pda = packed(t, da, s->all), *pdb = packed(of_b, db, sb->all);

    k.type = t;
    k.a = pa;
    k.b = pb;
    k.y = y;
    CHECK_OK(d->ops->general.binary_forward(d, &k));
    k.dy = pdy;
    k.da = pda;
    k.db = pdb;
    CHECK_OK(d->ops->general.binary_backward(d, &k));
    free(pa);
    free(pb);
    free(pdy);
    ret[0] = unpacked(t, y, s->all);
    ret[1] = unpacked(t, pda, s->all);
    ret[2] = unpacked(of_b, pdb, sb->all);
}

TEST(binary_operations_equal_ref)
{
    static const char *const what[] = {"y", "da", "db"};

    for (int t = 0; t < cases(2 * CASES); t++) {
        shape s = random_shape();
        hvt_binary_args k = {.order = s.order,
                             .n = s.n,
                             .real = s.real,
                             .pixels = s.pixels,
                             .c = s.c,
                             .op = (hvt_binary)(t % HVT_BINARIES),
                             .swapped = between(0, 1),
                             .across = (hvt_across)(t / HVT_BINARIES % 6),
                             .add_a = between(0, 1),
                             .add_b = between(0, 1)};
        shape sb;
        float *a, *b, *dy, *da, *db, *want[3], *first[3] = {0};

        if (k.across == HVT_PER_ELEMENT) {
            k.op = HVT_ADD;
            k.at.first = between(0, s.pixels - 1);
            k.at.count = between(1, s.pixels - k.at.first);
        }
        sb = shape_of_b(&s, &k);
        a = operand(&s);
        b = operand(&sb);
        dy = matrix(&s, 0);
        da = matrix(&s, 0);
        db = matrix(&sb, 0);

        run_binary(ref, &k, HVT_F32, &s, &sb, a, b, dy, da, db, want);
        for (int dev = 0; dev < ndevs; dev++) {
            float *got[3];

            run_binary(devs[dev], &k, s.type, &s, &sb, a, b, dy, da, db, got);
            for (int i = 0; i < 3; i++) {
                const shape *of = i < 2 ? &s : &sb;
                double terms = i < 2 || k.across == HVT_SAME ? 1 : (double)s.pixels * s.real * s.c;

                check_near(what[i], dev, of, of->all, got[i], want[i], 4e-6 * (4 + sqrt(terms)));
                if (dev == one_thread(dev)) {
                    free(first[i]);
                    first[i] = copied(got[i], of->all);
                }
                check_same(what[i], dev, of, of->all, got[i], first[i]);
                free(got[i]);
            }
        }
        for (int i = 0; i < 3; i++) {
            free(want[i]);
            free(first[i]);
        }
        free(a);
        free(b);
        free(dy);
        free(da);
        free(db);
    }
}

/* Each of two equal operands has half of the gradient; a NaN is larger and smaller than any number. */
TEST(maxima_of_equal_operands_and_nan)
{
    static const float a[5] = {1, 2, 3, NAN, 1}, b[5] = {1, 3, 2, 1, NAN}, dy[5] = {1, 1, 1, 1, 1};
    static const float want[2][2][5] = {{{1, 3, 3, NAN, NAN}, {0.5f, 0, 1, 1, 1}},
                                        {{1, 2, 2, NAN, NAN}, {0.5f, 1, 0, 1, 1}}};

    for (int op = 0; op < 2; op++)
        for (int dev = 0; dev < ndevs; dev++) {
            float y[5], da[5];
            const hvt_binary_args k = {.order = HVT_ORDER_NHW,
                                       .op = op ? HVT_MINIMUM : HVT_MAXIMUM,
                                       .n = 1,
                                       .real = 1,
                                       .pixels = 1,
                                       .c = 5,
                                       .a = a,
                                       .b = b,
                                       .y = y,
                                       .dy = dy,
                                       .da = da};

            CHECK_OK(devs[dev]->ops->general.binary_forward(devs[dev], &k));
            CHECK_OK(devs[dev]->ops->general.binary_backward(devs[dev], &k));
            for (int i = 0; i < 5; i++)
                CHECK(same_kind(y[i], want[op][0][i]) && same_kind(da[i], want[op][1][i]),
                      "%s(%g, %g) is %g on %s, and passes %g", op ? "min" : "max", (double)a[i], (double)b[i],
                      (double)y[i], hvt_device_isa(devs[dev]), (double)da[i]);
        }
}

/* ---- moves ---- */

TEST(moves_equal_ref)
{
    for (int t = 0; t < cases(2 * CASES); t++) {
        hvt_move_args k = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                           .type = (hvt_dtype)(t % TYPES),
                           .n = between(1, 5),
                           .h = between(1, 5),
                           .w = between(1, 5),
                           .c = between(1, 40),
                           .add = between(0, 1)};
        hvt_box *box[2] = {&k.src, &k.dst};
        size_t n[2];
        float *from, *to, *want;

        for (int i = 0; i < 2; i++) {
            *box[i] =
                (hvt_box){.y = between(0, 2), .x = between(0, 2), .first = between(0, 1) * between(0, 20)};
            box[i]->h = box[i]->y + k.h + between(0, 2);
            box[i]->w = box[i]->x + k.w + between(0, 2);
            box[i]->c = box[i]->first + k.c + between(0, 1) * between(0, 9);
            n[i] = (size_t)k.n * box[i]->h * box[i]->w * box[i]->c;
        }
        from = floats(n[0]);
        to = floats(n[1]);
        round_all(k.type, from, n[0]);
        round_all(k.type, to, n[1]);
        want = copied(to, n[1]);
        for (int dev = 0; dev < ndevs; dev++) {
            hvt_move_args of = k;
            void *src = packed(k.type, from, n[0]), *dst = packed(k.type, to, n[1]);
            float *got;

            of.from = src;
            of.to = dst;
            if (!dev) {
                of.type = HVT_F32;
                of.from = from;
                of.to = want;
                CHECK_OK(ref->ops->general.move(ref, &of));
                round_all(k.type, want, n[1]);
                of = k;
                of.from = src;
                of.to = dst;
            }
            CHECK_OK(devs[dev]->ops->general.move(devs[dev], &of));
            got = unpacked(k.type, dst, n[1]);
            check_same("move", dev, NULL, n[1], got, want);
            free(got);
            free(src);
        }
        free(from);
        free(to);
        free(want);
    }
}

TEST(transposes_equal_ref_and_come_back)
{
    for (int t = 0; t < cases(CASES); t++) {
        int r = t % 4 ? between(1, 5) : between(1, 70), c = between(1, 70), b = t % 3 ? 1 : between(2, 40),
            n = between(1, 20), all = r * c * b;
        shape s = typed_shape((hvt_dtype)(t % TYPES), make_shape(HVT_ORDER_NHW, 1, n, n, all));
        float *x = matrix(&s, 0), *old = matrix(&s, 0), *want = room(s.all * 4), *sum = copied(old, s.all);

        for (size_t i = 0; i < s.all; i++) {
            size_t at = i % all, k = at / b / r, j = at / b % r;

            want[i] = x[i / all * all + (j * c + k) * b + at % b];
        }
        CHECK_OK(ref->ops->general.transpose(ref, n, HVT_F32, r, c, b, x, sum, true));
        for (int dev = 0; dev < ndevs; dev++) {
            void *in = packed(s.type, x, s.all), *y = unwritten(s.type, s.all),
                 *back = unwritten(s.type, s.all), *y2 = packed(s.type, old, s.all);
            float *got;

            CHECK_OK(devs[dev]->ops->general.transpose(devs[dev], n, s.type, r, c, b, in, y, false));
            CHECK_OK(devs[dev]->ops->general.transpose(devs[dev], n, s.type, c, r, b, y, back, false));
            CHECK_OK(devs[dev]->ops->general.transpose(devs[dev], n, s.type, r, c, b, in, y2, true));
            free(in);
            check_same("transpose", dev, &s, s.all, got = unpacked(s.type, y, s.all), want);
            free(got);
            check_same("transposed back", dev, &s, s.all, got = unpacked(s.type, back, s.all), x);
            free(got);
            check_near("transpose added", dev, &s, s.all, got = unpacked(s.type, y2, s.all), sum, 1e-7);
            free(got);
        }
        free(x);
        free(old);
        free(want);
        free(sum);
    }
}

/* Pairs of every kind: within a vector of the processor's, and not; 3 apart of 6 channels, and of 18. */
static hvt_rotary_args random_rotary(int t)
{
    static const int aparts[] = {1, 2, 4, 8, 16, 32, 64, 3, 6, 12};
    const int unit = between(0, 1) ? 8 : 1, apart = aparts[t % (int)HVT_LEN(aparts)], n = between(1, 9);
    hvt_rotary_args k = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                         .type = (hvt_dtype)between(0, TYPES - 1),
                         .n = n,
                         .real = between(0, 1) ? n : between(0, n),
                         .pixels = between(0, 4) ? between(1, 9) : between(60, 99),
                         .first = between(0, 1) * unit * between(1, 9),
                         .vectors = between(1, 4),
                         .width = 2 * apart * (between(0, 1) ? 1 : between(2, apart > 8 ? 3 : 8)),
                         .apart = apart,
                         .add = between(0, 2) == 0};

    k.c = k.first + k.vectors * k.width + between(0, 1) * unit * between(1, 20);
    return k;
}

/* y as floats; x NULL: it is y */
static float *run_rotary(hvt_device *d, hvt_rotary_args k, hvt_dtype t, const float *x, const float *old,
                         size_t all)
{
    void *in = x ? packed(t, x, all) : NULL, *y = packed(t, old, all);

    k.type = t;
    k.x = x ? in : y;
    k.y = y;
    CHECK_OK(d->ops->general.rotary(d, &k));
    free(in);
    return unpacked(t, y, all);
}

TEST(rotary_embeddings_equal_ref_and_leave_padding_alone)
{
    for (int t = 0; t < cases(3 * CASES); t++) {
        hvt_rotary_args k = random_rotary(t);
        shape s = typed_shape(k.type, make_shape(k.order, k.pixels, k.n, k.real, k.c));
        const size_t factors = (size_t)k.pixels * k.width;
        float *own = floats(factors), *other = floats(factors), *x = matrix(&s, 0), *old = floats(s.all),
              *both = room(s.all * 4), *want, *first = NULL;

        k.own = own;
        k.other = other;
        round_all(s.type, old, s.all);
        for (size_t i = 0; i < s.all; i++) {
            both[i] = is_real(&s, i) ? x[i] : old[i];
            old[i] = is_real(&s, i) && !k.add ? NAN : old[i];
        }
        want = run_rotary(ref, k, HVT_F32, x, old, s.all);
        for (int dev = 0; dev < ndevs; dev++) {
            float *got = run_rotary(devs[dev], k, s.type, x, old, s.all);
            size_t touched = 0;

            check_near("rotary", dev, &s, s.all, got, want, 1e-6);
            for (size_t i = 0; i < s.all; i++)
                touched += !is_real(&s, i) && got[i] != old[i];
            if (dev == one_thread(dev)) {
                free(first);
                first = copied(got, s.all);
            }
            check_same("rotary", dev, &s, s.all, got, first);
            free(got);
            if (!k.add) {
                got = run_rotary(devs[dev], k, s.type, NULL, both, s.all);
                check_same("rotary in place", dev, &s, s.all, got, first);
                for (size_t i = 0; i < s.all; i++)
                    touched += !is_real(&s, i) && got[i] != both[i];
                free(got);
            }
            CHECK(!touched, "case %d on %s: %zu elements of padding are written", t,
                  hvt_device_isa(devs[dev]), touched);
        }
        free(own);
        free(other);
        free(x);
        free(old);
        free(both);
        free(want);
        free(first);
    }
}

TEST(norms_over_a_shape_equal_ref)
{
    static const char *const what[] = {"y", "dx", "dgamma", "dbeta"};

    for (int t = 0; t < cases(2 * CASES); t++) {
        shape s = random_shape();
        int kind = t % 4, groups = 1; /* of each pixel, of each image, with weights of each pixel, group */
        size_t params, samples;
        float *x, *dy, *old, *gamma, *beta, *want[4], *first[4] = {0};
        bool affine = between(0, 3) != 0;

        for (int i = 2; kind == 3 && i <= s.c; i++)
            if (s.c % i == 0 && (groups == 1 || between(0, 1)))
                groups = i;
        if (kind == 2 && s.c > 300)
            continue;
        hvt_norm_args k = {.order = s.order,
                           .n = s.n,
                           .real = s.real,
                           .pixels = s.pixels,
                           .c = s.c,
                           .groups = groups,
                           .per_pixel = kind == 0,
                           .per_element = kind == 2,
                           .eps = 1e-3f,
                           .add = between(0, 1)};

        params = (size_t)(k.per_element ? s.pixels : 1) * s.c;
        samples = (size_t)s.n * (k.per_pixel ? s.pixels : 1) * groups;
        x = matrix(&s, 3);
        dy = matrix(&s, 0);
        old = matrix(&s, 0);
        gamma = floats(params);
        beta = floats(params);
        for (int dev = -1; dev < ndevs; dev++) { /* -1: ref in f32 */
            hvt_device *d = devs[dev < 0 ? 0 : dev];
            hvt_dtype type = dev < 0 ? HVT_F32 : s.type;
            hvt_norm_args a = k;
            void *in = packed(type, x, s.all), *y = unwritten(type, s.all), *pdy = packed(type, dy, s.all),
                 *dx = packed(type, old, s.all);
            float *got[4];

            a.type = type;
            a.x = in;
            a.gamma = affine ? gamma : NULL;
            a.beta = affine ? beta : NULL;
            a.mean = room(samples * 4);
            a.rstd = room(samples * 4);
            a.y = y;
            CHECK_OK(d->ops->general.norm_forward(d, &a));
            a.dy = pdy;
            a.dx = dx;
            a.dgamma = affine ? room(params * 4) : NULL;
            a.dbeta = affine ? room(params * 4) : NULL;
            CHECK_OK(d->ops->general.norm_backward(d, &a));
            free(in);
            free(pdy);
            got[0] = unpacked(type, y, s.all);
            got[1] = unpacked(type, dx, s.all);
            got[2] = a.dgamma;
            got[3] = a.dbeta;
            for (int i = 0; i < (affine ? 4 : 2); i++) {
                const shape *of = i < 2 ? &s : NULL;
                size_t n = of ? s.all : params;

                if (dev < 0) {
                    want[i] = got[i];
                    continue;
                }
                check_near(what[i], dev, of, n, got[i], want[i],
                           i == 0  ? 4e-5 /* of groups of few numbers 1 / sqrt(eps), 32, times as much: */
                           : i < 2 ? 2e-4
                                   : 4e-6 * (8 + sqrt((double)s.all / s.c)));
                if (dev == one_thread(dev)) {
                    free(first[i]);
                    first[i] = copied(got[i], n);
                }
                check_same(what[i], dev, of, n, got[i], first[i]);
                free(got[i]);
            }
            free(a.mean);
            free(a.rstd);
        }
        for (int i = 0; i < (affine ? 4 : 2); i++) {
            free(want[i]);
            free(first[i]);
        }
        free(x);
        free(dy);
        free(old);
        free(gamma);
        free(beta);
    }
}

/* ---- attention ---- */

/* What attention adds to its scores, and where the windows are: in another order, one after the other. */
typedef struct additions {
    int32_t *pixel, *bias, *first, *where;
    float *table, *mask;
} additions;

static int32_t *integers(size_t n)
{
    int32_t *x = malloc((n ? n : 1) * sizeof *x);

    if (!x)
        exit(1);
    return x;
}

static additions random_additions(hvt_attention_args *k)
{
    const int pixels = k->windows * k->queries, scores = k->heads * k->queries * k->keys;
    const size_t masked = (size_t)k->windows * k->queries * k->keys;
    additions add = {0};

    if (k->queries == k->keys && between(0, 1)) {
        k->pixel = add.pixel = integers((size_t)pixels);
        for (int i = 0; i < pixels; i++) {
            const int j = between(0, i);

            add.pixel[i] = add.pixel[j];
            add.pixel[j] = i;
        }
    }
    if (between(0, 1)) {
        int at = 0;

        k->elements = between(1, 70);
        k->table = add.table = room((size_t)k->elements * sizeof(float));
        k->bias = add.bias = integers((size_t)scores);
        k->first = add.first = integers((size_t)k->elements + 1);
        k->where = add.where = integers((size_t)scores);
        for (int i = 0; i < k->elements; i++)
            add.table[i] = (float)between(-100, 100) / 64;
        for (int i = 0; i < scores; i++)
            add.bias[i] = between(0, k->elements - 1);
        for (int e = 0; e < k->elements; e++) {
            add.first[e] = at;
            for (int i = 0; i < scores; i++)
                if (add.bias[i] == e)
                    add.where[at++] = i;
        }
        add.first[k->elements] = at;
    }
    if (between(0, 1)) {
        k->mask = add.mask = room(masked * sizeof(float));
        for (size_t i = 0; i < masked; i++)
            add.mask[i] = between(0, 2) ? 0 : between(0, 1) ? -100 : -1e30f;
    }
    return add;
}

static void free_additions(additions *add)
{
    free(add->pixel);
    free(add->bias);
    free(add->first);
    free(add->where);
    free(add->table);
    free(add->mask);
}

/* q, k and v are columns of one matrix, or matrices of their own; a gradient that is not wanted stays. */
TEST(attention_equals_ref)
{
    static const int widths[] = {1, 3, 8, 16, 33, 64, 80, 130};
    static const char *const what[] = {"y", "dq", "dk", "dv"};
    enum { MOST_ELEMENTS = 70 };

    for (int t = 0; t < cases(CASES); t++) {
        const bool one = t % 2;
        const int windows = between(0, 1) ? 1 : between(2, 5),
                  tokens = between(0, 4) || windows > 1 ? between(1, 40) : between(60, 200);
        const int n = between(1, 3), many = between(1000, 1500), /* then blocks have fewer queries */
            other = one || windows > 1 ? tokens
                    : between(0, 9)    ? between(1, 90)
                                       : many;
        const int queries = windows * tokens, keys = windows * other;
        hvt_attention_args k = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                                .n = n,
                                .real = between(0, 3) ? n : between(0, n),
                                .heads = between(1, 3),
                                .width = widths[t % (int)HVT_LEN(widths)],
                                .windows = windows,
                                .queries = tokens,
                                .keys = other,
                                .scale = between(0, 1) ? 0.125f : 2};
        const hvt_dtype type = (hvt_dtype)(t / 2 % TYPES);
        const int c = k.heads * k.width, pitch = one ? 3 * c : c, wanted = between(0, 3) ? 7 : between(0, 7);
        shape in[3], out = typed_shape(type, make_shape(k.order, queries, n, k.real, c));
        additions added = random_additions(&k);
        const bool wants_table = k.elements && between(0, 3);
        float *x[3], *old[3], *dy = matrix(&out, 0), *want[4], *first[4] = {0}, tables[3][MOST_ELEMENTS];

        for (int i = 0; i < 3; i++) {
            in[i] = typed_shape(type, make_shape(k.order, i ? keys : queries, n, k.real, pitch));
            x[i] = one && i ? x[0] : matrix(&in[i], 0);
            old[i] = one && i ? old[0] : matrix(&in[i], 0);
        }
        k.q.add = between(0, 1);
        k.k.add = one ? k.q.add : between(0, 1);
        k.v.add = one ? k.q.add : between(0, 1);
        k.q.pitch = k.k.pitch = k.v.pitch = pitch;
        for (int dev = -1; dev < ndevs; dev++) { /* -1: ref in f32 */
            hvt_device *d = devs[dev < 0 ? 0 : dev];
            hvt_attention_args a = k;
            void *px[3], *pdx[3], *py, *pdy;
            float *got[4], *table = tables[dev < 0 ? 0 : dev == one_thread(dev) ? 1 : 2];

            a.type = dev < 0 ? HVT_F32 : type;
            for (int i = 0; i < 3; i++) {
                px[i] = one && i ? px[0] : packed(a.type, x[i], in[i].all);
                pdx[i] = one && i ? pdx[0] : packed(a.type, old[i], in[i].all);
            }
            py = unwritten(a.type, out.all);
            pdy = packed(a.type, dy, out.all);
            a.q.x = px[0];
            a.k.x = hvt__at(px[1], a.type, one ? (size_t)c : 0);
            a.v.x = hvt__at(px[2], a.type, one ? (size_t)2 * c : 0);
            a.y = py;
            a.ws = room(d->ops->general.attention_room(d, &a));
            CHECK_OK(d->ops->general.attention_forward(d, &a));
            a.dy = pdy;
            a.q.dx = wanted & 1 ? pdx[0] : NULL;
            a.k.dx = wanted & 2 ? hvt__at(pdx[1], a.type, one ? (size_t)c : 0) : NULL;
            a.v.dx = wanted & 4 ? hvt__at(pdx[2], a.type, one ? (size_t)2 * c : 0) : NULL;
            a.dtable = wants_table ? table : NULL;
            CHECK_OK(d->ops->general.attention_backward(d, &a));
            for (int e = 0; wants_table && dev >= 0 && e < k.elements; e++) {
                const float off =
                    3e-5f * (float)(n * (k.first[e + 1] - k.first[e]) * k.width) * (type == HVT_F32 ? 1 : 20);

                CHECK(fabsf(table[e] - tables[0][e]) <= off, "case %d: element %d of the table is off by %g",
                      t, e, (double)fabsf(table[e] - tables[0][e]));
                CHECK(table[e] == tables[1][e], "case %d: element %d of the table depends on threads", t, e);
            }
            free(a.ws);
            free(pdy);
            got[0] = unpacked(a.type, py, out.all);
            for (int i = 0; i < (one ? 1 : 3); i++) {
                got[1 + i] = unpacked(a.type, pdx[i], in[i].all);
                free(px[i]);
            }
            for (int i = 0; i < (one ? 2 : 4); i++) {
                const shape *of = i ? &in[i - 1] : &out;

                if (dev < 0) {
                    want[i] = got[i];
                    continue;
                }
                check_near(what[i], dev, of, of->all, got[i], want[i], 2e-5);
                if (dev == one_thread(dev)) {
                    free(first[i]);
                    first[i] = copied(got[i], of->all);
                }
                check_same(what[i], dev, of, of->all, got[i], first[i]);
                free(got[i]);
            }
        }
        for (int i = 0; i < (one ? 2 : 4); i++) {
            free(want[i]);
            free(first[i]);
        }
        for (int i = 0; i < (one ? 1 : 3); i++) {
            free(x[i]);
            free(old[i]);
        }
        free_additions(&added);
        free(dy);
    }
}

/* Scores that no float's exponential holds; one key; equal scores. */
TEST(softmax_of_scores_of_any_size)
{
    static const float q[1] = {1}, v[4] = {1, 2, 4, 8};
    static const float k[][4] = {
        {3e4f, -3e4f, 0, 1}, {-3e4f, -3e4f, -3e4f, -3e4f}, {1, 0, 0, 0}, {-200, 0, 0, 0}};
    static const float want[] = {1, 3.75f, 2.9236548f, 4.6666667f};

    for (size_t i = 0; i < HVT_LEN(want); i++)
        for (int dev = 0; dev < ndevs; dev++) {
            float y = 0;
            hvt_attention_args a = {.order = HVT_ORDER_NHW,
                                    .n = 1,
                                    .real = 1,
                                    .heads = 1,
                                    .width = 1,
                                    .windows = 1,
                                    .queries = 1,
                                    .keys = 4,
                                    .scale = 1,
                                    .q = {q, NULL, 1, false},
                                    .k = {k[i], NULL, 1, false},
                                    .v = {v, NULL, 1, false},
                                    .y = &y};

            a.ws = room(devs[dev]->ops->general.attention_room(devs[dev], &a));
            CHECK_OK(devs[dev]->ops->general.attention_forward(devs[dev], &a));
            free(a.ws);
            CHECK(fabsf(y - want[i]) < 1e-4f, "row %zu: %g on %s, expected %g", i, (double)y,
                  hvt_device_isa(devs[dev]), (double)want[i]);
        }
}

/* ---- windows ---- */

TEST(windows_equal_ref)
{
    for (int t = 0; t < cases(2 * CASES); t++) {
        bool adaptive = between(0, 1);
        hvt_pooling_desc d = {.order = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW,
                              .type = (hvt_dtype)(t % TYPES),
                              .n = between(1, 5),
                              .h = between(1, 13),
                              .w = between(1, 13),
                              .c = between(1, 40),
                              .mean = between(0, 1),
                              .windows = true,
                              .count_pad = !adaptive && between(0, 1)};
        int real = between(1, d.n);
        shape in = typed_shape(d.type, make_shape(d.order, d.h * d.w, d.n, real, d.c)), out;
        float *x = matrix(&in, 0), *old = matrix(&in, 0), *dy, *want[2];

        d.rows = random_window(d.h, adaptive);
        d.columns = random_window(d.w, adaptive);
        out = typed_shape(d.type, make_shape(d.order, d.rows.out * d.columns.out, d.n, real, d.c));
        dy = matrix(&out, 0);
        for (int dev = -1; dev < ndevs; dev++) { /* -1: ref in f32 */
            hvt_device *on = devs[dev < 0 ? 0 : dev];
            hvt_pooling_desc k = d;
            hvt_op *op = NULL;
            size_t bytes;
            void *px, *py, *pdy, *pdx, *saved;
            float *got[2];

            k.type = dev < 0 ? HVT_F32 : d.type;
            px = packed(k.type, x, in.all);
            py = unwritten(k.type, out.all);
            pdy = packed(k.type, dy, out.all);
            pdx = packed(k.type, old, in.all);
            CHECK_OK(on->ops->pooling.plan(on, &k, &op, &bytes));
            saved = room(bytes);
            CHECK_OK(on->ops->pooling.forward(op, real, px, py, saved));
            CHECK_OK(on->ops->pooling.backward(op, real, saved, pdy, pdx, true));
            hvt__op_free(op);
            free(px);
            free(pdy);
            free(saved);
            got[0] = unpacked(k.type, py, out.all);
            got[1] = unpacked(k.type, pdx, in.all);
            for (int i = 0; i < 2; i++) {
                const shape *of = i ? &in : &out;

                if (dev < 0) {
                    want[i] = got[i];
                    continue;
                }
                check_near(i ? "window dx" : "window y", dev, of, of->all, got[i], want[i], 4e-6);
                free(got[i]);
            }
        }
        free(x);
        free(old);
        free(dy);
        free(want[0]);
        free(want[1]);
    }
}

TEST(windows_of_too_many_pixels_are_refused)
{
    const hvt_pooling_desc d = {.n = 1,
                                .h = 70000,
                                .w = 1,
                                .c = 1,
                                .mean = true,
                                .windows = true,
                                .rows = {.out = 65536},
                                .columns = {.out = 1}};

    for (int dev = 0; dev < ndevs; dev++) {
        hvt_op *op = NULL;
        size_t bytes;

        CHECK_FAILS(devs[dev]->ops->pooling.plan(devs[dev], &d, &op, &bytes), E_SHAPE,
                    "65536x1 windows over 70000x1 pixels");
    }
}

int main(void)
{
    open_devices();
    RUN(binary_operations_equal_ref);
    RUN(maxima_of_equal_operands_and_nan);
    RUN(moves_equal_ref);
    RUN(transposes_equal_ref_and_come_back);
    RUN(rotary_embeddings_equal_ref_and_leave_padding_alone);
    RUN(norms_over_a_shape_equal_ref);
    RUN(attention_equals_ref);
    RUN(softmax_of_scores_of_any_size);
    RUN(windows_equal_ref);
    RUN(windows_of_too_many_pixels_are_refused);
    close_devices();
    return check_done();
}
