/* safetensors: an invalid weights file is refused by name; a written one is read back. */
#include "base_impl.h"
#include "check.h"
#include "folder.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/cli/cli_impl.h"

#include <math.h>
#include <unistd.h>

static void put_file(const char *path, const char *header, size_t data_bytes)
{
    FILE *f = fopen(path, "wb");
    uint64_t n = strlen(header);

    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)i, f);
    fclose(f);
}

TEST(files_that_are_not_what_they_claim_are_refused)
{
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } bad[] = {
        {"[]", 0, "does not begin with '{'"},
        {"{", 0, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}x", 4, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "begins at byte 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, "tensor b begins at byte 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8,
         "the tensors have 4 bytes, the file has 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "bytes 0 to 4 of 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "2 elements of F32, but 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "elements"},
        {"{\"a\":{\"dtype\":\"Q7\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype 'Q7'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e1]}}", 4, "two data_offsets"},
        {"{\"a\":7}", 0, "tensor a needs dtype"},
        {"{\"__metadata__\":{\"x\":1}}", 0, "metadata x is not text"},
        {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unable to decode byte"},
    };
    const char *path = in_folder("bad");
    hvt_st *st;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        put_file(path, bad[i].header, bad[i].data);
        CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, bad[i].part);
        CHECK(strstr(hvt_last_error(), path), "the file is not named: %s", hvt_last_error());
    }
    CHECK_FAILS(hvt__st_open(in_folder("none"), &st), E_IO, "none: No such file");
    CHECK_FAILS(hvt__st_open(folder, &st), E_IO, "is a folder");
    truncate(path, 5);
    CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, "5 bytes are too few");
    put_file(path, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    truncate(path, 20);
    CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, "truncated: a header of");
}

TEST(a_file_of_another_kind_is_called_what_it_seems_to_be)
{
    static const struct {
        const char *bytes, *part;
    } bad[] = {
        {"\xff\xd8\xff\xe0 and so on", "seems to be a JPEG picture"},
        {"<!DOCTYPE html><html>", "seems to be a web page"},
        {"version https://git-lfs.github.com/spec/v1", "git lfs pull fetches the file"},
        {"<?xml version=\"1.0\"?><Error>", "seems to be an XML document, such as an object store's error"},
        {"PK\3\4 and so on", "torch.save"},
        {"weights of a net", "begins with 77 65 69 67 68 74 73 20, which is not the size of a header"},
        {"", "is empty, expected a safetensors file"}};
    const char *path = in_folder("other");
    hvt_st *st;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        FILE *f = fopen(path, "wb");

        fputs(bad[i].bytes, f);
        fclose(f);
        CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, bad[i].part);
        CHECK(strstr(hvt_last_error(), path), "the file is not named: %s", hvt_last_error());
    }
}

TEST(empty_scalar_and_padded_are_allowed)
{
    const char *path = in_folder("odd");
    hvt_st *st = NULL;
    float x[2];

    put_file(path,
             "{\"z\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
             "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}    ",
             4);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(st->n == 2 && hvt__st_find(st, "z")->count == 0 && hvt__st_find(st, "s")->count == 1, "%d", st->n);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "s"), x));
    hvt__st_close(&st);
    put_file(path, "{}", 0);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(st->n == 0, "%d", st->n);
    hvt__st_close(&st);
}

static hvt_status count_up(void *ctx, const hvt_st_item *item, const void **ret_data)
{
    static const int64_t many = 7000000000;
    static float x[300000];

    (void)ctx;
    for (int64_t i = 0; item->type == HVT_ST_F32 && i < item->dim[0]; i++)
        x[i] = (float)item->id + (float)i / 8;
    *ret_data = item->type == HVT_ST_I64 ? (const void *)&many : x;
    return item->id == 99 ? HVT_FAIL(E_IO, "no more") : HVT_OK;
}

