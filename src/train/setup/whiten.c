/*
 * --whiten: the first convolution whitens patches of the training images, as in airbench (Jordan 2024, arXiv
 * 2404.00498, section 3.1). With D = C*R*S elements of a patch, filters 0 to D-1 are the eigenvectors of the
 * patches' second moments, each divided by sqrt(eigenvalue + EPS), the largest first; filters D to 2D-1 are
 * their negatives. The moments are sums of whole numbers, so they are exact.
 */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <math.h>

enum { IMAGES = 5000, ELEMENTS_MAX = 192 };
#define EPS 5e-4

/* Sums over patches: of elements, and of products of two of them. */
typedef struct moments {
    int channels, rows, columns, n;  /* of a patch; n: its elements, in the order C,R,S */
    int64_t patches, *sum, *product; /* [n], [n][n] with the second index at most the first */
} moments;

static void add_image(moments *k, const uint8_t *pixels, int height, int width)
{
    int64_t patch[ELEMENTS_MAX];

    for (int y = 0; y + k->rows <= height; y++)
        for (int x = 0; x + k->columns <= width; x++, k->patches++) {
            int64_t *at = patch;

            for (int c = 0; c < k->channels; c++)
                for (int r = 0; r < k->rows; r++)
                    for (int s = 0; s < k->columns; s++)
                        *at++ = pixels[((y + r) * width + x + s) * k->channels + c];
            for (int i = 0; i < k->n; i++) {
                k->sum[i] += patch[i];
                for (int j = 0; j <= i; j++)
                    k->product[i * k->n + j] += patch[i] * patch[j];
            }
        }
}

/* The mean product of two elements x = (byte/255 - mean) / std. */
static double moment(const moments *k, const hvt_loader_opts *units, int i, int j)
{
    const int taps = k->rows * k->columns, a = i / taps, b = j / taps;
    const double n = (double)k->patches, mean_a = units->mean[a], mean_b = units->mean[b];
    const double product = (double)k->product[i > j ? i * k->n + j : j * k->n + i] / n / (255. * 255);
    const double sum_i = (double)k->sum[i] / n / 255, sum_j = (double)k->sum[j] / n / 255;

    return (product - mean_a * sum_j - mean_b * sum_i + mean_a * mean_b) /
           ((double)units->std[a] * (double)units->std[b]);
}

/* Rotates rows and columns p and q of a so that a[p][q] becomes 0. */
static void rotate(int n, double *a, double *vectors, int p, int q)
{
    const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    const double t = copysign(1, theta) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1);
    const double s = t * c;

    for (int i = 0; i < n; i++) {
        const double x = a[i * n + p], y = a[i * n + q];

        a[i * n + p] = c * x - s * y;
        a[i * n + q] = s * x + c * y;
    }
    for (int i = 0; i < n; i++) {
        const double x = a[p * n + i], y = a[q * n + i], v = vectors[p * n + i], w = vectors[q * n + i];

        a[p * n + i] = c * x - s * y;
        a[q * n + i] = s * x + c * y;
        vectors[p * n + i] = c * v - s * w;
        vectors[q * n + i] = s * v + c * w;
    }
}

/* Jacobi's method for a symmetric matrix: its diagonal becomes the eigenvalues, the rows of `vectors` the
 * eigenvectors. */
static void diagonalise(int n, double *a, double *vectors)
{
    enum { SWEEPS = 50 };

    for (int i = 0; i < n * n; i++)
        vectors[i] = i % (n + 1) == 0;
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int p = 0; p < n; p++)
            for (int q = p + 1; q < n; q++)
                if (fabs(a[p * n + q]) > 1e-15 * sqrt(fabs(a[p * n + p] * a[q * n + q])))
                    rotate(n, a, vectors, p, q);
}

/* Writes both filters of each eigenvector. */
static void put_filters(int n, const double *a, const double *vectors, float *ret_weights)
{
    for (int i = 0; i < n; i++) {
        const double value = a[i * n + i], scale = 1 / sqrt(fmax(value, 0) + EPS);
        int place = 0;

        for (int j = 0; j < n; j++)
            place += a[j * n + j] > value || (a[j * n + j] == value && j < i);
        for (int j = 0; j < n; j++) {
            ret_weights[place * n + j] = (float)(scale * vectors[i * n + j]);
            ret_weights[(n + place) * n + j] = -ret_weights[place * n + j];
        }
    }
}

/* Finds the weight of the convolution that reads the images. Parameters may not be in the order of layers. */
static hvt_status find_weight(const run *t, hvt_named *ret_weight)
{
    const int channels = hvt_dataset_describe(t->train_set)->channels;

    for (int i = 0; hvt_model_named(t->model, i, ret_weight); i++) {
        const int *d = ret_weight->dim, n = d[1] * d[2] * d[3];

        if (ret_weight->ndim == 4 && d[1] == channels && n <= ELEMENTS_MAX && d[0] == 2 * n)
            return HVT_OK;
    }
    return HVT_FAIL(
        E_ARG,
        "--whiten: --model %s has no convolution of the images with C x R x S elements in a filter "
        "(at most %d) and twice as many filters, as airbench94 has",
        t->opts->model, ELEMENTS_MAX);
}

static hvt_status sum_images(const run *t, moments *k)
{
    const hvt_dataset_info *data = hvt_dataset_describe(t->train_set);
    uint8_t *pixels = malloc((size_t)data->height * (size_t)data->width * (size_t)data->channels);
    hvt_status s = HVT_OK;
    int label;

    HVT_CHECK(pixels, E_MEM, "no memory for an image");
    for (uint32_t i = 0; i < data->count && i < IMAGES; i++) {
        HVT_TRY_OR(done, hvt_dataset_get(t->train_set, i, pixels, &label));
        add_image(k, pixels, data->height, data->width);
    }
done:
    free(pixels);
    return s;
}

hvt_status hvt__whiten(run *t)
{
    const hvt_dataset_info *data = hvt_dataset_describe(t->train_set);
    const hvt_loader_opts *l = &t->loading.train;
    hvt_named weight;
    hvt_status s = HVT_OK;

    HVT_CHECK(data->type == HVT_U8 && data->height == l->height && data->width == l->width && !l->grey, E_ARG,
              "--whiten is for images of bytes in the model's own size, such as CIFAR-10's");
    HVT_TRY(find_weight(t, &weight));
    moments k = {.channels = weight.dim[1], .rows = weight.dim[2], .columns = weight.dim[3]};
    const int n = k.n = k.channels * k.rows * k.columns;
    double *a = malloc(sizeof *a * (size_t)(2 * n * n));
    float *filters = malloc(sizeof *filters * weight.count);

    k.sum = calloc((size_t)(n + n * n), sizeof *k.sum);
    HVT_CHECK_OR(done, a && filters && k.sum, E_MEM, "no memory to whiten patches of %d elements", n);
    k.product = k.sum + n;
    HVT_TRY_OR(done, sum_images(t, &k));
    for (int i = 0; i < n * n; i++)
        a[i] = moment(&k, l, i / n, i % n);
    diagonalise(n, a, a + n * n);
    put_filters(n, a, a + n * n, filters);
    s = hvt_model_set(t->model, weight.name, filters, weight.count);
done:
    free(a);
    free(filters);
    free(k.sum);
    return s;
}