TEST(what_is_written_is_read_back)
{
    hvt_st_item items[] = {{.name = "b", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 1},
                           {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {300000}, .id = 2},
                           {.name = "n", .type = HVT_ST_I64, .id = 3}};
    json_t *meta =
        json_pack("{s:i, s:o}", "epoch", 3, "path", hvt__json_text("not \xff utf-8, \"quoted\"\n"));
    double epoch;
    static float x[300000];
    const char *path = in_folder("written");
    unsigned char head[8];
    int64_t n = 0;
    hvt_st *st = NULL;
    FILE *f;

    CHECK_OK(hvt__st_write(path, items, 3, meta, count_up, NULL));
    CHECK(access(in_folder("written.tmp"), F_OK), "the temporary file is still there");
    CHECK_OK(hvt__st_open(path, &st));
    json_decref(meta);
    CHECK(!strcmp(hvt__st_meta(st, "format"), "pt"), "format");
    CHECK_OK(hvt__metadata_read(st, &meta));
    CHECK_OK(hvt__metadata_number(st, meta, "epoch", 3, &epoch));
    CHECK(epoch == 3, "%g", epoch);
    CHECK_FAILS(hvt__metadata_number(st, meta, "epoch", 2, &epoch), E_FORMAT,
                "epoch is 3, expected a number up to 2");
    CHECK_FAILS(hvt__metadata_number(st, meta, "path", 2, &epoch), E_FORMAT, "metadata path is \"not");
    CHECK_FAILS(hvt__metadata_number(st, meta, "top1", 2, &epoch), E_FORMAT, "lacks 'top1'");
    CHECK(!strcmp(hvt__metadata_text(meta, "path"), "not ? utf-8, \"quoted\"\n"), "'%s'",
          hvt__metadata_text(meta, "path"));
    json_decref(meta);
    CHECK(hvt__st_find(st, "n")->first == 0 && hvt__st_find(st, "a")->first == 8,
          "counters first, then by name");
    CHECK_OK(hvt__st_verify(st));
    CHECK_OK(hvt__st_i64(st, hvt__st_find(st, "n"), &n));
    CHECK(n == 7000000000, "%lld", (long long)n);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "a"), x));
    CHECK(x[299999] == 2 + 299999.0f / 8, "%g", (double)x[299999]);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "b"), x));
    CHECK(x[4] == 1.5f, "%g", (double)x[4]);
    CHECK_FAILS(hvt__st_f32(st, hvt__st_find(st, "n"), x), E_FORMAT, "tensor n is I64");
    hvt__st_close(&st);

    f = fopen(path, "r+b");
    CHECK(fread(head, 1, 8, f) == 8 && head[0] % 8 == 0, "data does not begin at a multiple of 8");
    fseek(f, -3, SEEK_END); /* one bit of the last tensor */
    n = fgetc(f);
    fseek(f, -3, SEEK_END);
    fputc((int)n ^ 4, f);
    fclose(f);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK_FAILS(hvt__st_verify(st), E_FORMAT, "damaged");
    hvt__st_close(&st);
}

TEST(a_failed_write_leaves_the_file_of_before)
{
    hvt_st_item good = {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 1};
    hvt_st_item bad = {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 99};
    const char *path = in_folder("kept");
    json_t *meta = json_object();
    hvt_st *st = NULL;
    float x[5];

    CHECK_OK(hvt__st_write(path, &good, 1, meta, count_up, NULL));
    CHECK_FAILS(hvt__st_write(path, &bad, 1, meta, count_up, NULL), E_IO, "no more");
    CHECK(access(in_folder("kept.tmp"), F_OK), "the temporary file is still there");
    CHECK_OK(hvt__st_open(path, &st));
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "a"), x));
    CHECK(x[4] == 1.5f, "%g", (double)x[4]);
    hvt__st_close(&st);
    CHECK_FAILS(hvt__st_write(in_folder("no/such"), &good, 1, meta, count_up, NULL), E_IO, "no/such");
    json_decref(meta);
}

/* Every f16, against the definition: sign, 5 bits of exponent, 10 of fraction. */
TEST(halves_become_the_same_number)
{
    const char *path = in_folder("half");
    static uint16_t bits[65536];
    static float x[65536];
    hvt_st *st = NULL;

    for (int pass = 0; pass < 2; pass++) {
        char header[100];
        uint64_t n;
        FILE *f = fopen(path, "wb");
        snprintf(header, sizeof header,
                 "{\"h\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}",
                 pass ? "BF16" : "F16");
        n = strlen(header);
        for (int i = 0; i < 65536; i++)
            bits[i] = (uint16_t)i;
        fwrite(&n, 8, 1, f);
        fwrite(header, 1, n, f);
        fwrite(bits, 2, 65536, f);
        fclose(f);
        CHECK_OK(hvt__st_open(path, &st));
        CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "h"), x));
        hvt__st_close(&st);
        for (int i = 0; i < 65536; i++) {
            int width = pass ? 7 : 10, bias = pass ? 127 : 15, most = pass ? 255 : 31;
            int e = i >> width & most, m = i & ((1 << width) - 1);
            double v = e == most ? (m ? NAN : INFINITY)
                       : e       ? ldexp(1 + ldexp(m, -width), e - bias)
                                 : ldexp(m, 1 - bias - width);
            v = i & 0x8000 ? -v : v;
            CHECK(v != v ? x[i] != x[i] : (double)x[i] == v, "%s %04x is %g, not %g", pass ? "BF16" : "F16",
                  i, (double)x[i], v);
        }
    }
}

int main(void)
{
    if (!folder_make())
        return 1;
    RUN(files_that_are_not_what_they_claim_are_refused);
    RUN(a_file_of_another_kind_is_called_what_it_seems_to_be);
    RUN(empty_scalar_and_padded_are_allowed);
    RUN(what_is_written_is_read_back);
    RUN(a_failed_write_leaves_the_file_of_before);
    RUN(halves_become_the_same_number);
    CHECK(folder_remove(), "%s stays", folder);
    return check_done();
}
